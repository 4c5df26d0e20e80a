"""Real processes whose log, queues, index and tables lie on paths of their own."""

import json
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from clients.server_process import TIANZHOU, ServerProcess, up

pytestmark = pytest.mark.slow

SETTINGS: Final = {
    "log": "storePathCommitLog",
    "queues": "storePathConsumeQueue",
    "index": "storePathIndex",
    "tables": "tables_path",
}
COUNT: Final = 200

Start = Callable[..., ServerProcess]


def options(tmp_path: Path, **instead: str) -> list[str]:
    paths = {part: f"{tmp_path}/{part}-disk/{part}" for part in SETTINGS} | instead
    words = ["--sync-flush", "--http-port", "0", "--set", "commit_log_file_bytes=65536"]
    for part, path in paths.items():
        words += ["--set", f"{SETTINGS[part]}={path}"] if path else []
    return words


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    lives: list[ServerProcess] = []

    def started(**instead: str) -> ServerProcess:
        lives.append(up(tmp_path, *options(tmp_path, **instead)))
        return lives[-1]

    yield started
    for life in lives:
        life.end()


def run(*words: str, code: int = 0) -> str:
    done = subprocess.run(
        [TIANZHOU, *words], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == code, done.stderr
    return done.stdout


def produce(server: ServerProcess) -> None:
    run("produce", "orders", "--count", str(COUNT), "--size", "600", "-n", server.nameserver)


def end_of(server: ServerProcess) -> int:
    found = json.loads(run("topic", "show", "orders", "-n", server.nameserver, "--json"))
    return sum(row["end_offset"] for row in found["queues"])


def contents(*directories: Path) -> dict[str, bytes]:
    return {
        str(path): path.read_bytes()
        for directory in directories
        for path in directory.rglob("*")
        if path.is_file()
    }


def rejected(tmp_path: Path, directory: str = "data", **instead: str) -> str:
    """The error of a start that must fail and change nothing."""
    before = contents(tmp_path)
    words = ["up", "--nameserver-port", "0", "--broker-port", "0"]
    words += ["--data", str(tmp_path / directory), *options(tmp_path, **instead)]
    done = subprocess.run(
        [TIANZHOU, *words], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode != 0
    assert "Traceback" not in done.stderr
    if directory == "data":
        assert contents(tmp_path) == before, "a rejected store was changed"
    return re.sub(r"\s+", " ", done.stderr)


def test_parts_on_paths_of_their_own_survive_a_kill_and_tools_find_them(
    start: Start, tmp_path: Path
) -> None:
    server = start()
    produce(server)
    facts: dict[str, Any] = json.loads(
        run("broker", "status", server.facts["brokerName"], "-n", server.nameserver, "--json")
    )
    assert list(facts["part_disk_used_ratio"]) == list(SETTINGS)
    server.kill()
    server = start()
    assert end_of(server) == COUNT
    assert "alarm.began" not in server.log()
    assert server.stop() == 0
    for part in SETTINGS:
        assert contents(tmp_path / f"{part}-disk" / part), f"nothing is in the path of the {part}"
    data = str(tmp_path / "data")
    inspected = json.loads(run("store", "inspect", data, "--json"))
    assert json.dumps(inspected).count("orders") > 0
    assert json.loads(run("store", "verify", data, "--json"))["damage"] == []
    shutil.rmtree(tmp_path / "queues-disk")
    shutil.rmtree(tmp_path / "index-disk")
    run("store", "rebuild", data)
    assert contents(tmp_path / "queues-disk" / "queues")
    assert end_of(start()) == COUNT


@pytest.mark.parametrize("part", SETTINGS)
def test_disk_that_is_not_mounted_stops_the_start(start: Start, tmp_path: Path, part: str) -> None:
    server = start()
    produce(server)
    server.kill()
    away, mount = tmp_path / "away", tmp_path / f"{part}-disk" / part
    mount.rename(away)
    mount.mkdir()  # the empty mount point
    said = rejected(tmp_path)
    assert f"in {mount}" in said
    assert "Nothing was changed" in said
    assert SETTINGS[part] in said
    assert f"It was at {mount}" in rejected(tmp_path, **{part: ""}), "without the setting"
    mount.rmdir()
    away.rename(mount)
    assert end_of(start()) == COUNT


@pytest.mark.parametrize("part", SETTINGS)
def test_path_of_a_running_broker_stops_another_one(
    start: Start, tmp_path: Path, part: str
) -> None:
    server = start()
    produce(server)
    shared = {other: "" for other in SETTINGS if other != part}
    said = rejected(tmp_path, "other", **shared)
    assert "is not their store directory" in said if part == "log" else "of another store" in said
    assert end_of(server) == COUNT


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("storePathDLedgerCommitLog", "set commit_log_path (storePathCommitLog)"),
        ("storePathEpochFile", "set tables_path"),
        ("storePathBrokerIdentity", "set --data (storePathRootDir)"),
        ("storePathComitLog", "unknown path; RocketMQ's names of paths are storePathRootDir"),
    ],
)
@pytest.mark.parametrize("command", ["broker", "up"])
def test_path_that_would_have_no_effect_is_rejected(
    tmp_path: Path, command: str, setting: str, said: str
) -> None:
    conf = tmp_path / "broker.conf"
    conf.write_text(f"{setting}=/somewhere\nlistenPort=0\n")
    done = subprocess.run(
        [TIANZHOU, command, "-c", str(conf), "--data", str(tmp_path / "data")],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    error = re.sub(r"\s+", " ", done.stderr)
    assert f"{setting} = '/somewhere': " in error
    assert said in error
    assert "broker.conf)" in error
    assert not (tmp_path / "data").exists()
