"""More connections than the process may open files for: the store keeps its share."""

import http.client
import socket
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from live import Live, Witness, allow_many_files, running, wait_for
from raw_client import request, send_v2

pytestmark = pytest.mark.slow

FLOOD = 1_500
CONNECT_S = 60
LOW = 512
SPARE = 48
"""Descriptors that must stay free for the store while every port is full."""
NEW_TOPICS = 40
"""Each creates at least one new file."""


@pytest.fixture(autouse=True)
def _many_files() -> None:
    if allow_many_files() < 4 * FLOOD:
        pytest.skip("this process may not open enough files")


@contextmanager
def flood(address: str, first_bytes: bytes = b"") -> Generator[list[socket.socket]]:
    """Open and hold connections. Those that the server closes stay open on the client's side."""
    host, _, port = address.rpartition(":")
    with ExitStack() as stack:
        held: list[socket.socket] = []
        for _ in range(FLOOD):
            held.append(stack.enter_context(socket.create_connection((host, int(port)), CONNECT_S)))
            if first_bytes:
                try:
                    held[-1].sendall(first_bytes)
                except ConnectionError:
                    continue  # closed at accept
        yield held


def check_store(live: Live) -> None:
    """Check that the store can still create files."""
    with live.to_broker() as client:
        for number in range(NEW_TOPICS):
            sent = client.ask(310, send_v2(f"Flooded{live.fd_count()}-{number}"), b"x")
            assert sent.code == 0, sent.remark


def free_files(live: Live) -> int:
    return LOW - live.fd_count()


def status_of(address: str, path: str) -> int:
    connection = http.client.HTTPConnection(address.removeprefix("http://"), timeout=60)
    try:
        connection.request("GET", path)
        return connection.getresponse().status
    finally:
        connection.close()


@pytest.mark.parametrize("what", ["silent", "half a frame"])
@pytest.mark.parametrize("port", ["http", "broker", "nameserver"])
def test_s06_flood_of_one_port_leaves_descriptors_for_the_store(
    tmp_path: Path, port: str, what: str
) -> None:
    with running(tmp_path, "--http-port", "0", files=LOW) as live:
        wait_for(lambda: status_of(live.http, "/healthz") == 200)
        witness = Witness(live)
        witness.check()
        address = {
            "http": live.http.removeprefix("http://"),
            "broker": live.broker,
            "nameserver": live.nameserver,
        }[port]
        with flood(address, b"" if what == "silent" else b"\0\0\1\0"):
            assert free_files(live) >= SPARE
            witness.check()
            check_store(live)
            assert status_of(live.http, "/healthz") == 200
            assert status_of(live.http, "/readyz") == 200
            with live.to_nameserver() as client:
                assert client.ask(31_999).code == 3
        witness.check()
        witness.stop()
        assert "Traceback" not in live.log.read_text()


def test_s06_flood_of_proven_connections_leaves_descriptors_for_the_store(tmp_path: Path) -> None:
    """Proven connections are never closed to make room; new ones are closed at accept."""
    with running(tmp_path, "--http-port", "0", files=LOW) as live:
        wait_for(lambda: status_of(live.http, "/healthz") == 200)
        witness = Witness(live)
        witness.check()
        hello = request(31_999)[1]
        with flood(live.broker, hello), flood(live.nameserver, hello):
            assert free_files(live) >= SPARE
            witness.check()
            assert status_of(live.http, "/healthz") == 200
            # A busy server accepts the last connections later.
            wait_for(lambda: "connection.refused" in live.log.read_text())
        wait_for(lambda: free_files(live) > LOW // 2)
        check_store(live)
        witness.check()
        witness.stop()
        assert "Traceback" not in live.log.read_text()


def test_s06_flood_of_all_ports_leaves_descriptors_for_the_store(tmp_path: Path) -> None:
    with running(tmp_path, "--http-port", "0", files=LOW) as live:
        wait_for(lambda: status_of(live.http, "/healthz") == 200)
        witness = Witness(live)
        witness.check()
        http_address = live.http.removeprefix("http://")
        with flood(http_address), flood(live.nameserver), flood(live.broker):
            assert free_files(live) >= SPARE
            check_store(live)
            witness.check()
        witness.stop()


def test_s45_health_is_reported_while_slow_requests_take_every_connection(
    tmp_path: Path,
) -> None:
    with running(tmp_path, "--http-port", "0") as live:
        wait_for(lambda: status_of(live.http, "/healthz") == 200)
        address = live.http.removeprefix("http://")
        page = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n"
        with flood(address, page), flood(address, b"GET / HTTP/1.1\r\nHost: loc"):
            for _ in range(20):
                assert status_of(live.http, "/healthz") == 200
                assert status_of(live.http, "/readyz") == 200
        wait_for(lambda: status_of(live.http, "/") == 200)
