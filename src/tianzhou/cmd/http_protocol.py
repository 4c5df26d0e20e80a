"""uvicorn on a running loop, behind Tianzhou's acceptor, with limits for slow peers.

A connection is proven by its first request and then takes one of the slots for pages. When all of
these are taken, health requests are still served in the slots reserved for unproven connections: a
busy dashboard must not look like a dead broker to an orchestrator.

Imported only once the broker serves, because it imports an HTTP server.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from tianzhou.net.admission import Slot

if TYPE_CHECKING:
    from starlette.types import ASGIApp

HEAD_S: Final = 10.0
"""From the first byte of a request, or from the connection, to the end of its headers."""
HEAD_BYTES_MAX: Final = 16 * 1024
KEEP_ALIVE_S: Final = 15
STOP_S: Final = 1
UNREAD_S: Final = 30.0
"""A peer that does not read its response for this long is disconnected."""
HEALTH_PATHS: Final = ("/healthz", "/readyz")
_CLOSE: Final = (b"connection", b"close")


def server_of(app: "ASGIApp") -> uvicorn.Server:
    """A server for `startup` and `shutdown`, which handles neither signals nor the loop."""
    config = uvicorn.Config(
        app,
        http=PatientProtocol,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        date_header=False,
        proxy_headers=False,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=STOP_S,
        h11_max_incomplete_event_size=4 * HEAD_BYTES_MAX,
    )
    config.load()
    server = uvicorn.Server(config)
    server.lifespan = config.lifespan_class(config)
    return server


class PatientProtocol(H11Protocol):
    """Limits the time for headers and their size."""

    def __init__(self, server: uvicorn.Server, slot: Slot) -> None:
        super().__init__(server.config, server.server_state, server.lifespan.state)
        self._slot = slot
        self._pages = self.app
        self.app = self._answer
        self._deadline: asyncio.TimerHandle | None = None
        self._unread: asyncio.TimerHandle | None = None

    async def _answer(self, scope: Any, receive: Any, send: Any) -> None:
        """The ASGI application: pages while there are slots, health always."""
        if self._slot.prove():
            await self._pages(scope, receive, send)
        elif scope["path"] in HEALTH_PATHS:
            await self._pages(scope, receive, _closing(send))
        else:
            await _refuse_page(send)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._wait_for_head()

    def data_received(self, data: bytes) -> None:
        if self._deadline is None and not self._is_answering():
            self._wait_for_head()
        super().data_received(data)
        if self._is_answering():
            self._stop_waiting()
        elif len(self.conn.trailing_data[0]) > HEAD_BYTES_MAX:
            self._refuse(b"431 Request Header Fields Too Large")

    def on_response_complete(self) -> None:
        self._stop_waiting()
        super().on_response_complete()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._unread = self.loop.call_later(UNREAD_S, self.transport.abort)

    def resume_writing(self) -> None:
        self._stop_unread()
        super().resume_writing()

    def _stop_unread(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        self._stop_unread()
        self._slot.release()
        super().connection_lost(exc)

    def _is_answering(self) -> bool:
        # Despite its type, `cycle` is None before the first request.
        return bool(self.cycle) and not self.cycle.response_complete

    def _wait_for_head(self) -> None:
        self._deadline = self.loop.call_later(HEAD_S, self._refuse, b"408 Request Timeout")

    def _stop_waiting(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _refuse(self, status: bytes) -> None:
        self._stop_waiting()
        if not self.transport.is_closing():
            head = b"HTTP/1.1 %s\r\nConnection: close\r\nContent-Length: 0\r\n\r\n" % status
            self.transport.write(head)
            self.transport.close()


def _closing(send: Callable[[Any], Awaitable[None]]) -> Callable[[Any], Awaitable[None]]:
    """Close the connection after this response, so that the next probe finds a slot."""

    async def closing(message: Any) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message.get("headers", ()), _CLOSE]}
        await send(message)

    return closing


async def _refuse_page(send: Callable[[Any], Awaitable[None]]) -> None:
    body = b"all connections for pages are in use; retry in a few seconds\n"
    headers = [
        (b"content-type", b"text/plain; charset=utf-8"),
        (b"content-length", str(len(body)).encode()),
        (b"retry-after", b"5"),
        _CLOSE,
    ]
    await send({"type": "http.response.start", "status": 503, "headers": headers})
    await send({"type": "http.response.body", "body": body})
