"""The files in deploy/: what they start exists, and takes what they say."""

import configparser
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
import yaml

from docs.pages import ROOT
from docs.terminal import BIN, accept
from tianzhou.base.settings import load
from tianzhou.broker.config import BrokerConfig
from tianzhou.cmd import config_file
from tianzhou.nameserver.config import NameServerConfig
from tianzhou.store.config import StoreConfig

DEPLOY = ROOT / "deploy"
UNITS = sorted(DEPLOY.glob("*.service"))
CONTAINERFILE = (DEPLOY / "Containerfile").read_text(encoding="utf-8")
COMPOSE = cast("dict[str, Any]", yaml.safe_load((DEPLOY / "compose.yaml").read_text("utf-8")))
PORTS = {NameServerConfig().listen_port, BrokerConfig().port, BrokerConfig().port - 2, 8080}


def instructions() -> Iterator[tuple[str, str]]:
    text = re.sub(r"^#.*\n", "", CONTAINERFILE, flags=re.MULTILINE).replace("\\\n", " ")
    for line in filter(None, text.splitlines()):
        name, _, rest = line.partition(" ")
        yield name, rest


def given(name: str) -> list[str]:
    return [rest for each, rest in instructions() if each == name]


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_systemd_unit_is_valid(unit: Path, tmp_path: Path) -> None:
    parsed = configparser.ConfigParser(strict=False, interpolation=None)
    parsed.optionxform = str  # pyright: ignore[reportAttributeAccessIssue]
    parsed.read(unit, encoding="utf-8")
    program, *words = shlex.split(parsed["Service"]["ExecStart"])
    assert program == "/opt/tianzhou/bin/tianzhou"
    settings = DEPLOY / Path(words[words.index("-c") + 1]).name
    accept([str(settings) if word.startswith("/etc/") else word for word in words])
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not here; the command itself was checked")
    here = tmp_path / unit.name
    here.write_text(unit.read_text("utf-8").replace("/opt/tianzhou/bin", str(BIN)))
    done = subprocess.run(
        ["systemd-analyze", "verify", here], capture_output=True, text=True, timeout=300
    )
    assert (done.returncode, done.stderr) == (0, "")


def unknown_in(path: Path, *kinds: type[Any]) -> set[str]:
    """Names that none of these settings knows; a wrong value raises."""
    values = config_file.read(path)
    unknown = set(values)
    for kind in kinds:
        unknown &= set(load(kind, values)[1])
    return unknown


def test_deploy_settings_files_have_no_unknown_setting() -> None:
    assert not unknown_in(DEPLOY / "broker.toml", BrokerConfig, StoreConfig)
    assert not unknown_in(DEPLOY / "nameserver.toml", NameServerConfig)


def test_containerfile_copies_existing_files() -> None:
    for words in map(str.split, given("COPY")):
        if not words[0].startswith("--from"):
            assert all((ROOT / word).exists() for word in words[:-1]), words
    assert msgspec.json.decode(given("ENTRYPOINT")[0]) == ["tianzhou"]
    accept(msgspec.json.decode(given("CMD")[0], type=list[str]))
    assert {int(port) for port in given("EXPOSE")[0].split()} >= PORTS
    # Nothing but the base and PyPI: no other downloads.
    assert not re.search(r"https?://|apt-get|curl|wget", CONTAINERFILE)


def test_containerfile_pins_the_locked_versions() -> None:
    """The sed of the file, run on the lock."""
    (command,) = re.findall(r"sed -n '[^']+' requirements.lock", CONTAINERFILE)
    done = subprocess.run(
        ["bash", "-c", command], cwd=ROOT, capture_output=True, text=True, check=True
    )
    lock = (ROOT / "requirements.lock").read_text("utf-8")
    names = re.findall(r"^([a-z0-9][\w.-]*)(?:\[.*?\])?==", lock, re.MULTILINE)
    assert [line.partition("==")[0] for line in done.stdout.splitlines()] == names
    assert "--hash" not in done.stdout


def test_compose_file_starts_existing_commands(tmp_path: Path) -> None:
    content = COMPOSE["configs"]["broker"]["content"].replace("${TIANZHOU_ADDRESS:-127.0.0.1}", "b")
    settings = tmp_path / "broker.conf"
    settings.write_text(content)
    taken, unknown = load(BrokerConfig, config_file.read(settings))
    assert (taken.address, taken.nameservers, [*unknown]) == ("b", "nameserver:9876", [])
    published: set[int] = set()
    for name, service in COMPOSE["services"].items():
        accept([word.replace("/etc/tianzhou", str(tmp_path)) for word in service["command"]])
        assert (DEPLOY / service["build"]["context"] / service["build"]["dockerfile"]).exists()
        published |= {int(port.rpartition(":")[2]) for port in service["ports"]}
        for check in [service["healthcheck"]["test"]] if "healthcheck" in service else []:
            accept(check[2:])
        assert all(other in COMPOSE["services"] for other in service.get("depends_on", [])), name
    assert published >= PORTS
