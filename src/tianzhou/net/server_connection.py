"""The server side of a connection: received bytes become batches of frames, responses one write.

From bytes received to bytes queued for sending there is no `await`. All frames of one read are
passed on together, and everything that was queued meanwhile is sent in one write.

A peer with too many unread responses, or too many requests that wait for the disk, is not read from
until that has changed. A service that detects this, or that has worked for one peer long enough,
defers the remaining frames; they are passed on again before anything new is read.

`Turns` divide the rounds of the event loop among connections. The loop serves every readable
connection once in a round, so a client waits for the work of all others. Most of it takes
microseconds. Work that takes longer, such as reading 4 MiB for each of 300 peers at once, is
therefore spread over rounds: once a round has done enough of it, connections whose turns are long,
or that never had one, queue for later rounds. Connections whose turns are short are served
meanwhile.

Connections and turns are one file because every read takes a turn, and every turn is of a read.
"""

import asyncio
import contextlib
import logging
import math
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

from tianzhou.base.errors import ProtocolError
from tianzhou.base.kinds import Bytes
from tianzhou.net.arrivals import LARGE_READ_BYTES, Arrival, Pulse, count_unread
from tianzhou.net.limits import NetLimits
from tianzhou.net.rpc import OnAnswer
from tianzhou.record.ids import Host, encode_host
from tianzhou.wire.codec import Header
from tianzhou.wire.errors import TooManyPending
from tianzhou.wire.frame import PREFIX, FrameBatch, FrameBuffer
from tianzhou.wire.pending import PendingRequests

if TYPE_CHECKING:
    from tianzhou.net.admission import Slot

log: Final = logging.getLogger("tianzhou.net")

SHARED_CAPACITY: Final = 256 * 1024
"""Bytes of one read. All connections of a server read into the same buffer: whole frames are
processed before the next read, and a connection keeps only an incomplete one."""
_JOINED_BYTES_MAX: Final = 128 * 1024
SHORT_S: Final = 0.0002
"""Connections whose turns take this long never wait. Such turns are not counted either, and cost
nothing but reading the clock."""
MEDIUM_S: Final = 0.001
"""Connections whose turns take this long wait, but not for those whose turns take longer."""
ROUND_S: Final = 0.005
"""The total duration of the counted turns in one round. One more turn may start just before it is
reached."""
WRITE_BYTE_S: Final = 0.5e-9
"""How long the loop takes to write one byte of a large response, after the turn that queued it."""
DOUBT_S: Final = 0.002
_RISE: Final = 0.25
_FALL: Final = 0.5
"""Weight of the last turn in the average of a connection, if it was longer and if it was shorter: a
single long turn has little effect, but a peer that alternates between the two counts as slow."""


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


# Turns


def clock_for(cost_s: float | None) -> tuple[Callable[[], float], float]:
    """The clock that measures the next turn of a connection, and the largest value that counts.

    The time of the thread is exact: a turn is not long because another process had the core. But
    reading it is a system call, which connections with short turns avoid: their turns are measured
    by the wall clock, and a long one counts only if the next ones, measured exactly, are long too.
    """
    if cost_s is not None and cost_s <= SHORT_S:
        return time.monotonic, DOUBT_S
    return time.thread_time, math.inf


def average_s(before_s: float | None, last_s: float) -> float:
    """The average duration of a connection's turns, updated with one more."""
    if before_s is None:
        return last_s
    return before_s + (_RISE if last_s > before_s else _FALL) * (last_s - before_s)


class Turns:
    """Owner: the event loop."""

    __slots__ = ("_long", "_medium", "_new", "_round_s", "_spent_s")

    def __init__(self, round_s: float = ROUND_S) -> None:
        self._round_s = round_s
        self._spent_s = 0.0
        """Total duration of the counted turns in this round."""
        self._medium: deque[Callable[[], None]] = deque()
        self._new: deque[Callable[[], None]] = deque()
        """Connections that never had a turn. Most need little, but 300 at once may need much."""
        self._long: deque[Callable[[], None]] = deque()

    def may_begin(self, cost_s: float | None) -> bool:
        """Whether a connection may work in this round; its turns take `cost_s`, None if it never
        had one."""
        return self._spent_s < self._round_s or (cost_s is not None and cost_s <= SHORT_S)

    def took(self, seconds: float, loop: asyncio.AbstractEventLoop) -> None:
        """Count a turn that has ended."""
        if seconds > SHORT_S:
            self._count(seconds, loop)

    def queued(self, size: int, loop: asyncio.AbstractEventLoop) -> None:
        """Count a large response that the loop has yet to write."""
        self._count(size * WRITE_BYTE_S, loop)

    def _count(self, seconds: float, loop: asyncio.AbstractEventLoop) -> None:
        if not self._spent_s:
            loop.call_soon(self._begin_round)
        self._spent_s += seconds

    def wait(self, resume: Callable[[], None], cost_s: float | None) -> None:
        """Call `resume` when it is this connection's turn. Call it only after `may_begin` returned
        False: the turns that filled the round have scheduled the next one."""
        assert self._spent_s, "a round in which nothing was done has room"
        if cost_s is None:
            self._new.append(resume)
        else:
            (self._medium if cost_s <= MEDIUM_S else self._long).append(resume)

    def _begin_round(self) -> None:
        self._spent_s = 0.0
        while self._spent_s < self._round_s:
            line = self._medium or self._new or self._long
            if not line:
                return
            line.popleft()()


# What a connection consists of


class Owner(Protocol):
    """What owns connections: it is told when one of them opens and closes."""

    def opened(self, connection: "ServerConnection") -> None: ...
    def closed(self, connection: "ServerConnection") -> None: ...


class Service(Owner, Protocol):
    """What a server does with its connections."""

    def received(self, connection: "ServerConnection", batch: FrameBatch) -> None:
        """Every whole frame of one read. ProtocolError closes the connection."""
        ...


@dataclass(slots=True, kw_only=True)
class Shared:
    """State that the connections of a server share."""

    owner: Owner
    received: Callable[["ServerConnection", FrameBatch], None]
    """That of the service; connections call it directly, because it is on the path of every
    read."""
    loop: asyncio.AbstractEventLoop
    limits: NetLimits = field(default_factory=NetLimits)
    buffer: FrameBuffer = field(default_factory=FrameBuffer)
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
    pulse: Pulse = field(init=False)
    relieve: Callable[[], None] = lambda: None
    """Called when partial or unsent bytes exceed their limit."""

    def __post_init__(self) -> None:
        self.pulse = Pulse(self.loop)


@dataclass(slots=True)
class Turn:
    """The turn of one connection, and what is known from its earlier turns."""

    began: float = 0.0
    """When processing started; the loop's own time does not advance meanwhile."""
    cost_s: float | None = None
    """The average duration of a turn; None before the first."""
    is_waiting: bool = False
    """Whether the connection waits for a turn in a later round."""
    left: int | None = None
    """Position in the buffer of the first deferred frame."""
    got_nowhere: bool = False
    """Whether the very first frame was deferred."""


@dataclass(slots=True)
class Backlog:
    """What waits because of one connection; `Shared` has the totals of all."""

    waiting_count: int = 0
    waiting_bytes: int = 0
    """Requests that wait for the disk."""
    partial_bytes: int = 0
    """Size of the buffer of an incomplete frame."""
    unsent_bytes: int = 0
    """Responses that the peer has not read."""
    is_paused: bool = False
    """Whether the connection is not read from because of it."""


@dataclass(slots=True)
class Times:
    """When things happened on one connection; the server closes it if they take too long."""

    heard_at: float
    arrival: Arrival = field(init=False)
    partial_since: float | None = None
    """When the first byte of an incomplete frame arrived."""
    blocked_since: float | None = None
    """Since when the peer has not read its responses."""
    closing_since: float | None = None

    def __post_init__(self) -> None:
        self.arrival = Arrival(self.heard_at)


@dataclass(slots=True)
class _Remote:
    """The peer, as far as it does not matter for every read."""

    slot: "Slot | None"
    """Its place among the connections of the port; outgoing connections have none."""
    address: str = "unknown:0"
    asked: PendingRequests[OnAnswer] | None = None
    """Requests to the peer, once there are any."""


class ServerConnection(asyncio.BufferedProtocol):
    """One connection. Owner: the event loop."""

    __slots__ = (
        "_backlog", "_out", "_out_bytes", "_own", "_remote", "_shared", "_transport", "_turn",
        "_writing", "identity", "remote_host", "times",
    )  # fmt: skip

    def __init__(self, shared: Shared, slot: "Slot | None" = None) -> None:
        """`slot` belongs to an accepted connection; outgoing connections have none."""
        self._shared = shared
        self._transport: asyncio.Transport | None = None
        self._own: FrameBuffer | None = None
        """Holds an incomplete frame, or deferred frames, while there are any."""
        self._out: list[Bytes] = []
        self._out_bytes = 0
        self._writing = False
        self._turn = Turn()
        self._backlog = Backlog()
        self._remote = _Remote(slot)
        self.times = Times(shared.loop.time())
        self.remote_host = bytes(8)
        self.identity = ""

    # The event loop calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # servers make no other kind
        self._transport.set_write_buffer_limits(self._shared.limits.write_bytes_max)
        name = transport.get_extra_info("peername")
        if name:
            self.remote_host = encode_host(Host(*name[:2]))
            self._remote.address = "{}:{}".format(*name[:2])
        self._shared.owner.opened(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        return (self._own or self._shared.buffer).writable()

    def buffer_updated(self, nbytes: int) -> None:
        shared, times = self._shared, self.times
        now = times.heard_at = shared.loop.time()
        arrival, pulse = times.arrival, shared.pulse
        arrived_at = now if now < pulse.overdue_at_s else pulse.before_pause(now)
        arrival.at_s = arrived_at
        if nbytes >= LARGE_READ_BYTES or arrival.unread_bytes:
            arrival.read(nbytes, arrived_at, self._count_unread)
        buffer = self._own or shared.buffer
        buffer.wrote(nbytes)
        if shared.turns.may_begin(self._turn.cost_s):
            self._handle(buffer)
        else:
            self._postpone(buffer)

    def _postpone(self, buffer: FrameBuffer) -> None:
        """Keep the received bytes for a later round of the loop, and pause reading until then."""
        if buffer is self._shared.buffer:
            self._own = buffer.hand_over()
            self._count_own()
        self._pause()
        self._wait_for_turn()

    def _wait_for_turn(self) -> None:
        turn = self._turn
        if not turn.is_waiting:
            turn.is_waiting = True
            self._shared.turns.wait(self._take_turn, turn.cost_s)

    def _take_turn(self) -> None:
        self._turn.is_waiting = False
        self._resume()

    def _handle(self, buffer: FrameBuffer) -> None:
        """Take a turn and record its duration."""
        turn = self._turn
        cost_s = turn.cost_s
        clock, doubt_s = clock_for(cost_s)
        begun = clock()
        try:
            self._handle_frames(buffer, turn)
        finally:
            took_s = min(clock() - begun, doubt_s)
            turn.cost_s = average_s(cost_s, took_s)
            self._shared.turns.took(took_s, self._shared.loop)

    def _handle_frames(self, buffer: FrameBuffer, turn: Turn) -> None:
        # Everything that is queued meanwhile is sent in one write at the end.
        self._writing = True
        # A connection without progress in its last turn gets unlimited time: a single request may
        # take longer than a turn.
        turn.began = math.inf if turn.got_nowhere else time.monotonic()
        turn.got_nowhere = False
        is_sound = False
        try:
            batch = buffer.take()
            if batch.headers:
                # The remaining bytes are another frame with its own timeout.
                self.times.partial_since = None
                self._shared.received(self, batch)
                slot = self._remote.slot
                if slot is not None and not slot.is_proven:
                    slot.prove()
            if buffer.broken is not None and turn.left is None:
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
            if self._out:
                self._flush()
            if not is_sound:
                # Other connections read into the shared buffer next; they must not see these bytes.
                turn.left = None
                buffer.reset()
                self.close()
        self._keep_rest(buffer, turn)
        self._pause_if_full()

    def _keep_rest(self, buffer: FrameBuffer, turn: Turn) -> None:
        """Keep an incomplete or deferred frame with this connection."""
        left, turn.left = turn.left, None
        if left is not None:
            buffer.put_back(left)
        if buffer is self._shared.buffer:
            self._own = buffer.hand_over()
        elif not buffer.waiting_bytes:
            self._own = None
        if self._own is not None or self._backlog.partial_bytes:
            self._count_own()
        if left is not None:
            self._pause()
        times = self.times
        if self._own is None or left is not None:
            times.partial_since = None
        elif times.partial_since is None:
            times.partial_since = times.heard_at

    def _count_own(self) -> None:
        shared, backlog = self._shared, self._backlog
        size = self._own.capacity if self._own is not None else 0
        grown, backlog.partial_bytes = size - backlog.partial_bytes, size
        shared.partial_bytes += grown
        if grown > 0 and shared.partial_bytes > shared.limits.partial_bytes_max:
            shared.relieve()

    # Backpressure

    @property
    def is_full(self) -> bool:
        """Whether the peer has too much waiting to process more of its requests."""
        shared, transport = self._shared, self._transport
        if transport is None:
            return False
        limits = shared.limits
        if self._out_bytes + transport.get_write_buffer_size() > limits.write_bytes_max:
            return True
        backlog = self._backlog
        if not backlog.waiting_count:  # a paused connection needs an event that resumes it
            return False
        return (
            backlog.waiting_count >= limits.waiting_count_max
            or backlog.waiting_bytes > limits.waiting_bytes_max
            or shared.waiting_count >= limits.all_waiting_count_max
            or shared.waiting_bytes > limits.all_waiting_bytes_max
        )

    @property
    def has_enough(self) -> bool:
        """Whether a service should stop handling frames: the connection is full, or the requests
        are large or slow and other connections wait for their turn."""
        limits = self._shared.limits
        return (
            time.monotonic() - self._turn.began > limits.turn_s
            or self._out_bytes > limits.turn_bytes
            or self.is_full
        )

    @property
    def waited_s(self) -> float:
        """How long the frames that are being processed have waited, as far as that is known."""
        return self._shared.loop.time() - self.times.arrival.at_s

    @property
    def is_leaving(self) -> bool:
        return self._turn.left is not None

    def leave(self, batch: FrameBatch, index: int) -> None:
        """Defer the frames from this one on; they are passed on again later. Called by a
        service."""
        self._turn.left = batch.headers[index] - PREFIX.size
        self._turn.got_nowhere = index == 0

    def wait(self, count: int, size: int) -> None:
        """Add to the requests of this peer, and their bytes, that wait for the disk."""
        shared, backlog = self._shared, self._backlog
        backlog.waiting_count += count
        backlog.waiting_bytes += size
        shared.waiting_count += count
        shared.waiting_bytes += size

    def waited(self, count: int, size: int) -> None:
        shared, backlog = self._shared, self._backlog
        backlog.waiting_count -= count
        backlog.waiting_bytes -= size
        shared.waiting_count -= count
        shared.waiting_bytes -= size
        if backlog.is_paused and not self.is_full:
            # Not now: the caller may be processing this very connection.
            self._resume_soon()

    def _pause_if_full(self) -> None:
        if self.is_full:
            self._pause()
        elif self._backlog.is_paused and self.times.blocked_since is None:
            self._resume_soon()

    def _pause(self) -> None:
        if not self._backlog.is_paused and self.is_open and self._transport is not None:
            self._backlog.is_paused = True
            self._transport.pause_reading()
            self.times.arrival.ask(self._shared.loop.time(), self._count_unread)

    def _count_unread(self) -> int:
        sock = self.extra("socket")
        return 0 if sock is None else count_unread(sock.fileno())

    def _resume_soon(self) -> None:
        try:
            self._shared.loop.call_soon(self._resume)
        except MemoryError:  # otherwise the connection would never read again
            log_shed(self)
            self.abort()

    def _resume(self) -> None:
        """Process deferred frames, then resume reading."""
        backlog = self._backlog
        if not backlog.is_paused or not self.is_open or self.is_full:
            return
        if self._own is not None and not self._shared.turns.may_begin(self._turn.cost_s):
            self._wait_for_turn()
            return
        backlog.is_paused = False
        if self._own is not None:
            self._handle(self._own)
        if not backlog.is_paused and self.is_open and self._transport is not None:
            self._transport.resume_reading()

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        self.times.blocked_since = self._shared.loop.time()
        self._pause()

    def resume_writing(self) -> None:
        self.times.blocked_since = None
        self._resume_soon()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._release_memory()
        asked, self._remote.asked = self._remote.asked, None
        if asked is not None:
            for on_answer in asked.close():
                on_answer(None, b"")
        if self._remote.slot is not None:
            self._remote.slot.release()
        self._shared.owner.closed(self)

    def _release_memory(self) -> None:
        """Release all buffers; they are not used any more."""
        self._own = None
        self._count_own()
        self._shared.unsent_bytes -= self._backlog.unsent_bytes
        self._backlog.unsent_bytes = 0

    # Interface for handlers

    @property
    def is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    @property
    def remote(self) -> str:
        return self._remote.address

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
        deadline = self._shared.loop.time() + timeout_s
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
        if self._remote.asked is not None:
            for on_answer in self._remote.asked.expire(now):
                on_answer(None, b"")

    def close(self) -> None:
        """Close after sending queued responses, if the peer reads them soon."""
        if self._transport is not None and self.times.closing_since is None:
            self.times.closing_since = self._shared.loop.time()
            self._transport.close()

    def abort(self) -> None:
        """Drop the connection at once, with everything queued on it."""
        if self._transport is not None:
            self._release_memory()
            self._transport.abort()

    def count_unsent(self) -> int:
        """Bytes that wait for the peer to read them."""
        size = self._transport.get_write_buffer_size() if self._transport is not None else 0
        self._shared.unsent_bytes += size - self._backlog.unsent_bytes
        self._backlog.unsent_bytes = size
        return size

    def _pending_requests(self) -> PendingRequests[OnAnswer]:
        if self._remote.asked is None:
            self._remote.asked = PendingRequests()
        return self._remote.asked

    def _flush(self) -> None:
        out, size = self._out, self._out_bytes
        self._out, self._out_bytes = [], 0
        transport = self._transport
        if not out or transport is None or transport.is_closing():
            return
        shared = self._shared
        # One write: joining small pieces is cheaper than a system call for each, while copying
        # large ones costs more.
        if size > _JOINED_BYTES_MAX:
            transport.writelines(out)
            shared.turns.queued(size, shared.loop)
        else:
            transport.write(out[0] if len(out) == 1 else b"".join(out))
        if self.count_unsent() and shared.unsent_bytes > shared.limits.unsent_bytes_max:
            shared.relieve()
