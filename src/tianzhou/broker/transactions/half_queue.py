"""The queue of half messages, and which of them are undecided.

The half queue holds every transactional message as it was sent; the OP queue holds the offset in
the half queue of each decided one. A message that was scanned and is not `pending` is decided: no
other record of decisions is needed, however late a second decision arrives.

A half that stays undecided for long is copied to the end of the queue, so that progress does not
wait for it: a start reads less, and retention can delete more. The copy names its root, the offset
of the first: a transaction is identified by its root, wherever its newest copy is.

A start reads both queues from the progress that was saved:

    half progress: no half below it is pending
    OP progress:   no OP message below it names a half at or above the half progress
"""

from array import array
from bisect import bisect_left
from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple

from tianzhou.base.kinds import QueueOffset, queue_key
from tianzhou.broker import names
from tianzhou.broker.groups.consumer_offsets import ConsumerOffsets
from tianzhou.broker.transactions.pending_halves import PendingHalves
from tianzhou.broker.writing.incoming import Incoming, number_of
from tianzhou.broker.writing.stored import Stored, records
from tianzhou.record import names as keys
from tianzhou.record.chunk import Entry
from tianzhou.store.protocols import QueueReader
from tianzhou.store.read import ReadLimit

HALF_QUEUE: Final = queue_key(names.HALF_TOPIC, 0)
OP_QUEUE: Final = queue_key(names.OP_TOPIC, 0)
HALVES_MAX: Final = 1_000_000
"""Undecided halves at once: 30 to 60 MB, with the schedule of their checks."""
_SLICE: Final = ReadLimit(count=400, size=1 << 26)
"""Reading them takes about 6 ms of the event loop. Bodies are not decoded, so their size hardly
matters."""


class Half(NamedTuple):
    """An undecided message, as the scan found it."""

    offset: int
    """Of its newest copy."""
    is_copy: bool
    stored_ms: int
    immunity_ms: int | None
    """How long the producer must not be checked; None for the configured time."""


OnHalf = Callable[[Half], None]


class HalfQueue:
    """Owner: the broker loop.

    Invariant: offsets in `pending` ascend and are below `scanned`
    """

    def __init__(self, store: QueueReader, offsets: ConsumerOffsets) -> None:
        self._store = store
        self._offsets = offsets
        self.pending = PendingHalves()
        self.scanned = 0
        self._copies = _Copies()
        self._ended_ahead: set[int] = set()
        """Decided before the scan came to them."""
        self._op_marks: deque[tuple[int, int]] = deque([(0, 0)])
        """Ends of the half queue and the OP queue, each pair from the same time."""

    def begin(self, on_half: OnHalf) -> None:
        """Read both queues from the saved progress. `on_half` is called for each half that is
        undecided as far as the queue was read; a later copy may replace it."""
        group = names.TRANSACTION_GROUP
        op_progress = self._offsets.get(group, names.OP_TOPIC, 0) or 0
        half_progress = self._offsets.get(group, names.HALF_TOPIC, 0) or 0
        self.pending.clear()
        self._copies.clear()
        self.scanned = min(half_progress, self._store.max_offset(HALF_QUEUE))
        self._op_marks = deque([(self.scanned, op_progress)])
        self._ended_ahead = self._read_ops(op_progress)
        while self.is_behind:
            before = self.scanned
            self.scan(on_half)
            assert self.scanned > before, f"the half queue is not readable at {before}"
        self._ended_ahead.clear()

    # Undecided halves

    def current(self, root: int) -> int:
        """The offset of the newest copy."""
        return self._copies.get(root, root)

    def is_pending(self, root: int) -> bool:
        current = self.current(root)
        return current in self.pending or (
            current >= self.scanned and current not in self._ended_ahead
        )

    def is_full(self) -> bool:
        return len(self.pending) >= HALVES_MAX

    def end(self, root: int) -> None:
        """Mark a transaction as decided; its OP message is in the log."""
        current = self._copies.pop(root, root)
        if not self.pending.discard(current) and current >= self.scanned:
            self._ended_ahead.add(current)

    def copied(self, root: int, offset: int) -> None:
        """Record a new copy of a half. The scan will find it there."""
        self.pending.discard(self.current(root))
        self._copies.put(root, offset)

    def lost(self, offset: int) -> None:
        """Drop an undecided half whose record cannot be read; the record would name the root."""
        self.end(self._copies.root_of(offset))

    # Reading the queues

    @property
    def is_behind(self) -> bool:
        """Whether halves can be seen that were not scanned yet."""
        return self.scanned < self._store.max_offset(HALF_QUEUE)

    def scan(self, on_half: OnHalf) -> None:
        """Read the next slice of the half queue."""
        if not self.is_behind:
            return
        with self._store.read(HALF_QUEUE, QueueOffset(self.scanned), _SLICE) as found:
            for stored in records(found):
                self._add(stored, on_half)
            self.scanned = found.next_offset

    def _add(self, stored: Stored, on_half: OnHalf) -> None:
        offset = int(stored.view.queue_offset)
        root = root_of(stored)
        if root != offset:
            # A crash may have left the copy without the OP message of its predecessor.
            self.pending.discard(self.current(root))
            self._copies.put(root, offset)
        if offset in self._ended_ahead:
            self._ended_ahead.discard(offset)
            self._copies.pop(root, root)
            return
        group = (stored.get(keys.PRODUCER_GROUP) or b"").decode("utf-8", "replace")
        self.pending.add(offset, group, stored.number(keys.TRANSACTION_CHECK_TIMES, 0))
        immunity_s = stored.number(keys.CHECK_IMMUNITY_TIME, -1)
        immunity_ms = None if immunity_s < 0 else immunity_s * 1000
        on_half(Half(offset, root != offset, stored.view.store_timestamp, immunity_ms))

    def _read_ops(self, offset: int) -> set[int]:
        done: set[int] = set()
        while offset < self._store.max_offset(OP_QUEUE):
            with self._store.read(OP_QUEUE, QueueOffset(offset), _SLICE) as found:
                for stored in records(found):
                    # RocketMQ 5 writes several offsets into one, separated by commas.
                    for text in stored.view.stored_body.split(b","):
                        done.add(number_of(text, -1))
                assert found.next_offset > offset, f"the OP queue is not readable at {offset}"
                offset = found.next_offset
        return done

    # Progress

    def progress(self) -> tuple[int, int]:
        """From where the half queue and the OP queue must be read after a start."""
        low = self.low
        marks = self._op_marks
        while len(marks) > 1 and marks[1][0] <= low:
            marks.popleft()
        op_low = marks[0][1]
        # An OP message is behind its half in the log, so it never becomes visible before it.
        mark = (
            int(self._store.max_offset(HALF_QUEUE)),
            int(self._store.max_offset(OP_QUEUE)),
        )
        if mark != marks[-1]:
            marks.append(mark)
        return low, op_low

    def save_progress(self, progress: tuple[int, int]) -> None:
        """Store what `progress` returned, as offsets of a group of the broker itself."""
        group = names.TRANSACTION_GROUP
        self._offsets.put(group, names.HALF_TOPIC, 0, progress[0])
        self._offsets.put(group, names.OP_TOPIC, 0, progress[1])

    @property
    def spread(self) -> int:
        """The number of messages from the oldest undecided half to the end of the queue."""
        return self.scanned - self.low

    @property
    def low(self) -> int:
        """No half below this offset is undecided."""
        oldest = self.pending.oldest
        return self.scanned if oldest is None else oldest


class _Copies:
    """Root to newest copy, of undecided transactions that were copied. Two arrays in the order of
    the roots: copies are few and created oldest first, so most entries are added near the end."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self._roots = array("q")
        self._offsets = array("q")

    def get(self, root: int, otherwise: int) -> int:
        rank = bisect_left(self._roots, root)
        return self._offsets[rank] if self._has(rank, root) else otherwise

    def put(self, root: int, offset: int) -> None:
        rank = bisect_left(self._roots, root)
        if self._has(rank, root):
            self._offsets[rank] = offset
        else:
            self._roots.insert(rank, root)
            self._offsets.insert(rank, offset)

    def pop(self, root: int, otherwise: int) -> int:
        rank = bisect_left(self._roots, root)
        if not self._has(rank, root):
            return otherwise
        del self._roots[rank]
        return self._offsets.pop(rank)

    def root_of(self, offset: int) -> int:
        """The root of the transaction whose newest copy has this offset. Searches all copies."""
        found = offset in self._offsets
        return self._roots[self._offsets.index(offset)] if found else offset

    def _has(self, rank: int, root: int) -> bool:
        return rank < len(self._roots) and self._roots[rank] == root


def root_of(stored: Stored) -> int:
    """The transaction that a half message belongs to. A copy always follows its root, so a property
    that names a later offset was not written by this broker."""
    offset = int(stored.view.queue_offset)
    return min(stored.number(keys.TRANSACTION_PREPARED_QUEUE_OFFSET, offset), offset)


def op_entry(offset: int, *, born_ms: int, host: bytes) -> Entry:
    """The OP message that marks a half as decided."""
    return Incoming(
        names.OP_TOPIC,
        0,
        b"%d" % offset,
        b"TAGS\x01d\x02",
        born_timestamp=born_ms,
        born_host=host,
    ).to_entry()
