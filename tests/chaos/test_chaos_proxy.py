"""The chaos proxy: what it holds back, what it forwards, and what happens after it heals."""

import random
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from clients.waiting import wait_until
from tianzhou.testing.chaos.proxy import Link, Proxies, Toward
from tianzhou.testing.kit.stopwatch import Stopwatch

RECEIVE_S = 60.0
SILENT_S = 0.15
"""No byte arrives for this long; a working link needs a thousandth of it."""


class Echo:
    """Echoes what it receives; `heard` collects all of it."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.heard = bytearray()
        self.ended = 0
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                caller, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._talk, args=(caller,), daemon=True).start()

    def _talk(self, caller: socket.socket) -> None:
        with caller:
            try:
                while data := caller.recv(65536):
                    self.heard += data
                    caller.sendall(data)
            except OSError:
                pass
            self.ended += 1

    def close(self) -> None:
        self._listener.close()


@pytest.fixture
def echo() -> Iterator[Echo]:
    made = Echo()
    yield made
    made.close()


@pytest.fixture
def link(echo: Echo) -> Iterator[Link]:
    with Proxies() as proxies:
        yield proxies.link("test", echo.address)


def call(link: Link) -> socket.socket:
    host, _, port = link.address.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=RECEIVE_S)


def receive(caller: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        more = caller.recv(count - len(data))
        assert more, f"closed after {data!r}"
        data += more
    return data


def is_silent(caller: socket.socket) -> bool:
    caller.settimeout(SILENT_S)
    try:
        caller.recv(1)
    except TimeoutError:
        return True
    finally:
        caller.settimeout(RECEIVE_S)
    return False


def test_proxy_forwards_bytes_both_ways(link: Link) -> None:
    sent = random.Random(1).randbytes(3_000_000)
    with call(link) as caller:
        writing = threading.Thread(target=caller.sendall, args=(sent,))
        writing.start()
        assert receive(caller, len(sent)) == sent
        writing.join()
        assert (link.accepted, link.connections) == (1, 1)
    assert link.passed(Toward.TARGET) == link.passed(Toward.CALLER) == len(sent)
    wait_until(lambda: not link.connections, within_s=5, what="the connection is closed")


@pytest.mark.slow
def test_cut_toward_the_target_holds_bytes_until_it_heals(link: Link, echo: Echo) -> None:
    with call(link) as caller:
        caller.sendall(b"one")
        assert receive(caller, 3) == b"one"
        link.cut(Toward.TARGET)
        caller.sendall(b"two")
        assert is_silent(caller)
        assert bytes(echo.heard) == b"one"
        link.heal()
        assert receive(caller, 3) == b"two"


@pytest.mark.slow
def test_cut_toward_the_caller_lets_requests_through(link: Link, echo: Echo) -> None:
    with call(link) as caller:
        link.cut(Toward.CALLER)
        caller.sendall(b"one")
        wait_until(lambda: bytes(echo.heard) == b"one", within_s=5, what="the target received it")
        assert is_silent(caller)
        link.heal()
        assert receive(caller, 3) == b"one"


@pytest.mark.slow
def test_cut_link_hides_a_closed_connection(link: Link, echo: Echo) -> None:
    with call(link) as caller:
        caller.sendall(b"one")
        receive(caller, 3)
        link.cut()
    with pytest.raises(AssertionError, match="still not"):
        wait_until(lambda: echo.ended, within_s=SILENT_S, what="the target sees the end")
    link.heal()
    wait_until(lambda: echo.ended, within_s=5, what="the target sees the end")


@pytest.mark.slow
def test_frozen_link_stops_within_a_stream(link: Link, echo: Echo) -> None:
    with call(link) as caller:
        link.freeze(Toward.TARGET, 5)
        caller.sendall(b"0123456789")
        assert receive(caller, 5) == b"01234"
        assert is_silent(caller)
        link.heal()
        assert receive(caller, 5) == b"56789"
    assert bytes(echo.heard) == b"0123456789"


@pytest.mark.slow
def test_slow_link_adds_latency_without_limiting_throughput(link: Link) -> None:
    link.slow(delay_s=0.1)
    with call(link) as caller:
        began, watch = time.monotonic(), Stopwatch()
        for _ in range(20):
            caller.sendall(b"x" * 100)
        receive(caller, 2_000)
        assert time.monotonic() - began >= 0.2
        assert watch.seconds() < 1.0, "20 pieces, all delayed by the same time"


@pytest.mark.slow
def test_narrow_link_limits_throughput(link: Link) -> None:
    link.slow(bytes_per_s=100_000)
    with call(link) as caller:
        began = time.monotonic()
        caller.sendall(b"x" * 20_000)
        receive(caller, 20_000)
        assert time.monotonic() - began >= 0.2


def test_reset_breaks_both_ends_and_allows_new_connections(link: Link, echo: Echo) -> None:
    with call(link) as caller:
        caller.sendall(b"one")
        receive(caller, 3)
        assert link.reset() == 1
        with pytest.raises(ConnectionResetError):
            caller.recv(1)
    wait_until(lambda: echo.ended == 1, within_s=5, what="the target sees the end")
    with call(link) as caller:
        caller.sendall(b"two")
        assert receive(caller, 3) == b"two"


def test_impostor_responds_with_garbage(link: Link, echo: Echo) -> None:
    link.pretend(b"\xff" * 9)
    with call(link) as caller:
        caller.sendall(b"hello")
        assert receive(caller, 9) == b"\xff" * 9
    assert bytes(echo.heard) == b""
    link.heal()
    with call(link) as caller:
        caller.sendall(b"two")
        assert receive(caller, 3) == b"two"


def test_proxy_without_a_listening_target_closes_the_connection(link: Link, echo: Echo) -> None:
    echo.close()
    link.target = "127.0.0.1:1"
    with call(link) as caller:
        assert caller.recv(1) == b""
