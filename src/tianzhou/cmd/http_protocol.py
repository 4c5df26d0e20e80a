"""uvicorn on a loop that runs already, with limits for requests that come slowly or are too large.

Loaded when the broker serves, because it brings an HTTP server with it.
"""

import asyncio
from typing import TYPE_CHECKING, Any, Final

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

if TYPE_CHECKING:
    from starlette.types import ASGIApp

HEAD_S: Final = 10.0
"""From the first byte of a request, or from the connection, to the end of its headers."""
HEAD_BYTES_MAX: Final = 16 * 1024
KEEP_ALIVE_S: Final = 15
STOP_S: Final = 1


def server_of(app: "ASGIApp", *, connections_max: int) -> uvicorn.Server:
    """Ready for `startup` and `shutdown`; signals and the loop stay with whoever has them."""
    config = uvicorn.Config(
        app, http=PatientProtocol, ws="none", lifespan="off", log_config=None, access_log=False,
        server_header=False, date_header=False, proxy_headers=False,
        limit_concurrency=connections_max, timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=STOP_S, h11_max_incomplete_event_size=4 * HEAD_BYTES_MAX,
    )  # fmt: skip
    config.load()
    server = uvicorn.Server(config)
    server.lifespan = config.lifespan_class(config)
    return server


class PatientProtocol(H11Protocol):
    """Up to a point: headers must come in time, and must not be endless."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._deadline: asyncio.TimerHandle | None = None

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

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)

    def _is_answering(self) -> bool:
        # The type leaves out that there is none before the first request.
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
