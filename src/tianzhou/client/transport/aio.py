"""One asyncio connection of a client: sends requests, receives responses and the broker's requests.

A request needs no task and no timer: it is some bytes in a list and a number in a table. What is
queued in one iteration of the event loop is written at once, and one timer checks all deadlines.

Unlike a server's connection it never stops reading: if both sides only wrote, they would deadlock.
"""

import asyncio
import math
from collections.abc import Callable
from typing import Final, Protocol, cast

from tianzhou.base.errors import ProtocolError
from tianzhou.base.kinds import Bytes
from tianzhou.client.errors import CallTimeout, ConnectionLost
from tianzhou.client.options import ClientOptions
from tianzhou.net.rpc import OnAnswer, Request
from tianzhou.record.ids import Host, encode_host
from tianzhou.wire.codec import RESPONSE_FLAG, Header, decode_header
from tianzhou.wire.frame import FrameBuffer
from tianzhou.wire.pending import PendingRequests

READ_BYTES: Final = 256 * 1024
"""Size of one read: a pull response, or hundreds of responses to sends."""

WRITE_BYTES_MAX: Final = 4 * 1024 * 1024
"""Unsent bytes beyond which one-way sends wait."""

JOIN_BYTES_MAX: Final = 64 * 1024
"""A longer body is passed to the transport without a copy; shorter pieces are joined."""


class ConnectionOwner(Protocol):
    """What a connection reports to the object that holds it."""

    def requested(self, connection: "Connection", request: Request) -> None:
        """The broker sent a request to this client."""
        ...

    def closed(self, connection: "Connection") -> None: ...


class Deadlines:
    """The deadlines of the requests that wait for a response on one connection, with one timer.

    `on_silent` is called when a request timed out and nothing was received for `silent_s`: the
    peer may have lost power, which TCP detects only after minutes.

    Owner: the event loop.
    Invariant: timer_at is when the timer runs; infinite if there is none
    """

    __slots__ = ("_loop", "_on_silent", "_pending", "_silent_s", "_timer", "timer_at", "waiting_s")

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        pending: PendingRequests[OnAnswer],
        silent_s: float,
        on_silent: Callable[[float], None],
    ) -> None:
        self._loop = loop
        self._pending = pending
        self._silent_s = silent_s
        self._on_silent = on_silent
        self._timer: asyncio.TimerHandle | None = None
        self.timer_at = math.inf
        self.waiting_s: float | None = None
        """Time since which requests are pending and nothing was received; None if none is
        pending."""

    def schedule(self, at_s: float) -> None:
        self.cancel()
        self.timer_at = at_s
        self._timer = self._loop.call_at(at_s, self._expire)

    def cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _expire(self) -> None:
        self._timer, self.timer_at = None, math.inf
        now_s, since = self._loop.time(), self.waiting_s
        late = self._pending.expire(now_s)
        for on_answer in late:
            on_answer(None, b"")
        if late and since is not None and now_s - since >= self._silent_s:
            self._on_silent(now_s - since)
            return
        following = self._pending.next_deadline
        if following < self.timer_at:
            self.schedule(following)


class Connection(asyncio.BufferedProtocol):
    """The client side of a connection to a broker or name server.

    It is the `Peer` of handlers for the broker's requests.

    Owner: the event loop.
    """

    def __init__(
        self,
        address: str,
        owner: ConnectionOwner,
        loop: asyncio.AbstractEventLoop,
        options: ClientOptions,
    ) -> None:
        self.address = address
        self._credentials = options.credentials
        self._owner = owner
        self._loop = loop
        self._buffer = FrameBuffer(READ_BYTES)
        self._pending: PendingRequests[OnAnswer] = PendingRequests()
        self._deadlines = Deadlines(loop, self._pending, options.silent_s, self._silent)
        self._transport: asyncio.Transport | None = None
        self._out: list[Bytes] = []
        """What is written at the end of this iteration of the loop; a flush is scheduled unless it
        is empty."""
        self._remote: tuple[str, int] = ("unknown", 0)
        self._writable: asyncio.Event | None = None
        """Set when the peer reads again; None while it reads."""
        self.closed_because = ""

    # The event loop calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's has no such base
        self._transport.set_write_buffer_limits(WRITE_BYTES_MAX)
        name = transport.get_extra_info("peername")
        if name is not None:  # the peer may be gone already; `connection_lost` comes next
            self._remote = name[:2]

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer.writable()

    def buffer_updated(self, nbytes: int) -> None:
        self._buffer.wrote(nbytes)
        try:
            batch, pending = self._buffer.take(), self._pending
            for index, serialise_type in enumerate(batch.serialise_types):
                body = bytes(batch.body(index))
                header = decode_header(batch.header(index), serialise_type)
                if header.flag & RESPONSE_FLAG:
                    on_answer = pending.answered(header)
                    if on_answer is not None:
                        on_answer(header, body)
                else:
                    self._owner.requested(self, Request(header, body, self))
            self._deadlines.waiting_s = self._loop.time() if pending.by_opaque else None
            if self._buffer.broken is not None:
                raise self._buffer.broken
        except ProtocolError as error:
            self.closed_because = str(error)
            self.abort()

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        self._writable = asyncio.Event()

    def resume_writing(self) -> None:
        if self._writable is not None:
            self._writable.set()
            self._writable = None

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self.closed_because = self.closed_because or str(exc or "the other side closed it")
        self.resume_writing()
        self._deadlines.cancel()
        self._out.clear()
        # The owner first: a caller whose request failed asks for a new connection at once.
        self._owner.closed(self)
        for on_answer in self._pending.close():
            on_answer(None, b"")

    # Peer

    identity: str = ""

    @property
    def is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    @property
    def remote(self) -> str:
        return "{}:{}".format(*self._remote)

    @property
    def remote_host(self) -> bytes:
        return encode_host(Host(*self._remote))

    @property
    def local(self) -> str:
        name = self._transport.get_extra_info("sockname") if self._transport else None
        return "{}:{}".format(*name[:2]) if name else "unknown:0"

    @property
    def pending_count(self) -> int:
        return self._pending.pending_count

    @property
    def unsent_bytes(self) -> int:
        """Bytes that wait to be written."""
        waiting = self._transport.get_write_buffer_size() if self._transport else 0
        return waiting + sum(map(len, self._out))

    def send(self, data: Bytes) -> None:
        if not self._out:
            self._loop.call_soon(self._flush)
        self._out.append(data)

    async def drained(self) -> None:
        """Wait while the peer reads more slowly than this client writes."""
        if self._writable is not None:
            await self._writable.wait()

    def tell(self, code: int, ext: dict[str, str], body: Bytes = b"") -> None:
        """Send a one-way request."""
        if self._credentials is not None:
            ext = self._credentials.sign(ext, body)
        self._queue(self._pending.oneway(code, ext, body_size=len(body)), body)

    def ask(
        self, code: int, ext: dict[str, str], body: Bytes, on_answer: OnAnswer, *, timeout_s: float
    ) -> None:
        """Send a request. `on_answer` gets the response, or None after a timeout, or, if the
        connection is no longer open, because it was lost. Raises ProtocolError if nothing was
        sent, because the request does not fit a frame or too many are pending."""
        if not self.is_open:
            on_answer(None, b"")
            return
        if self._credentials is not None:
            ext = self._credentials.sign(ext, body)
        now_s, deadlines = self._loop.time(), self._deadlines
        deadline_s = now_s + timeout_s
        head = self._pending.request(
            code, ext, token=on_answer, deadline=deadline_s, body_size=len(body)
        )
        self._queue(head, body)
        if deadlines.waiting_s is None:
            deadlines.waiting_s = now_s
        if deadline_s < deadlines.timer_at:
            deadlines.schedule(deadline_s)

    async def call(
        self, code: int, ext: dict[str, str], body: Bytes, *, timeout_s: float, spent_s: float = 0
    ) -> tuple[Header, bytes]:
        """Return the response to a request. Raises ConnectionLost or CallTimeout."""
        answered: asyncio.Future[tuple[Header | None, bytes]] = self._loop.create_future()

        def on_answer(header: Header | None, body: bytes) -> None:
            if not answered.done():
                answered.set_result((header, body))

        self.ask(code, ext, body, on_answer, timeout_s=timeout_s - spent_s)
        header, answer = await answered
        if header is None:
            if self.is_open:
                raise CallTimeout(self.address, code, timeout_s)
            raise ConnectionLost(self.address, code)
        return header, answer

    def _queue(self, head: bytes, body: Bytes) -> None:
        """Queue a frame to be written with everything else of this iteration of the loop."""
        out = self._out
        if not out:
            self._loop.call_soon(self._flush)
        out.append(head)
        if body:
            out.append(body)

    def _flush(self) -> None:
        out, self._out = self._out, []
        if not out or not self.is_open or self._transport is None:
            return
        if len(out) == 1:
            self._transport.write(out[0])
        elif max(map(len, out)) > JOIN_BYTES_MAX:
            self._transport.writelines(out)
        else:
            self._transport.write(b"".join(out))

    def _silent(self, silent_s: float) -> None:
        self.closed_because = f"nothing was received for {silent_s:.3g} s"
        self.abort()

    def close(self) -> None:
        """Close after writing what is queued."""
        if self._transport is not None:
            self._flush()
            self._transport.close()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()
