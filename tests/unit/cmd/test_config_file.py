from dataclasses import dataclass
from pathlib import Path

import pytest

from tianzhou.base.errors import UsageError
from tianzhou.base.settings import SettingsError, setting
from tianzhou.cmd.config_file import load_all, read


def write(path: Path, text: str | bytes) -> Path:
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_config_file_of_rocketmq_is_parsed(tmp_path: Path) -> None:
    path = write(
        tmp_path / "broker.conf",
        "# a comment\n! another\n\n  # indented\n  \nbrokerName = broker-a \r\n"
        "namesrvAddr=a:1;b:2\n  flushDiskType=SYNC_FLUSH\nurl=x=y\nempty=\n经纪=人\n",
    )
    assert read(path) == {
        "brokerName": "broker-a",
        "namesrvAddr": "a:1;b:2",
        "flushDiskType": "SYNC_FLUSH",
        "url": "x=y",
        "empty": "",
        "经纪": "人",
    }


def test_config_file_with_invalid_lines_reports_each(tmp_path: Path) -> None:
    path = write(tmp_path / "broker.conf", "a=1\n# fine\nbrokerName broker-a\nha_secret: hush\nx\n")
    with pytest.raises(UsageError) as caught:
        read(path)
    assert str(caught.value).split("; ") == [
        f"{path}, line {number}: expected name=value, found {found}"
        for number, found in ((3, "'brokerName broker-a'"), (4, "******"), (5, "'x'"))
    ]


def test_config_file_in_toml_keeps_types(tmp_path: Path) -> None:
    path = write(tmp_path / "broker.toml", 'port = 1\nhost = "::1"\nhours = [4, 5]\nfast = true\n')
    assert read(path) == {"port": 1, "host": "::1", "hours": [4, 5], "fast": True}


def test_config_file_with_invalid_toml_reports_the_line(tmp_path: Path) -> None:
    path = write(tmp_path / "broker.toml", "port = \n")
    with pytest.raises(UsageError, match=rf"^{path}: .*line 1"):
        read(path)


@pytest.mark.parametrize("name", ["broker.conf", "broker.toml"])
def test_config_file_that_is_not_utf_8_is_rejected(tmp_path: Path, name: str) -> None:
    path = write(tmp_path / name, "# 注释\na='b'\n".encode("gbk"))
    with pytest.raises(UsageError, match=rf"^{path} is not UTF-8"):
        read(path)


@dataclass(frozen=True, kw_only=True)
class First:
    port: int = setting(1, min=0, max=9, alias="listenPort", help="…")
    shared: str = setting("", help="…")


@dataclass(frozen=True, kw_only=True)
class Second:
    size: int = setting(2, min=0, max=9, help="…")
    shared: str = setting("", help="…")


def test_load_all_divides_settings_between_classes() -> None:
    (first, second), unknown = load_all(
        (First, Second), {"size": "3", "zebra": 1, "listenPort": "4", "shared": "s", "ape": 2}
    )
    assert (first, second) == (First(port=4, shared="s"), Second(size=3, shared="s"))
    assert unknown == ["ape", "zebra"]


def test_load_all_reports_problems_of_all_classes() -> None:
    with pytest.raises(SettingsError) as caught:
        load_all((First, Second), {"listenPort": "x", "size": 10})
    one, other = caught.value.problems
    assert one.startswith("listenPort = 'x': ")
    assert other == "size = 10: must be from 0 to 9"
