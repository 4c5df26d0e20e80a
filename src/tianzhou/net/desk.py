"""The desk: takes requests one at a time, finds the handler of their code, sends the answer.

The one place where an exception that nobody expected is caught: the peer is told, the log gets the
trace, other connections go on. Requests of the hot path do not come here.
"""

import logging
from collections.abc import Callable, Mapping
from typing import Final, Protocol

from tianzhou.base.errors import TianzhouError
from tianzhou.net.exchange import Handler, Refused, Reply, Request
from tianzhou.net.link import Link
from tianzhou.wire._generated_codes import ResponseCode
from tianzhou.wire.codec import decode_header, encode_command
from tianzhou.wire.frame import FrameBatch
from tianzhou.wire.header import Header, response_to

log: Final = logging.getLogger("tianzhou.net")

REMARK_CHARS_MAX: Final = 4096
"""An exception's text goes into a header; it must not fill it."""


class Gate(Protocol):
    """Decides where a request may be executed, and when its response may leave."""

    def check(self, request: Request) -> None:
        """Raise Refused if this server must not execute the request."""
        ...

    def holds(self, request: Request, reply: Reply) -> bool:
        """Whether the gate keeps a successful reply and sends it later, or another one."""
        ...


class _OpenGate:
    """Lets everything pass."""

    def check(self, request: Request) -> None:
        pass

    def holds(self, request: Request, reply: Reply) -> bool:
        return False


class Desk:
    def __init__(
        self,
        handlers: Mapping[int, Handler],
        gate: Gate | None = None,
        *,
        refused: Callable[[int], None] = lambda _code: None,
    ) -> None:
        """`refused` is called with the code of every response that is an error."""
        self._handlers = handlers
        self._gate = gate or _OpenGate()
        self._refused = refused
        self.failed_count = 0
        """Requests that ended in an exception nobody expected."""

    def frame(self, link: Link, batch: FrameBatch, index: int) -> None:
        """Answer one frame of a batch. ProtocolError: the header is unreadable."""
        header = decode_header(batch.header(index), batch.serialise_types[index])
        body = bytes(batch.body(index))
        if header.is_response:
            link.answered(header, body)
        else:
            self.request(Request(header, body, link))

    def request(self, request: Request) -> None:
        reply = self._reply(request)
        if reply is None:
            return
        if reply.code != ResponseCode.SUCCESS:
            self._refused(reply.code)
        elif self._gate.holds(request, reply):
            return
        if not request.header.is_oneway:
            request.peer.send(encode_reply(request.header, reply))

    def _reply(self, request: Request) -> Reply | None:
        code = request.header.code
        handler = self._handlers.get(code)
        if handler is None:
            return Reply(
                ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
                remark=f" request type {code} not supported",
            )
        try:
            self._gate.check(request)
            return handler(request)
        except Refused as refused:
            return Reply(refused.code, refused.ext, remark=refused.remark)
        except TianzhouError as error:
            return Reply(ResponseCode.SYSTEM_ERROR, remark=str(error)[:REMARK_CHARS_MAX])
        except Exception as error:
            self.failed_count += 1
            log.exception("request.failed", extra={"code": code, "peer": request.peer.remote})
            text = f"{type(error).__name__}: {error}"
            return Reply(ResponseCode.SYSTEM_ERROR, remark=text[:REMARK_CHARS_MAX])


def encode_reply(request: Header, reply: Reply) -> bytes:
    header = response_to(request, reply.code, remark=reply.remark, ext=reply.ext)
    return encode_command(header, reply.body)
