"""The router: finds the handler, answers whatever it does, and says what went wrong."""

import logging
from collections.abc import Callable
from typing import cast

import pytest
from fake_transport import Wired

from tianzhou.base.errors import UsageError
from tianzhou.base.steps import Steps
from tianzhou.net.router import REMARK_CHARS_MAX, UNFINISHED_MAX, RequestRouter
from tianzhou.net.rpc import Reply, Request, RequestRejected
from tianzhou.net.server_connection import ServerConnection
from tianzhou.wire._generated_codes import ResponseCode
from tianzhou.wire.codec import ONEWAY_FLAG, RESPONSE_FLAG, Header, decode_headers, encode_command
from tianzhou.wire.frame import FrameBatch, FrameBuffer


class Front:
    """A service that is nothing but a router."""

    def __init__(self) -> None:
        self.router = RequestRouter(
            {1: _reply, 2: _refuse, 3: _misuse, 4: _break, 5: lambda _: None, 6: _long}
        )

    def opened(self, connection: ServerConnection) -> None:
        pass

    def received(self, connection: ServerConnection, batch: FrameBatch) -> None:
        for index in range(batch.count):
            self.router.frame(connection, batch, index)

    def closed(self, connection: ServerConnection) -> None:
        pass


def _reply(request: Request) -> Reply:
    return Reply(0, {"got": request.body.decode()}, b"body")


def _refuse(_: Request) -> Reply:
    raise RequestRejected(16, "not you")


def _misuse(_: Request) -> Reply:
    raise UsageError("not so")


def _break(_: Request) -> Reply:
    raise ZeroDivisionError("oh")


def _long(_: Request) -> Reply:
    raise UsageError(10_000 * "x")


class OneCode:
    """A gate that decides about code 1, and keeps its replies."""

    codes = frozenset({1})

    def __init__(self) -> None:
        self.asked: list[int] = []

    def check(self, request: Request) -> None:
        self.asked.append(request.header.code)

    def holds(self, request: Request, reply: Reply) -> bool:
        return True


def answer(front: Front, code: int, *, flag: int = 0, body: bytes = b"") -> Header | None:
    wired = Wired(front)
    wired.arrives(encode_command(Header(code=code, opaque=7, flag=flag), body))
    data = wired.transport.take()
    if not data:
        return None
    buffer = FrameBuffer()
    buffer.writable()[: len(data)] = data
    buffer.wrote(len(data))
    (header,) = decode_headers(buffer.take())
    assert header.opaque == 7
    assert header.is_response
    return header


@pytest.mark.parametrize(
    ("code", "expected", "remark"),
    [(2, 16, "not you"), (3, 1, "not so"), (99, 3, "99"), (6, 1, REMARK_CHARS_MAX * "x")],
)
def test_router_reports_errors_in_the_response(code: int, expected: int, remark: str) -> None:
    found = answer(Front(), code)
    assert found is not None
    assert found.code == expected
    assert remark in cast("str", found.remark)


def test_router_response_has_fields_and_body() -> None:
    found = answer(Front(), 1, body=b"hello")
    assert found is not None
    assert found.ext == {"got": "hello"}


def test_router_unexpected_exception_is_logged_counted_and_reported(
    caplog: pytest.LogCaptureFixture,
) -> None:
    front = Front()
    with caplog.at_level(logging.ERROR):
        found = answer(front, 4)
    assert found is not None
    assert (found.code, found.remark) == (1, "ZeroDivisionError: oh")
    assert front.router.failed_count == 1
    assert "request.failed" in caplog.text


@pytest.mark.parametrize("code", [1, 2, 3, 99])
def test_router_oneway_request_gets_no_response(code: int) -> None:
    assert answer(Front(), code, flag=ONEWAY_FLAG) is None


def test_router_returns_nothing_for_deferred_requests_and_responses() -> None:
    assert answer(Front(), 5) is None
    assert answer(Front(), 0, flag=RESPONSE_FLAG) is None


# Steps


class Rounds(list[Callable[[], None]]):
    """A loop that does one thing in each round."""

    def run(self) -> int:
        """Until nothing is left to do; how many rounds that took."""
        count = 0
        while self:
            self.pop(0)()
            count += 1
        return count


def _in_steps(request: Request) -> Steps[Reply]:
    for left in range(int(request.body), 0, -1):
        if left == 13:
            raise RequestRejected(16, "not so far")
        yield
    return Reply(0, {"got": request.body.decode()})


def stepping() -> tuple[Front, Rounds, Wired]:
    front, rounds = Front(), Rounds()
    front.router = RequestRouter({1: _in_steps})
    front.router.run_later = rounds.append
    return front, rounds, Wired(front)


def asked(wired: Wired, *bodies: bytes) -> None:
    for opaque, body in enumerate(bodies):
        wired.arrives(encode_command(Header(code=1, opaque=opaque), body))


def responses(wired: Wired) -> list[tuple[int, int]]:
    """Which request, and the code of its response, in the order in which they left."""
    buffer = FrameBuffer(1 << 16)
    data = wired.transport.take()
    buffer.writable()[: len(data)] = data
    buffer.wrote(len(data))
    return [(header.opaque, header.code) for header in decode_headers(buffer.take())]


def test_router_runs_one_step_of_a_request_per_round() -> None:
    _, rounds, wired = stepping()
    asked(wired, b"5")
    assert responses(wired) == []
    assert rounds.run() == 5
    assert responses(wired) == [(0, 0)]


def test_router_interleaves_stepwise_requests() -> None:
    _, rounds, wired = stepping()
    asked(wired, b"9", b"1", b"0")
    assert responses(wired) == [(2, 0)], "it had nothing to wait for"
    assert rounds.run() == 10, "one step in a round, whosever it is"
    assert responses(wired) == [(1, 0), (0, 0)]


def test_router_reports_the_failure_of_a_later_step() -> None:
    _, rounds, wired = stepping()
    asked(wired, b"15")
    rounds.run()
    assert responses(wired) == [(0, 16)]


def test_router_rejects_stepwise_requests_beyond_the_limit() -> None:
    _, rounds, wired = stepping()
    asked(wired, *[b"2"] * (UNFINISHED_MAX + 1))
    assert responses(wired) == [(UNFINISHED_MAX, ResponseCode.SYSTEM_BUSY)]
    rounds.run()
    assert len(responses(wired)) == UNFINISHED_MAX


def test_router_without_a_loop_runs_all_steps_at_once() -> None:
    front = Front()
    front.router = RequestRouter({1: _in_steps})
    found = answer(front, 1, body=b"2000")
    assert found is not None


def test_gate_is_asked_about_its_codes_alone() -> None:
    front, gate = Front(), OneCode()
    front.router = RequestRouter({1: _reply, 2: _reply}, gate)
    assert answer(front, 1) is None
    assert answer(front, 2) is not None
    assert gate.asked == [1]
