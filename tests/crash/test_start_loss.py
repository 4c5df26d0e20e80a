"""Real processes: a start that finds less than was stored, and a store that fails at run time."""

import json
import re
import shutil
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from clients.server_process import TIANZHOU, ServerProcess, up
from clients.waiting import wait_until

SMALL: Final = ("--http-port", "0", "--sync-flush", "--set", "commit_log_file_bytes=65536")
COUNT: Final = 400
FENCED: Final = 70

Start = Callable[..., ServerProcess]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    lives: list[ServerProcess] = []

    def started(*options: str) -> ServerProcess:
        lives.append(up(tmp_path, *SMALL, *options))
        return lives[-1]

    yield started
    for life in lives:
        life.end()


def command(*words: str) -> str:
    done = subprocess.run(
        [TIANZHOU, *words], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def produce(server: ServerProcess, count: int = COUNT) -> None:
    command("produce", "orders", "--count", str(count), "--size", "600", "-n", server.nameserver)


def ends(server: ServerProcess) -> dict[int, int]:
    found = json.loads(command("topic", "show", "orders", "-n", server.nameserver, "--json"))
    return {row["queue_id"]: row["end_offset"] for row in found["queues"]}


def get_json(server: ServerProcess, path: str) -> tuple[int, Any]:
    try:
        with urllib.request.urlopen(server.facts["http"] + path, timeout=60) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


def contents(directory: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def start_rejected(tmp_path: Path, *options: str) -> str:
    """Start a broker that must fail; returns its error, and checks that nothing was changed."""
    data, before = tmp_path / "data", contents(tmp_path / "data")
    words = ["up", "--nameserver-port", "0", "--broker-port", "0", "--data", str(data)]
    done = subprocess.run(
        [TIANZHOU, *words, *SMALL, *options],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode not in (0, FENCED)
    assert "Traceback" not in done.stderr
    assert contents(data) == before, "a rejected directory was changed"
    return re.sub(r"\s+", " ", done.stderr)


@pytest.mark.slow
def test_lost_log_files_stop_the_start_until_the_loss_is_accepted(
    start: Start, tmp_path: Path
) -> None:
    server = start()
    produce(server)
    before = ends(server)
    assert server.stop() == 0
    for path in sorted((tmp_path / "data/commitlog").iterdir())[-2:]:
        path.unlink()
    said = start_rejected(tmp_path)
    found = re.search(r"accept_loss_at=(\d+)", said)
    assert found, said
    server = start("--set", found[0])
    assert ends(server) == before, "offsets of lost messages are not reused"
    log = server.log()
    assert "alarm.began" in log
    assert "log_ended_early" in log
    status, ready = get_json(server, "/readyz")
    assert (status, ready["status"]) == (200, "ready")
    assert "bytes are missing" in ready["alarms"][0]
    assert server.stop() == 0
    server = start()
    alarm = get_json(server, "/readyz")[1]["alarms"][0]
    assert "bytes are missing" in alarm, "a restart does not clear the alarm"
    name = server.facts["brokerName"]
    command("broker", "acknowledge", name, "-n", server.nameserver)
    assert "alarms" not in get_json(server, "/readyz")[1]
    produce(server, 50)
    assert sum(ends(server).values()) == sum(before.values()) + 50


@pytest.mark.slow
def test_start_without_the_first_log_files_serves_the_rest_and_reports_the_range(
    start: Start, tmp_path: Path
) -> None:
    server = start()
    produce(server)
    before = ends(server)
    assert server.stop() == 0
    for path in sorted((tmp_path / "data/commitlog").iterdir())[:2]:
        path.unlink()
    server = start()
    assert ends(server) == before
    assert "kind=log_begins_late" in server.log()
    status, ready = get_json(server, "/readyz")
    assert (status, ready["status"]) == (200, "ready")
    assert "131072 bytes are missing" in ready["alarms"][0]
    name = server.facts["brokerName"]
    assert "log_begins_late" in command("broker", "status", name, "-n", server.nameserver, "--json")
    server.kill()
    server = start()
    assert "131072 bytes are missing" in get_json(server, "/readyz")[1]["alarms"][0]
    command("broker", "acknowledge", name, "-n", server.nameserver)
    assert "alarms" not in get_json(server, "/readyz")[1]


@pytest.mark.slow
def test_log_directory_that_is_not_mounted_stops_the_start(start: Start, tmp_path: Path) -> None:
    apart = ("--set", f"storePathCommitLog={tmp_path}/disk/log")
    server = start(*apart)
    produce(server, 50)
    assert server.stop() == 0
    assert not (tmp_path / "data/commitlog").exists()
    assert f"It was at {tmp_path}/disk/log" in start_rejected(tmp_path)
    (tmp_path / "disk").rename(tmp_path / "away")
    (tmp_path / "disk/log").mkdir(parents=True)  # the empty mount point
    assert "there is no commit log" in start_rejected(tmp_path, *apart)
    (tmp_path / "disk/log").rmdir()
    (tmp_path / "disk").rmdir()
    (tmp_path / "away").rename(tmp_path / "disk")
    assert sum(ends(start(*apart)).values()) == 50


@pytest.mark.slow
def test_killed_broker_restarts_without_an_alarm(start: Start) -> None:
    server = start()
    produce(server, 50)
    server.kill()
    server = start()
    assert "store.recovered" in server.log()
    assert "alarm.began" not in server.log()
    assert "alarms" not in get_json(server, "/readyz")[1]


def break_disk(server: ServerProcess, tmp_path: Path) -> None:
    """Remove the directory of the log, so that its next file cannot be created."""
    (tmp_path / "data/commitlog").rename(tmp_path / "gone")
    subprocess.run(
        [
            TIANZHOU,
            "produce",
            "orders",
            "--count",
            str(COUNT),
            "--size",
            "600",
            "-n",
            server.nameserver,
        ],
        capture_output=True,
        timeout=300,
        check=False,
    )


@pytest.mark.slow
def test_fenced_broker_logs_the_reason_and_exits(start: Start, tmp_path: Path) -> None:
    server = start()
    break_disk(server, tmp_path)
    wait_until(lambda: server.process.poll() is not None, within_s=20, what="the broker ends")
    assert server.process.poll() == FENCED
    log = server.log()
    assert log.count("kind=store_broken") == 1, log
    assert "No such file or directory" in log
    assert "check the disk and restart" in log
    shutil.move(tmp_path / "gone", tmp_path / "data/commitlog")
    start()


@pytest.mark.slow
def test_fenced_broker_keeps_running_if_configured(start: Start, tmp_path: Path) -> None:
    server = start("--set", "exit_when_fenced=false")
    break_disk(server, tmp_path)
    wait_until(
        lambda: get_json(server, "/healthz")[0] == 503,
        within_s=20,
        what="the broker reports that it is unhealthy",
    )
    assert "No such file or directory" in get_json(server, "/healthz")[1]["reasons"][0]
    with urllib.request.urlopen(server.facts["http"] + "/metrics", timeout=60) as answer:
        metrics = answer.read().decode()
    assert "tianzhou_store_broken 1.0" in metrics
    assert 'tianzhou_alarms{kind="store_broken"} 1.0' in metrics
    assert server.process.poll() is None
    server.kill()


def test_tianzhou_command_runs_with_this_python() -> None:
    assert Path(TIANZHOU).parent == Path(sys.executable).parent
