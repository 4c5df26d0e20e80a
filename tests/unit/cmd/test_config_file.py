from dataclasses import dataclass
from pathlib import Path

import pytest

from tianzhou.base.errors import UsageError
from tianzhou.base.settings import SettingsError, setting
from tianzhou.cmd.config_file import load_all, read


def write(path: Path, text: str | bytes) -> Path:
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_lines_of_rocketmq(tmp_path: Path) -> None:
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


def test_every_line_that_is_none_is_named(tmp_path: Path) -> None:
    path = write(tmp_path / "broker.conf", "a=1\n# fine\nbrokerName broker-a\nha_secret: hush\nx\n")
    with pytest.raises(UsageError) as caught:
        read(path)
    assert str(caught.value).split("; ") == [
        f"{path}, line {number}: expected name=value, found {found}"
        for number, found in ((3, "'brokerName broker-a'"), (4, "******"), (5, "'x'"))
    ]


def test_toml_has_types(tmp_path: Path) -> None:
    path = write(tmp_path / "broker.toml", 'port = 1\nhost = "::1"\nhours = [4, 5]\nfast = true\n')
    assert read(path) == {"port": 1, "host": "::1", "hours": [4, 5], "fast": True}


def test_toml_that_is_none_is_named(tmp_path: Path) -> None:
    path = write(tmp_path / "broker.toml", "port = \n")
    with pytest.raises(UsageError, match=rf"^{path}: .*line 1"):
        read(path)


@pytest.mark.parametrize("name", ["broker.conf", "broker.toml"])
def test_a_file_that_is_not_utf_8_is_named(tmp_path: Path, name: str) -> None:
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


def test_two_kinds_of_settings_from_one_file() -> None:
    (first, second), unknown = load_all(
        (First, Second), {"size": "3", "zebra": 1, "listenPort": "4", "shared": "s", "ape": 2}
    )
    assert (first, second) == (First(port=4, shared="s"), Second(size=3, shared="s"))
    assert unknown == ["ape", "zebra"]


def test_problems_of_both_are_told_together() -> None:
    with pytest.raises(SettingsError) as caught:
        load_all((First, Second), {"listenPort": "x", "size": 10})
    one, other = caught.value.problems
    assert one.startswith("listenPort = 'x': ")
    assert other == "size = 10: must be from 0 to 9"
