"""The server side of a connection: received bytes become batches of frames, responses one write.

From bytes received to bytes queued for sending there is no `await`. All frames of one read are
passed on together, and everything that was queued meanwhile is sent in one write.

A peer with too many unread responses, or too many requests that wait for the disk, is not read from
until that has changed. A service that detects this, or that has worked for one peer long enough,
defers the remaining frames; they are passed on again before anything new is read.
"""

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, cast

from tianzhou.base.errors import ProtocolError
from tianzhou.base.kinds import Bytes
from tianzhou.net.admission import Slot
from tianzhou.net.limits import NetLimits
from tianzhou.net.rpc import OnAnswer
from tianzhou.net.turns import Turns, average_s, clock_for
from tianzhou.record.ids import Host, encode_host
from tianzhou.wire.errors import TooManyPending
from tianzhou.wire.frame import PREFIX, FrameBatch, FrameBuffer
from tianzhou.wire.header import Header
from tianzhou.wire.pending import PendingRequests

log: Final = logging.getLogger("tianzhou.net")

SHARED_CAPACITY: Final = 256 * 1024
"""Bytes of one read. All connections of a server read into the same buffer: whole frames are
processed before the next read, and a connection keeps only an incomplete one."""
_JOINED_BYTES_MAX: Final = 128 * 1024


def log_shed(connection: "ServerConnection") -> None:
    """Log that a connection is closed for lack of memory; logging may itself run out of memory."""
    with contextlib.suppress(MemoryError):
        log.error(
            "connection.out_of_memory",
            extra={
                "peer": connection.remote,
                "remedy": "the connection was closed; raise the memory limit of the process",
            },
        )


class Service(Protocol):
    """What a server does with its connections."""

    def opened(self, connection: "ServerConnection") -> None: ...
    def received(self, connection: "ServerConnection", batch: FrameBatch) -> None:
        """Every whole frame of one read. ProtocolError closes the connection."""
        ...

    def closed(self, connection: "ServerConnection") -> None: ...


@dataclass(slots=True)
class Shared:
    """State that the connections of a server share."""

    limits: NetLimits
    buffer: FrameBuffer
    partial_bytes: int = 0
    """Size of the buffers of incomplete frames."""
    unsent_bytes: int = 0
    """Responses that peers have not read yet. Updated on writes; never too low."""
    waiting_count: int = 0
    waiting_bytes: int = 0
    """Requests that wait for the disk."""
    broken_count: int = 0
    """Connections closed because of invalid frames."""
    turns: Turns = field(default_factory=Turns)
    relieve: Callable[[], None] = lambda: None
    """Called when partial or unsent bytes exceed their limit."""


class ServerConnection(asyncio.BufferedProtocol):
    """One connection. Owner: the event loop."""

    __slots__ = (
        "_asked", "_began", "_cost_s", "_got_nowhere", "_is_in_line", "_is_paused", "_left",
        "_loop", "_out", "_out_bytes", "_own", "_own_bytes", "_peername", "_remote_host",
        "_service", "_shared", "_transport", "_unsent", "_writing", "blocked_since",
        "closing_since", "heard_at", "identity", "partial_since", "session", "slot",
        "waiting_bytes", "waiting_count",
    )  # fmt: skip

    def __init__(
        self,
        service: Service,
        loop: asyncio.AbstractEventLoop,
        shared: Shared,
        slot: Slot | None = None,
    ) -> None:
        """`slot` belongs to an accepted connection; outgoing connections have none."""
        self.slot = slot
        self._service = service
        self._loop = loop
        self._shared = shared
        self._own: FrameBuffer | None = None
        """Holds an incomplete frame, or deferred frames, while there are any."""
        self._own_bytes = 0
        self._left: int | None = None
        """Position in the buffer of the first deferred frame."""
        self._transport: asyncio.Transport | None = None
        self._out: list[Bytes] = []
        self._out_bytes = 0
        self._unsent = 0
        self._writing = False
        self._began = 0.0
        """When processing started; the loop's own time does not advance meanwhile."""
        self._cost_s: float | None = None
        """The average duration of a turn; None before the first."""
        self._is_in_line = False
        """Whether the connection waits for a turn in a later round."""
        self._got_nowhere = False
        self._is_paused = False
        self._asked: PendingRequests[OnAnswer] | None = None
        self.heard_at = loop.time()
        self.partial_since: float | None = None
        """When the first byte of an incomplete frame arrived."""
        self.blocked_since: float | None = None
        """Since when the peer has not read its responses."""
        self.closing_since: float | None = None
        self.waiting_count = self.waiting_bytes = 0
        """Requests that wait for the disk."""
        self.identity = ""
        self.session: object | None = None
        """State of the service for this connection."""

    # The event loop calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # servers make no other kind
        self._transport.set_write_buffer_limits(self._shared.limits.write_bytes_max)
        self._peername = transport.get_extra_info("peername")
        self._remote_host = encode_host(Host(*self._peername[:2])) if self._peername else bytes(8)
        self._service.opened(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        return (self._own or self._shared.buffer).writable()

    def buffer_updated(self, nbytes: int) -> None:
        self.heard_at = self._loop.time()
        buffer = self._own or self._shared.buffer
        buffer.wrote(nbytes)
        if self._shared.turns.may_begin(self._cost_s):
            self._handle(buffer)
        else:
            self._postpone(buffer)

    def _postpone(self, buffer: FrameBuffer) -> None:
        """Keep the received bytes for a later round of the loop, and pause reading until then."""
        if buffer is self._shared.buffer:
            self._own = buffer.hand_over()
            self._count_own()
        self._pause()
        self._wait_in_line()

    def _wait_in_line(self) -> None:
        if not self._is_in_line:
            self._is_in_line = True
            self._shared.turns.wait(self._take_turn, self._cost_s)

    def _take_turn(self) -> None:
        self._is_in_line = False
        self._resume()

    def _handle(self, buffer: FrameBuffer) -> None:
        """Take a turn and record its duration."""
        cost_s = self._cost_s
        clock, doubt_s = clock_for(cost_s)
        begun = clock()
        try:
            self._handle_frames(buffer)
        finally:
            took_s = min(clock() - begun, doubt_s)
            self._cost_s = average_s(cost_s, took_s)
            self._shared.turns.took(took_s, self._loop)

    def _handle_frames(self, buffer: FrameBuffer) -> None:
        # Everything that is queued meanwhile is sent in one write at the end.
        self._writing = True
        # A connection without progress in its last turn gets unlimited time: a single request may
        # take longer than a turn.
        self._began = math.inf if self._got_nowhere else time.monotonic()
        self._got_nowhere = False
        is_sound = False
        try:
            batch = buffer.take()
            if batch.count:
                # The remaining bytes are another frame with its own timeout.
                self.partial_since = None
                self._service.received(self, batch)
            if buffer.broken is not None and self._left is None:
                raise buffer.broken
            is_sound = True
        except ProtocolError:
            self._shared.broken_count += 1
        except MemoryError:
            # The request needs more memory than is left. Closing the connection tells the peer, and
            # the requests of other peers may need less.
            log_shed(self)
        finally:
            self._writing = False
            self._flush()
            if not is_sound:
                # Other connections read into the shared buffer next; they must not see these bytes.
                self._left = None
                buffer.reset()
                self.close()
        self._keep_rest(buffer)
        self._pause_if_full()

    def _keep_rest(self, buffer: FrameBuffer) -> None:
        """Keep an incomplete or deferred frame with this connection."""
        left, self._left = self._left, None
        if left is not None:
            buffer.put_back(left)
        if buffer is self._shared.buffer:
            self._own = buffer.hand_over()
        elif not buffer.waiting_bytes:
            self._own = None
        self._count_own()
        if left is not None:
            self._pause()
        if self._own is None or left is not None:
            self.partial_since = None
        elif self.partial_since is None:
            self.partial_since = self.heard_at

    def _count_own(self) -> None:
        size = self._own.capacity if self._own is not None else 0
        grown, self._own_bytes = size - self._own_bytes, size
        self._shared.partial_bytes += grown
        if grown > 0 and self._shared.partial_bytes > self._shared.limits.partial_bytes_max:
            self._shared.relieve()

    # Backpressure

    @property
    def is_full(self) -> bool:
        """Whether the peer has too much waiting to process more of its requests."""
        limits, transport = self._shared.limits, self._transport
        if transport is None:
            return False
        if self._out_bytes + transport.get_write_buffer_size() > limits.write_bytes_max:
            return True
        if not self.waiting_count:  # a paused connection needs an event that resumes it
            return False
        return (
            self.waiting_count >= limits.waiting_count_max
            or self.waiting_bytes > limits.waiting_bytes_max
            or self._shared.waiting_count >= limits.all_waiting_count_max
            or self._shared.waiting_bytes > limits.all_waiting_bytes_max
        )

    @property
    def has_enough(self) -> bool:
        """Whether a service should stop handling frames: the connection is full, or the requests
        are large or slow and other connections wait for their turn."""
        limits = self._shared.limits
        return (
            time.monotonic() - self._began > limits.turn_s
            or self._out_bytes > limits.turn_bytes
            or self.is_full
        )

    @property
    def is_leaving(self) -> bool:
        return self._left is not None

    def leave(self, batch: FrameBatch, index: int) -> None:
        """Defer the frames from this one on; they are passed on again later. Called by a
        service."""
        self._left = batch.headers[index] - PREFIX.size
        self._got_nowhere = index == 0

    def wait(self, count: int, size: int) -> None:
        """Add to the requests of this peer, and their bytes, that wait for the disk."""
        self.waiting_count += count
        self.waiting_bytes += size
        self._shared.waiting_count += count
        self._shared.waiting_bytes += size

    def waited(self, count: int, size: int) -> None:
        self.waiting_count -= count
        self.waiting_bytes -= size
        self._shared.waiting_count -= count
        self._shared.waiting_bytes -= size
        if self._is_paused and not self.is_full:
            # Not now: the caller may be processing this very connection.
            self._resume_soon()

    def _pause_if_full(self) -> None:
        if self.is_full:
            self._pause()
        elif self._is_paused and self.blocked_since is None:
            self._resume_soon()

    def _pause(self) -> None:
        if not self._is_paused and self.is_open and self._transport is not None:
            self._is_paused = True
            self._transport.pause_reading()

    def _resume_soon(self) -> None:
        try:
            self._loop.call_soon(self._resume)
        except MemoryError:  # otherwise the connection would never read again
            log_shed(self)
            self.abort()

    def _resume(self) -> None:
        """Process deferred frames, then resume reading."""
        if not self._is_paused or not self.is_open or self.is_full:
            return
        if self._own is not None and not self._shared.turns.may_begin(self._cost_s):
            self._wait_in_line()
            return
        self._is_paused = False
        if self._own is not None:
            self._handle(self._own)
        if not self._is_paused and self.is_open and self._transport is not None:
            self._transport.resume_reading()

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        self.blocked_since = self._loop.time()
        self._pause()

    def resume_writing(self) -> None:
        self.blocked_since = None
        self._resume_soon()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._release_memory()
        asked, self._asked = self._asked, None
        if asked is not None:
            for on_answer in asked.close():
                on_answer(None, b"")
        self._service.closed(self)

    def _release_memory(self) -> None:
        """Release all buffers; they are not used any more."""
        self._own = None
        self._count_own()
        self._shared.unsent_bytes -= self._unsent
        self._unsent = 0

    # Interface for handlers

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
        """Extra information of the transport, such as its socket."""
        return self._transport.get_extra_info(name) if self._transport else None

    def send(self, data: Bytes) -> None:
        self._out.append(data)
        self._out_bytes += len(data)
        if not self._writing:
            self._flush()

    def send_all(self, pieces: list[Bytes]) -> None:
        self._out += pieces
        self._out_bytes += sum(map(len, pieces))
        if not self._writing:
            self._flush()

    def tell(self, code: int, ext: dict[str, str], body: bytes = b"") -> None:
        self.send(self._pending_requests().oneway(code, ext, body_size=len(body)) + body)

    def ask(
        self, code: int, ext: dict[str, str], body: bytes, on_answer: OnAnswer, *, timeout_s: float
    ) -> None:
        if not self.is_open:
            on_answer(None, b"")
            return
        deadline = self._loop.time() + timeout_s
        try:
            head = self._pending_requests().request(
                code, ext, token=on_answer, deadline=deadline, body_size=len(body)
            )
        except TooManyPending:
            on_answer(None, b"")
            return
        self.send(head + body)

    def answered(self, header: Header, body: bytes) -> None:
        """Handle a response of the peer; a response without a pending request is ignored."""
        on_answer = self._pending_requests().answered(header)
        if on_answer is not None:
            on_answer(header, body)

    def expire(self, now: float) -> None:
        """Expire pending requests whose deadline has passed."""
        if self._asked is not None:
            for on_answer in self._asked.expire(now):
                on_answer(None, b"")

    def close(self) -> None:
        """Close after sending queued responses, if the peer reads them soon."""
        if self._transport is not None and self.closing_since is None:
            self.closing_since = self._loop.time()
            self._transport.close()

    def abort(self) -> None:
        """Drop the connection at once, with everything queued on it."""
        if self._transport is not None:
            self._release_memory()
            self._transport.abort()

    def count_unsent(self) -> int:
        """Bytes that wait for the peer to read them."""
        size = self._transport.get_write_buffer_size() if self._transport is not None else 0
        self._shared.unsent_bytes += size - self._unsent
        self._unsent = size
        return size

    def _pending_requests(self) -> PendingRequests[OnAnswer]:
        if self._asked is None:
            self._asked = PendingRequests()
        return self._asked

    def _flush(self) -> None:
        out, size = self._out, self._out_bytes
        self._out, self._out_bytes = [], 0
        transport = self._transport
        if not out or transport is None or transport.is_closing():
            return
        # One write: joining small pieces is cheaper than a system call for each, while copying
        # large ones costs more.
        if size > _JOINED_BYTES_MAX:
            transport.writelines(out)
            self._shared.turns.queued(size, self._loop)
        else:
            transport.write(out[0] if len(out) == 1 else b"".join(out))
        if self.count_unsent() and self._shared.unsent_bytes > self._shared.limits.unsent_bytes_max:
            self._shared.relieve()
