"""The HTTP server of a real process: where it is, when it is not, and what it costs."""

import json
import re
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from clients import server_process
from clients.server_process import TIANZHOU, ServerProcess
from clients.waiting import wait_until
from dashboard.site import ask, token_of

pytestmark = pytest.mark.slow

RSS_BYTES_MAX = 80_000_000
PORTS = ("--nameserver-port", "0", "--broker-port", "0")

Start = Callable[..., ServerProcess]


@pytest.fixture
def up(tmp_path: Path) -> Iterator[Start]:
    started: list[ServerProcess] = []

    def start(*options: str) -> ServerProcess:
        started.append(server_process.up(tmp_path / "server", *options))
        return started[-1]

    yield start
    for server in started:
        server.end()


def port_of(server: ServerProcess) -> int:
    return int(server.facts["http"].rpartition(":")[2])


def test_dashboard_address_is_in_the_ready_file_and_stop_is_clean(up: Start) -> None:
    server = up("--http-port", "0")
    # Perhaps before anything of it is loaded.
    assert server.stop(within_s=server_process.STOP_S) == 0
    server = up("--http-port", "0")
    port = port_of(server)
    assert server.facts["http"] == f"http://127.0.0.1:{port}"
    assert "broker-a" in ask(port, "/").text
    assert ask(port, "/healthz").status == 200
    # A browser that keeps its connection must not hold it up.
    with socket.create_connection(("127.0.0.1", port)):
        assert server.stop() == 0
    assert "Traceback" not in server.log()


def test_dashboard_can_be_disabled(up: Start) -> None:
    assert "http" not in up("--no-http").facts


def test_dashboard_port_in_use_stops_the_start(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        done = subprocess.run(
            [TIANZHOU, "up", *PORTS, "--data", "kept", "--http-port", port],
            capture_output=True,
            text=True,
            timeout=300,
            cwd=tmp_path,
        )
    assert done.returncode == 2
    assert port in done.stderr
    assert "--no-http" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "kept" / "abort").exists()


def test_broker_that_cannot_serve_its_dashboard_stops_cleanly(
    tmp_path: Path,
) -> None:
    """No NameServer reports it as missing afterwards, and its store needs no recovery."""
    names = server_process.run(["nameserver", "-p", "0"], tmp_path / "names")
    try:
        arguments = [TIANZHOU, "broker", "-n", names.nameserver, "-p", "0", "--data", "kept"]
        with socket.create_server(("127.0.0.1", 0)) as taken:
            done = subprocess.run(
                [*arguments, "--http-port", str(taken.getsockname()[1])],
                capture_output=True,
                text=True,
                timeout=300,
                cwd=tmp_path,
            )
        assert (done.returncode, "--no-http" in done.stderr) == (2, True)
        assert not (tmp_path / "kept" / "abort").exists()
        assert "broker.unregistered" in names.log()
        assert "broker.disconnected" not in names.log()
    finally:
        names.end()


def test_dashboard_uses_the_next_port_if_the_default_is_in_use(up: Start) -> None:
    """By this test, or by another program."""
    try:
        taken: socket.socket | None = socket.create_server(("127.0.0.1", 8080))
    except OSError:
        taken = None
    try:
        server = up()
        port = int(server.facts["http"].rpartition(":")[2])
        assert 8080 < port < 8100
        said = f"tianzhou: port 8080 on 127.0.0.1 is in use; the dashboard is on port {port}"
        assert said in server.log().splitlines()
        assert f"dashboard {server.facts['http']}; press Ctrl-C to stop" in server.log()
        assert ask(port, "/healthz").status == 200
    finally:
        if taken is not None:
            taken.close()


def test_s40_password_is_printed_once_and_stored_as_a_hash(up: Start) -> None:
    server = up("--http-port", "0", "--http-host", "0.0.0.0")
    lines = [line for line in server.log().splitlines() if "dashboard password" in line]
    assert len(lines) == 1
    password = lines[0].rpartition(" ")[2]
    kept = Path(server.facts["data"]) / "dashboard-password"
    assert kept.stat().st_mode & 0o777 == 0o600
    assert password not in kept.read_text()
    assert server.stop() == 0
    server = up("--http-port", "0", "--http-host", "0.0.0.0")
    assert server.log().count("dashboard password") == 1
    port = port_of(server)
    assert ask(port, "/").status == 303
    token = token_of(ask(port, "/login").text)
    assert ask(port, "/login", form={"token": token, "password": password}).status == 303


def test_dashboard_is_served_by_a_separate_broker(tmp_path: Path) -> None:
    names = server_process.run(["nameserver", "-p", "0"], tmp_path / "names")
    arguments = ["broker", "-n", names.nameserver, "-p", "0", "--data", "kept", "--http-port", "0"]
    broker = server_process.run(arguments, tmp_path / "broker")
    try:
        assert broker.facts["brokerName"] in ask(port_of(broker), "/").text
    finally:
        broker.end()
        names.end()


def test_dashboard_uses_little_memory(
    up: Start, record_property: Callable[[str, object], None]
) -> None:
    server = up("--http-port", "0")
    port = port_of(server)

    def rss() -> int:
        text = Path(f"/proc/{server.process.pid}/status").read_text()
        found = re.search(r"^VmRSS:\s+(\d+) kB$", text, re.MULTILINE)
        assert found is not None
        return int(found[1]) * 1024

    before = rss()
    wait_until(lambda: ask(port, "/healthz").status == 200, within_s=20, what="it serves")
    loaded = rss()
    for path in ("/", "/topics", "/groups", "/messages", "/metrics"):
        assert ask(port, path).status == 200
    used = rss()
    sys.stdout.write(
        f"{before / 1e6:.0f} MB ready, {loaded / 1e6:.0f} loaded, {used / 1e6:.0f} used\n"
    )
    record_property("rss_bytes_used", used)
    assert used < RSS_BYTES_MAX, json.dumps({"before": before, "loaded": loaded, "used": used})
