"""The log writer: appends all messages, of producers, retries and delays, and releases responses.

Appending and dispatching are two steps: all appends of one iteration of the loop are dispatched
together, and waiters of a queue are notified once. Sends of several connections are also appended
together: in a chunk of hundreds a message costs half as much as in a chunk of a few dozen.

A response waits until the log is as durable as configured. Responses wait in a queue with the end
of their records, and one comparison with the durable offset releases all that it has passed; there
is no future per message.
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

from tianzhou.base.kinds import PhysicalOffset
from tianzhou.base.probe import Histogram
from tianzhou.net.rpc import RequestRejected
from tianzhou.record.chunk import Entry, RecordChunk, build, join
from tianzhou.record.errors import RecordTooLarge
from tianzhou.replication.durability import Durability, Outcome
from tianzhou.store.commit_log import Appended
from tianzhou.store.derive import QueueUnits
from tianzhou.store.errors import DiskFull, StoreClosed, StoreFenced
from tianzhou.store.store import MessageStore
from tianzhou.wire._generated_codes import ResponseCode

GATHER_BYTES_MAX: Final = 1024 * 1024
"""A larger chunk is appended at once: waiting would save no time, and takes memory."""
Respond = Callable[[Outcome], None]
"""Sends the responses of a chunk, given the outcome."""


class _Parked(NamedTuple):
    end: PhysicalOffset
    deadline: float
    respond: Respond
    since: float


class Unconfirmed(NamedTuple):
    """Messages that are stored and not durable."""

    end: PhysicalOffset
    since: float
    """When the first of them was stored."""


class Acks:
    """Responses that wait for durability. Owner: the broker loop.

    Invariant: ends and deadlines never decrease
    """

    def __init__(self) -> None:
        self._parked: deque[_Parked] = deque()
        self._expired: Unconfirmed | None = None
        """Messages that were not durable when their responses had to be sent."""

    def __len__(self) -> int:
        return len(self._parked)

    def park(
        self, end: PhysicalOffset, deadline: float, respond: Respond, *, since: float = 0.0
    ) -> None:
        """Keep a response until `deadline`; its messages were stored at `since`."""
        assert not self._parked or self._parked[-1].end <= end
        self._parked.append(_Parked(end, deadline, respond, since))

    @property
    def oldest(self) -> Unconfirmed | None:
        """The messages that wait longest, also if their responses were sent; None if none wait."""
        if self._expired is not None:
            return self._expired
        return Unconfirmed(self._parked[0].end, self._parked[0].since) if self._parked else None

    def release(self, durable: PhysicalOffset) -> None:
        while self._parked and self._parked[0].end <= durable:
            self._parked.popleft().respond(Outcome.DURABLE)

    def expire(self, now: float, why: Callable[[PhysicalOffset], Outcome]) -> None:
        """Release responses whose deadline has passed: their messages are in the log, but whether
        they survive is unknown."""
        while self._parked and self._parked[0].deadline <= now:
            parked = self._parked.popleft()
            since = self._expired.since if self._expired is not None else parked.since
            self._expired = Unconfirmed(parked.end, since)
            parked.respond(why(parked.end))

    def forget_expired(self) -> None:
        """Called once the messages of expired responses are durable, or no longer waited for."""
        self._expired = None

    def fail_all(self, outcome: Outcome) -> None:
        """Release all responses with an error: the store is broken, or the role is lost."""
        self._expired = None
        while self._parked:
            self._parked.popleft().respond(outcome)


class RecordForm(NamedTuple):
    """What all records that a broker builds have in common."""

    store_host: bytes
    record_crc: bool
    """Whether records have a checksum of the whole record."""
    prepare: Callable[[Iterable[Entry]], Iterable[Entry]]
    """Prepares messages for their light queues."""


class Stored(NamedTuple):
    """The result of storing messages: the log offset and queue offset of each."""

    places: Sequence[int]
    offsets: Sequence[int]
    outcome: Outcome


OnStored = Callable[[Stored | RequestRejected], None]
"""Called for each gathered chunk in turn; must not raise."""

_UNKNOWN: Final = RequestRejected(
    ResponseCode.SYSTEM_ERROR,
    "the broker ran out of memory; whether the message is stored is unknown",
)
"""Created in advance because it is needed when there is no memory. Never raised itself: an
exception that is raised repeatedly keeps the frames of every raise."""


class _Gathered:
    """Chunks that are appended together at the end of the round."""

    def __init__(self) -> None:
        self.rows: list[tuple[RecordChunk, OnStored]] = []
        self._size = 0

    def add(self, chunk: RecordChunk, on_stored: OnStored) -> int:
        """Add a chunk; returns the size of all of them."""
        self.rows.append((chunk, on_stored))
        self._size += len(chunk.data)
        return self._size

    def take(self) -> list[tuple[RecordChunk, OnStored]]:
        """Remove and return everything."""
        rows, self.rows = self.rows, []
        self._size = 0
        return rows


class DispatchDelays:
    """Measures the time from the append of a chunk until its messages are visible."""

    def __init__(self) -> None:
        self.histogram = Histogram()
        self._waiting: deque[tuple[PhysicalOffset, float]] = deque()
        """Ends of chunks that are not dispatched yet, and when they were appended."""

    def __len__(self) -> int:
        return len(self._waiting)

    def appended(self, end: PhysicalOffset, at_s: float) -> None:
        self._waiting.append((end, at_s))

    def dispatched(self, position: PhysicalOffset, now_s: float) -> None:
        while self._waiting and self._waiting[0][0] <= position:
            self.histogram.add(now_s - self._waiting.popleft()[1])


class Writer:
    """Owner: the broker loop."""

    def __init__(
        self,
        store: MessageStore,
        store_host: bytes,
        monotonic_s: Callable[[], float],
        durability: Durability,
        *,
        append: Callable[[RecordChunk], Appended] | None = None,
        prepare: Callable[[Iterable[Entry]], Iterable[Entry]] = lambda entries: entries,
        took: Callable[[int, float], None] = lambda _count, _seconds: None,
    ) -> None:
        """`append` is how records get into the log; a Raft group has its own way. `prepare`
        prepares messages for their light queues."""
        self._store = store
        self.form = RecordForm(store_host, store.config.record_crc, prepare)
        self._monotonic_s = monotonic_s
        self._durability = durability
        self.append = append or store.append
        """Appends records; a Raft group has its own way."""
        self._gathered = _Gathered()
        self.settled = 0
        """How often `settle` was called."""
        self.acks = Acks()
        self.took = took
        """Called with the number of messages and the seconds of every append."""
        self.dispatch_delays = DispatchDelays()
        self.written: list[Callable[[], None]] = []
        """Called once per iteration of the loop, after appends and flushes. A part that waits for a
        flush adds itself, and removes itself when nothing waits."""
        self.arrived: list[Callable[[QueueUnits], None]] = []
        """Called with the units of every queue that got visible messages."""

    def put(self, entries: Iterable[Entry]) -> Appended:
        """Append messages now. Raises RequestRejected with the code that the sender must see."""
        chunk = self.build(self.form.prepare(entries), is_finished=False)
        self.write_gathered()
        return self._append(chunk)

    def build(self, entries: Iterable[Entry], *, is_finished: bool) -> RecordChunk:
        """The stored form of messages, see `record.chunk.build`. Raises RequestRejected."""
        try:
            return build(
                entries,
                store_host=self.form.store_host,
                record_crc=self.form.record_crc,
                is_finished=is_finished,
            )
        except RecordTooLarge as error:
            raise RequestRejected(ResponseCode.MESSAGE_ILLEGAL, str(error)) from error
        except MemoryError as error:
            raise out_of_memory() from error

    def gather(self, chunk: RecordChunk, on_stored: OnStored) -> None:
        """Append records together with others, in this iteration of the loop. `on_stored` is called
        when they are durable or rejected."""
        if self._gathered.add(chunk, on_stored) > GATHER_BYTES_MAX:
            self.write_gathered()

    def write_gathered(self) -> None:
        """Append what was gathered, so that later records come behind it."""
        gathered = self._gathered.take()
        if not gathered:
            return
        try:
            appended = self._append(_joined(gathered))
        except (RequestRejected, MemoryError) as error:
            refused = error if isinstance(error, RequestRejected) else _UNKNOWN
            for _, on_stored in gathered:
                on_stored(refused)
            return

        def respond(outcome: Outcome) -> None:
            try:
                places, offsets = appended.physical_offsets(), appended.queue_offsets
            except MemoryError:
                for _, on_stored in gathered:
                    on_stored(_UNKNOWN)
                return
            first = 0
            for chunk, on_stored in gathered:
                end = first + len(chunk.starts)
                try:
                    stored = Stored(places[first:end], offsets[first:end], outcome)
                except MemoryError:
                    stored = _UNKNOWN
                on_stored(stored)
                first = end

        self.when_durable(appended.end, respond)

    def _append(self, chunk: RecordChunk) -> Appended:
        if not self._store.is_writing:
            raise RequestRejected(
                ResponseCode.SERVICE_NOT_AVAILABLE, "this broker is a slave and accepts no messages"
            )
        begun, was_broken = self._monotonic_s(), self._store.is_broken
        try:
            appended = self.append(chunk)
        except RecordTooLarge as error:  # for a file of the log
            raise RequestRejected(ResponseCode.MESSAGE_ILLEGAL, str(error)) from error
        except DiskFull as error:
            raise disk_full(error) from error
        except MemoryError as error:
            raise RequestRejected(_UNKNOWN.code, _UNKNOWN.remark) from error
        except (StoreFenced, StoreClosed) as error:
            if was_broken or isinstance(error, StoreClosed):
                raise RequestRejected(ResponseCode.SERVICE_NOT_AVAILABLE, str(error)) from error
            # This write failed, but recovery may still find the message complete.
            raise RequestRejected(
                ResponseCode.SYSTEM_ERROR, f"{error}; the message may be stored"
            ) from error
        self.took(len(chunk.starts), self._monotonic_s() - begun)
        self.dispatch_delays.appended(appended.end, begun)
        return appended

    def when_durable(self, end: PhysicalOffset, respond: Respond, *, wait: bool = True) -> None:
        """Call `respond` once the log is durable up to `end`; at once if it is, if `wait` is False,
        or if it cannot become durable."""
        waits = wait and self._durability.waits
        outcome = self._durability.verdict(end) if waits else Outcome.DURABLE
        if outcome is not None:
            respond(outcome)
        else:
            now_s = self._monotonic_s()
            self.acks.park(end, now_s + self._durability.timeout_s, respond, since=now_s)

    def stall(self, limit_s: float) -> tuple[float, Outcome] | None:
        """How long stored messages have waited to become durable, and the outcome that a message
        has after a timeout; None if it is at most `limit_s`."""
        oldest = self.acks.oldest
        if oldest is None:
            return None
        waited_s = self._monotonic_s() - oldest.since
        if waited_s <= limit_s:
            return None
        if self._durability.verdict(oldest.end) is not None:
            self.acks.forget_expired()
            return None
        return waited_s, self._durability.failure(oldest.end)

    def settle(self) -> None:
        """Append what was gathered, dispatch it, notify waiters, and release responses."""
        self.settled += 1
        self.write_gathered()
        try:
            for notify in [*self.written]:
                notify()
            while runs := self._store.dispatch():
                for run in runs:
                    for notify in self.arrived:
                        notify(run)
            if self.dispatch_delays:
                dispatched = self._store.watermarks.dispatched
                self.dispatch_delays.dispatched(dispatched, self._monotonic_s())
        finally:
            # Responses do not wait for work that failed, for example because memory is short.
            self.release()

    def release(self) -> None:
        """Send the responses whose messages are durable. Their clients then find the messages,
        because pulls call `catch_up`."""
        if len(self.acks):
            self.acks.release(self._durability.confirmed())

    def catch_up(self) -> bool:
        """Settle now if anything is not dispatched yet; returns whether that was so. A client that
        got a response must find its message, although dispatch runs once per iteration."""
        if not self._gathered.rows and not self._store.has_undispatched:
            return False
        self.settle()
        return True

    def tick(self) -> None:
        if self._store.is_broken:
            self.acks.fail_all(Outcome.FLUSH_DISK_TIMEOUT)
        self.acks.expire(self._monotonic_s(), self._durability.failure)

    def give_up(self) -> None:
        """Release all responses with an error, because this broker is no longer the master."""
        self.write_gathered()
        self.acks.fail_all(Outcome.NOT_MASTER)


def _joined(gathered: list[tuple[RecordChunk, OnStored]]) -> RecordChunk:
    if len(gathered) == 1:
        return gathered[0][0]
    try:
        return join([chunk for chunk, _ in gathered])
    except MemoryError as error:
        raise out_of_memory() from error


def out_of_memory() -> RequestRejected:
    """The response to a request for which the broker has no memory. Nothing was stored."""
    return RequestRejected(
        ResponseCode.SERVICE_NOT_AVAILABLE,
        "the broker is out of memory; retry at another broker now, or here in 10 s",
    )


def disk_full(error: DiskFull) -> RequestRejected:
    """The response to a request that needs disk space. Nothing was stored."""
    return RequestRejected(
        ResponseCode.SERVICE_NOT_AVAILABLE,
        f"disk full: {error}; retry at another broker now, or here in 10 s",
    )
