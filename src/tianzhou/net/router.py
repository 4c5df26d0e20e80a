"""The router: dispatches requests to the handlers of their codes and sends the responses.

The only place that catches unexpected exceptions: the peer gets an error response, the log gets the
traceback, and other connections are not affected. Requests of the hot path bypass it.

A handler with much work returns steps; the router runs one of them in each round of the loop, so
that other connections are served in between.
"""

import logging
from collections import deque
from collections.abc import Callable, Collection, Generator, Mapping
from typing import Final, Protocol, TypeVar

from tianzhou.base.errors import TianzhouError
from tianzhou.base.steps import Steps, finish
from tianzhou.net.rpc import Handler, Reply, Request, RequestRejected
from tianzhou.net.server_connection import ServerConnection
from tianzhou.wire._generated_codes import ResponseCode
from tianzhou.wire.codec import Header, decode_header, encode_command, response_to
from tianzhou.wire.frame import FrameBatch

log: Final = logging.getLogger("tianzhou.net")

T = TypeVar("T")

UNFINISHED_MAX: Final = 64
"""Requests that may be processed in steps at a time. Each holds its partial result in memory."""
REMARK_CHARS_MAX: Final = 4096
"""An exception's text goes into a header; it must not fill it."""
OUT_OF_MEMORY: Final = "the server has no memory for this request; request less, or retry later"


class Gate(Protocol):
    """Decides where a request may be executed, and when its response may be sent."""

    @property
    def codes(self) -> Collection[int]:
        """The codes that the gate is asked about; all others pass."""
        ...

    def check(self, request: Request) -> None:
        """Raise RequestRejected if this server must not execute the request."""
        ...

    def holds(self, request: Request, reply: Reply) -> bool:
        """Whether the gate holds back a successful reply, to send it or another one later."""
        ...


class _OpenGate:
    """Lets everything pass."""

    codes: Final = frozenset[int]()

    def check(self, request: Request) -> None:
        pass

    def holds(self, request: Request, reply: Reply) -> bool:
        return False


RunLater = Callable[[Callable[[], None]], object]


class RequestRouter:
    def __init__(
        self,
        handlers: Mapping[int, Handler],
        gate: Gate | None = None,
        *,
        refused: Callable[[int], None] = lambda _code: None,
        run_later: RunLater | None = None,
    ) -> None:
        """`refused` is called with the code of every response that is an error. `run_later`
        schedules a call in a later round of the loop; without it all steps of a request run at
        once."""
        self._handlers = handlers
        self._gate = gate or _OpenGate()
        self._gated_codes = frozenset(self._gate.codes)
        self._refused = refused
        self.run_later = run_later
        self._unfinished: deque[tuple[Request, Steps[Reply]]] = deque()
        self.failed_count = 0
        """Requests that ended in an unexpected exception."""

    @property
    def codes(self) -> frozenset[int]:
        """Requests that have a handler, rejected ones included."""
        return frozenset(self._handlers)

    def frame(self, connection: ServerConnection, batch: FrameBatch, index: int) -> None:
        """Handle one frame of a batch. Raises ProtocolError if the header is unreadable."""
        header = decode_header(batch.header(index), batch.serialise_types[index])
        body = bytes(batch.body(index))
        if header.is_response:
            connection.answered(header, body)
        else:
            self.request(Request(header, body, connection))

    def request(self, request: Request) -> None:
        made = self._guarded(request, lambda: self._begin(request))
        if isinstance(made, Generator):
            self._begin_steps(request, made)
        elif made is not None:
            self._respond(request, made)

    def _respond(self, request: Request, reply: Reply) -> None:
        if reply.code != ResponseCode.SUCCESS:
            self._refused(reply.code)
        elif request.header.code in self._gated_codes and self._gate.holds(request, reply):
            return
        if not request.header.is_oneway:
            request.peer.send(encode_reply(request.header, reply))

    def _begin(self, request: Request) -> Reply | Steps[Reply] | None:
        code = request.header.code
        handler = self._handlers.get(code)
        if handler is None:
            return Reply(
                ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
                remark=f" request type {code} not supported",
            )
        if code in self._gated_codes:
            self._gate.check(request)
        return handler(request)

    def _guarded(self, request: Request, step: Callable[[], T]) -> T | Reply:
        """The result of the step, or an error response."""
        try:
            return step()
        except RequestRejected as refused:
            return Reply(refused.code, refused.ext, remark=refused.remark)
        except TianzhouError as error:
            return Reply(ResponseCode.SYSTEM_ERROR, remark=str(error)[:REMARK_CHARS_MAX])
        except Exception as error:
            self.failed_count += 1
            code = request.header.code
            log.exception("request.failed", extra={"code": code, "peer": request.peer.remote})
            is_short = isinstance(error, MemoryError)
            text = OUT_OF_MEMORY if is_short else f"{type(error).__name__}: {error}"
            return Reply(ResponseCode.SYSTEM_ERROR, remark=text[:REMARK_CHARS_MAX])

    # Responses that take long to work out

    def _begin_steps(self, request: Request, steps: Steps[Reply]) -> None:
        work = finish if self.run_later is None else _advanced
        reply = self._guarded(request, lambda: work(steps))
        if reply is None and len(self._unfinished) >= UNFINISHED_MAX:
            reply = Reply(
                ResponseCode.SYSTEM_BUSY,
                remark=f"{UNFINISHED_MAX} long requests are already being processed; retry later",
            )
        if reply is not None:
            self._respond(request, reply)
            return
        self._unfinished.append((request, steps))
        if len(self._unfinished) == 1:
            self._step_later()

    def _step_later(self) -> None:
        assert self.run_later is not None
        self.run_later(self._step)

    def _step(self) -> None:
        """Run one step of one request: however many are pending, other clients wait for one step
        only."""
        request, steps = self._unfinished.popleft()
        reply = self._guarded(request, lambda: _advanced(steps))
        if reply is None:
            self._unfinished.append((request, steps))
        else:
            self._respond(request, reply)
        if self._unfinished:
            self._step_later()


def _advanced(steps: Steps[Reply]) -> Reply | None:
    """Run one step; returns the response if it was the last."""
    try:
        next(steps)
    except StopIteration as end:
        return end.value
    return None


def encode_reply(request: Header, reply: Reply) -> bytes:
    header = response_to(request, reply.code, remark=reply.remark, ext=reply.ext)
    return encode_command(header, reply.body)
