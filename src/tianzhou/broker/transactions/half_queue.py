"""Which half messages are still undecided.

The half queue holds every transactional message as it was sent; the OP queue holds, for each that
is done with, its offset in the half queue. What was scanned and is not `pending` is decided: no
other memory of decisions is needed, however late a second one comes.

A half that stays undecided for long is copied to the end of the queue, so that progress, and with
it what a start has to read and what retention has to keep, does not wait for it. The copy names its
root, the offset of the first: a transaction is its root, wherever its newest copy stands.

A start reads both queues from the progress that was saved:

    half progress: no half below it is pending
    OP progress:   no OP message below it speaks of a half at or above the half progress
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
from tianzhou.store.read import ReadLimit
from tianzhou.store.store import MessageStore

HALF_QUEUE: Final = queue_key(names.HALF_TOPIC, 0)
OP_QUEUE: Final = queue_key(names.OP_TOPIC, 0)
HALVES_MAX: Final = 1_000_000
"""Undecided halves at once: 30 to 60 MB, with the schedule of their checks."""
_SLICE: Final = ReadLimit(count=400, size=1 << 26)
"""Reading them takes about 6 ms of the event loop. Bodies are not looked at, so their size hardly
matters."""


class Half(NamedTuple):
    """An undecided message, as the scan found it."""

    offset: int
    """Of its newest copy."""
    is_copy: bool
    stored_ms: int
    immunity_ms: int | None
    """How long its producer wants to be left alone; None: as the settings say."""


OnHalf = Callable[[Half], None]


class HalfQueue:
    """Owner: the broker loop.

    Invariant: offsets in `pending` ascend and are below `scanned`
    """

    def __init__(self, store: MessageStore, offsets: ConsumerOffsets) -> None:
        self._store = store
        self._offsets = offsets
        self.pending = PendingHalves()
        self.scanned = 0
        self._copies = _Copies()
        self._ended_ahead: set[int] = set()
        """Decided before the scan came to them."""
        self._op_marks: deque[tuple[int, int]] = deque([(0, 0)])
        """Ends of the half queue and the OP queue, together, at some moments."""

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
            self.scan(on_half)
        self._ended_ahead.clear()

    # What is undecided

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
        """The transaction is done with; its OP message is in the log."""
        current = self._copies.pop(root, root)
        if not self.pending.discard(current) and current >= self.scanned:
            self._ended_ahead.add(current)

    def copied(self, root: int, offset: int) -> None:
        """The half has a new copy. The scan will find it there."""
        self.pending.discard(self.current(root))
        self._copies.put(root, offset)

    def lost(self, offset: int) -> None:
        """The record of an undecided half is gone, and with it the root that the record names."""
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
                self._met(stored, on_half)
            self.scanned = found.next_offset

    def _met(self, stored: Stored, on_half: OnHalf) -> None:
        offset = int(stored.view.queue_offset)
        root = root_of(stored)
        if root != offset:
            # A crash may have left the copy and not the mark that its predecessor is done with.
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
        # An OP message stands behind its half in the log, so it is never seen before it.
        mark = (
            int(self._store.max_offset(HALF_QUEUE)), int(self._store.max_offset(OP_QUEUE)),
        )  # fmt: skip
        if mark != marks[-1]:
            marks.append(mark)
        return low, op_low

    @property
    def spread(self) -> int:
        """How much of the half queue lies between the oldest undecided and the end."""
        return self.scanned - self.low

    @property
    def low(self) -> int:
        """No half below this offset is undecided."""
        oldest = self.pending.oldest
        return self.scanned if oldest is None else oldest


class _Copies:
    """Root to newest copy, of undecided transactions that were copied. Two arrays in the order of
    the roots: copies are few and made oldest first, so most entries are added near the end."""

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
    """The message that says: this half is done with."""
    return Incoming(
        names.OP_TOPIC, 0, b"%d" % offset, b"TAGS\x01d\x02",
        born_timestamp=born_ms, born_host=host,
    ).to_entry()  # fmt: skip
