import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tianzhou.testing.kit.server_process import ProcessFailed, ServerProcess, spare_ports

SERVES = """
import json, os, pathlib, signal, sys
signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
ready = pathlib.Path(sys.argv[-1])
print("serving", flush=True)
fresh = ready.with_suffix(".new")
fresh.write_text(json.dumps({"pid": os.getpid()}))
fresh.replace(ready)
while True:
    signal.pause()
"""
IGNORES_TERM = SERVES.replace("lambda *_: os._exit(0)", "signal.SIG_IGN")
FAILS = "import sys; sys.exit('no disk')"

Started = Callable[[str], ServerProcess]


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Started]:
    servers: list[ServerProcess] = []

    def start(code: str) -> ServerProcess:
        server = ServerProcess("one", [sys.executable, "-c", code], tmp_path / "one")
        servers.append(server)
        server.start()
        return server

    yield start
    for server in servers:
        server.end()


def test_server_that_is_ready_returns_its_ready_file(started: Started) -> None:
    server = started(SERVES)
    assert server.wait_ready() == {"pid": server.pid}
    assert server.ready_after_s > 0
    assert server.stop() == 0
    assert not server.is_alive


def test_server_started_again_appends_to_its_log(started: Started) -> None:
    server = started(SERVES)
    server.wait_ready()
    server.kill()
    server.start()
    server.wait_ready()
    assert server.life == "one:2"
    assert server.log() == "serving\n" * 2


def test_server_that_ends_before_it_is_ready_fails_with_its_log(started: Started) -> None:
    with pytest.raises(ProcessFailed, match="one ended with 1: no disk"):
        started(FAILS).wait_ready()


def test_server_that_is_not_ready_in_time_is_killed(started: Started) -> None:
    server = started("import signal; signal.pause()")
    with pytest.raises(ProcessFailed, match=r"one is not ready after 0\.1 s"):
        server.wait_ready(0.1)
    assert not server.is_alive


def test_server_that_ignores_the_signal_is_killed_when_stopped(started: Started) -> None:
    server = started(IGNORES_TERM)
    server.wait_ready()
    with pytest.raises(ProcessFailed, match=r"one did not stop within 0\.1 s: serving"):
        server.stop(within_s=0.1)
    assert not server.is_alive


def test_stopping_a_dead_server_fails(started: Started) -> None:
    server = started(SERVES)
    server.wait_ready()
    server.kill()
    with pytest.raises(ProcessFailed, match="one is not running"):
        server.stop()


def test_spare_ports_are_below_the_ephemeral_range() -> None:
    assert 20_000 <= spare_ports(3) < 32_000
