"""One connection: bytes in, batches of frames out; pieces in, one write out.

From bytes received to bytes queued for sending there is no `await`. All frames of one read are
handed over together, and everything that was queued meanwhile leaves in one write.
"""

import asyncio
from typing import Any, Final, Protocol, cast

from tianzhou.base.errors import ProtocolError
from tianzhou.base.kinds import Bytes
from tianzhou.net.exchange import OnAnswer
from tianzhou.record.ids import Host, encode_host
from tianzhou.wire.connection import Connection
from tianzhou.wire.errors import TooManyPending
from tianzhou.wire.frame import FrameBatch, FrameBuffer
from tianzhou.wire.header import Header

WRITE_BYTES_MAX: Final = 4 * 1024 * 1024
"""A peer that does not read is not read from either once this much waits for it."""

SHARED_CAPACITY: Final = 256 * 1024
"""What one read takes. All connections of a server read into the same buffer: whole frames are
handled before the next read, and only the beginning of one is kept by its connection."""


class Service(Protocol):
    """What a server does with its connections."""

    def opened(self, link: "Link") -> None: ...
    def received(self, link: "Link", batch: FrameBatch) -> None:
        """Every whole frame of one read. ProtocolError closes the connection."""
        ...

    def closed(self, link: "Link") -> None: ...


class Link(asyncio.BufferedProtocol):
    """Owner: the event loop."""

    __slots__ = (
        "_asked", "_loop", "_out", "_own", "_peername", "_remote_host", "_service", "_shared",
        "_transport", "_writing", "blocked_since", "heard_at", "partial_since", "session",
    )  # fmt: skip

    def __init__(
        self, service: Service, loop: asyncio.AbstractEventLoop, shared: FrameBuffer
    ) -> None:
        self._service = service
        self._loop = loop
        self._shared = shared
        self._own: FrameBuffer | None = None
        """Holds the beginning of a frame, while there is one."""
        self._transport: asyncio.Transport | None = None
        self._out: list[Bytes] = []
        self._writing = False
        self._asked: Connection[OnAnswer] | None = None
        self.heard_at = loop.time()
        self.partial_since: float | None = None
        """When a frame began that is not whole yet."""
        self.blocked_since: float | None = None
        """Since when the peer has not read what waits for it."""
        self.session: object | None = None
        """What the service remembers of this connection."""

    # The event loop calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # servers make no other kind
        self._transport.set_write_buffer_limits(WRITE_BYTES_MAX)
        self._peername = transport.get_extra_info("peername")
        self._remote_host = encode_host(Host(*self._peername[:2])) if self._peername else bytes(8)
        self._service.opened(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        return (self._own or self._shared).writable()

    def buffer_updated(self, nbytes: int) -> None:
        self.heard_at = self._loop.time()
        buffer = self._own or self._shared
        buffer.wrote(nbytes)
        # What is queued while handling leaves in one write at the end.
        self._writing = True
        try:
            batch = buffer.take()
            if batch.count:
                self._service.received(self, batch)
            if buffer.broken is not None:
                raise buffer.broken
        except ProtocolError:
            buffer.reset()
            self._flush()
            self.close()
        finally:
            self._writing = False
            self._flush()
        self._keep_rest(buffer)

    def _keep_rest(self, buffer: FrameBuffer) -> None:
        """A frame that has begun stays with this connection; otherwise nothing does."""
        if buffer is self._shared:
            self._own = buffer.hand_over()
        elif not buffer.waiting_bytes:
            self._own = None
        if self._own is None:
            self.partial_since = None
        elif self.partial_since is None:
            self.partial_since = self.heard_at

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        self.blocked_since = self._loop.time()
        if self._transport is not None:
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        self.blocked_since = None
        if self._transport is not None:
            self._transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        asked, self._asked = self._asked, None
        if asked is not None:
            for on_answer in asked.close():
                on_answer(None, b"")
        self._service.closed(self)

    # What handlers use

    @property
    def is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    @property
    def remote(self) -> str:
        return "{}:{}".format(*self._peername[:2]) if self._peername else "unknown:0"

    @property
    def remote_host(self) -> bytes:
        return self._remote_host

    @property
    def local(self) -> str:
        name = self.extra("sockname")
        return "{}:{}".format(*name[:2]) if name else "unknown:0"

    def extra(self, name: str) -> Any:
        """What the transport knows of itself, such as its socket."""
        return self._transport.get_extra_info(name) if self._transport else None

    def send(self, data: Bytes) -> None:
        self._out.append(data)
        if not self._writing:
            self._flush()

    def send_all(self, pieces: list[Bytes]) -> None:
        self._out += pieces
        if not self._writing:
            self._flush()

    def tell(self, code: int, ext: dict[str, str], body: bytes = b"") -> None:
        self.send(self._questions().oneway(code, ext, body_size=len(body)) + body)

    def ask(
        self, code: int, ext: dict[str, str], body: bytes, on_answer: OnAnswer, timeout_s: float
    ) -> None:
        if not self.is_open:
            on_answer(None, b"")
            return
        deadline = self._loop.time() + timeout_s
        try:
            head = self._questions().request(
                code, ext, token=on_answer, deadline=deadline, body_size=len(body)
            )
        except TooManyPending:
            on_answer(None, b"")
            return
        self.send(head + body)

    def answered(self, header: Header, body: bytes) -> None:
        """The peer answered a question of ours, or one that nobody asked."""
        on_answer = self._questions().answered(header)
        if on_answer is not None:
            on_answer(header, body)

    def expire(self, now: float) -> None:
        """Let go of questions whose time is up."""
        if self._asked is not None:
            for on_answer in self._asked.expire(now):
                on_answer(None, b"")

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Drop the connection with whatever waits on it."""
        if self._transport is not None:
            self._transport.abort()

    def _questions(self) -> Connection[OnAnswer]:
        if self._asked is None:
            self._asked = Connection()
        return self._asked

    def _flush(self) -> None:
        out, self._out = self._out, []
        if out and self._transport is not None:
            # One write: a join of small pieces is cheaper than a system call each.
            self._transport.write(out[0] if len(out) == 1 else b"".join(out))
