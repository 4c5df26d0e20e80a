"""The way into the store for everything that writes messages: producers, retries, delays.

Writing, and making what was written visible, are two steps: several writes of one round of the
loop are dispatched together, and whoever waits for a queue is told once. Rows of sends are even
written together: a chunk of hundreds costs a message half of what a chunk of a few dozen does.
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

from tianzhou.base.kinds import PhysicalOffset
from tianzhou.base.probe import Histogram
from tianzhou.broker.writing.acks import Acks, Answer
from tianzhou.net.rpc import RequestRejected
from tianzhou.record.chunk import Entry, RecordChunk, build, join
from tianzhou.record.errors import RecordTooLarge
from tianzhou.replication.durability import Durability, Outcome
from tianzhou.store.commit_log import Appended
from tianzhou.store.derive_record import QueueUnits
from tianzhou.store.errors import DiskFull, StoreClosed, StoreFenced
from tianzhou.store.store import MessageStore
from tianzhou.wire._generated_codes import ResponseCode

GATHER_BYTES_MAX: Final = 1024 * 1024
"""More than this is written at once: it would not get cheaper, and it is memory."""


class Stored(NamedTuple):
    """What became of a row of messages: where each stands in the log, and its queue offset."""

    places: Sequence[int]
    offsets: Sequence[int]
    outcome: Outcome


OnStored = Callable[[Stored | RequestRejected], None]
"""Called for each gathered row in turn; must not raise."""

_UNKNOWN: Final = RequestRejected(
    ResponseCode.SYSTEM_ERROR,
    "the broker ran out of memory; whether the message is stored is unknown",
)
"""Created in advance because it is needed when there is no memory. Never raised itself: an
exception that is raised repeatedly keeps the frames of every raise."""


class Writer:
    """Owner: the broker loop."""

    def __init__(
        self,
        store: MessageStore,
        store_host: bytes,
        monotonic_s: Callable[[], float],
        durability: Durability,
    ) -> None:
        self._store = store
        self.store_host = store_host
        self._monotonic_s = monotonic_s
        self.record_crc = store.config.record_crc
        self._durability = durability
        self.append: Callable[[RecordChunk], Appended] = store.append
        """How records get into the log; a group has its own way."""
        self._gathered: list[tuple[RecordChunk, OnStored]] = []
        self._gathered_bytes = 0
        self.acks = Acks()
        self.took: Callable[[int, float], None] = lambda _count, _seconds: None
        """Told how long an append of so many messages took."""
        self._unseen: deque[tuple[PhysicalOffset, float]] = deque()
        """Ends of chunks that are not dispatched yet, and when they were written."""
        self.dispatch_times = Histogram()
        """From the append of a chunk to the moment when its messages can be seen."""
        self.written: list[Callable[[], None]] = []
        """Told once a round, when the log may have grown or be flushed further."""
        self.arrived: list[Callable[[QueueUnits], None]] = []
        """Told of every run of messages that became visible."""

    def put(self, entries: Iterable[Entry]) -> Appended:
        """Append messages now. Raises RequestRejected with the code that the sender must see."""
        chunk = self.build(entries, is_finished=False)
        self.write_gathered()
        return self._append(chunk)

    def build(self, entries: Iterable[Entry], *, is_finished: bool) -> RecordChunk:
        """The stored form of messages, see `record.chunk.build`. Raises RequestRejected."""
        try:
            return build(
                entries, store_host=self.store_host, record_crc=self.record_crc,
                is_finished=is_finished,
            )  # fmt: skip
        except RecordTooLarge as error:
            raise RequestRejected(ResponseCode.MESSAGE_ILLEGAL, str(error)) from error
        except MemoryError as error:
            raise out_of_memory() from error

    def gather(self, chunk: RecordChunk, on_stored: OnStored) -> None:
        """Append records with others, in this round of the loop, and then say so: when they are
        durable, or that they are refused."""
        self._gathered.append((chunk, on_stored))
        self._gathered_bytes += len(chunk.data)
        if self._gathered_bytes > GATHER_BYTES_MAX:
            self.write_gathered()

    def write_gathered(self) -> None:
        """Whatever else is written comes behind what was gathered before it."""
        if not self._gathered:
            return
        gathered, self._gathered = self._gathered, []
        self._gathered_bytes = 0
        try:
            appended = self._append(_joined(gathered))
            places, offsets = appended.physical_offsets(), appended.queue_offsets
        except (RequestRejected, MemoryError) as error:
            refused = error if isinstance(error, RequestRejected) else _UNKNOWN
            for _, on_stored in gathered:
                on_stored(refused)
            return

        def tell(outcome: Outcome) -> None:
            first = 0
            for chunk, on_stored in gathered:
                end = first + len(chunk)
                try:
                    stored = Stored(places[first:end], offsets[first:end], outcome)
                except MemoryError:
                    stored = _UNKNOWN
                on_stored(stored)
                first = end

        self.when_durable(appended.end, tell)

    def _append(self, chunk: RecordChunk) -> Appended:
        if not self._store.is_writing:
            raise RequestRejected(
                ResponseCode.SERVICE_NOT_AVAILABLE, "this broker is a slave and takes no messages"
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
        self.took(len(chunk), self._monotonic_s() - begun)
        self._unseen.append((appended.end, begun))
        return appended

    def when_durable(self, end: PhysicalOffset, answer: Answer, *, wait: bool = True) -> None:
        """Call `answer` once the log is safe up to `end`; at once if it is, or nobody waits, or
        waiting makes no sense."""
        outcome = self._durability.verdict(end) if wait else Outcome.DURABLE
        if outcome is not None:
            answer(outcome)
        else:
            self.acks.park(end, self._monotonic_s() + self._durability.timeout_s, answer)

    def settle(self) -> None:
        """Write what was gathered, make visible what may be seen, tell who waits for it, release
        answers."""
        self.write_gathered()
        try:
            for tell in self.written:
                tell()
            while runs := self._store.dispatch():
                for run in runs:
                    for tell in self.arrived:
                        tell(run)
            if self._unseen:
                self._note_seen(self._store.watermarks.dispatched)
        finally:
            # Responses do not wait for work that failed, for example because memory is short.
            self.release()

    def release(self) -> None:
        """Send the answers that need wait no more. Who then asks for these messages finds them:
        see `catch_up`."""
        if len(self.acks):
            self.acks.release(self._durability.confirmed())

    def _note_seen(self, position: PhysicalOffset) -> None:
        now_s = self._monotonic_s()
        while self._unseen and self._unseen[0][0] <= position:
            self.dispatch_times.add(now_s - self._unseen.popleft()[1])

    def catch_up(self) -> bool:
        """Settle now if anything waits for it; whether it did. Whoever was told that a message is
        stored must find it, though dispatch comes once a round."""
        if not self._gathered and not self._store.has_undispatched:
            return False
        self.settle()
        return True

    def tick(self) -> None:
        if self._store.is_broken:
            self.acks.fail_all(Outcome.FLUSH_DISK_TIMEOUT)
        self.acks.expire(self._monotonic_s(), self._durability.failure)

    def give_up(self) -> None:
        """The role of the master is lost: what waits will not be confirmed by us."""
        self.write_gathered()
        self.acks.fail_all(Outcome.NOT_MASTER)


def _joined(gathered: list[tuple[RecordChunk, OnStored]]) -> RecordChunk:
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
    """What whoever wanted to store something is told."""
    return RequestRejected(
        ResponseCode.SERVICE_NOT_AVAILABLE,
        f"disk full: {error}; retry at another broker now, or here in 10 s",
    )
