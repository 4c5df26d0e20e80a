"""Dispatch: derive queues and index from new bytes of the log, in bounded slices.

The same code runs right after an append and for a rebuild of a whole log. It stops at the given
limit, because a message must not be visible before it is as durable as configured.
"""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from tianzhou.base.kinds import Bytes, PhysicalOffset
from tianzhou.record.walk import Stop
from tianzhou.store.commit_log import CommitLog
from tianzhou.store.consume_queue import UNIT, Queues
from tianzhou.store.derivation import Derivation
from tianzhou.store.derive import Derived, Malformed, QueueUnits, derive
from tianzhou.store.failpoint import armed, failpoint
from tianzhou.store.key_index import KeyIndex
from tianzhou.store.scan import Damage, next_sound_record, read_slice

FRESH_BYTES_MAX: Final = 8 * 1024 * 1024
"""How much of the end of the log is kept in memory until it is dispatched."""
_WORTH_KEEPING: Final = 512


def malformed_of(run: QueueUnits) -> list[Malformed]:
    """Records that their queue rejected, see `ConsumeQueue.append`."""
    return [
        Malformed(
            offset,
            size,
            f"claims offset {rank} of queue {run.queue.queue_id} of "
            f"{run.queue.topic}, more than the log can have held before it",
        )
        for rank, (offset, size, _) in enumerate(UNIT.iter_unpack(run.units), run.first)
    ]


class FreshRecords(NamedTuple):
    """Records that were just written, with their positions, so that they need not be read again."""

    offset: PhysicalOffset
    data: Bytes
    starts: Sequence[int]


class Dispatcher:
    """Owner: the store's writer.

    Invariant: queues and index hold everything of the log below `position`, and nothing beyond.
    """

    def __init__(
        self, log: CommitLog, queues: Queues, index: KeyIndex | None, delays_ms: Sequence[int]
    ) -> None:
        self._log = log
        self._queues = queues
        self._index = index
        self._delays_ms = delays_ms
        self.derivation: Derivation | None = None
        """Earlier delay levels and deleted topics; None means the levels above and no deletions."""
        self.visible_bound: Callable[[], PhysicalOffset] | None = None
        """Nothing beyond this offset becomes visible, even if it is durable. Set by
        replication."""
        self.position = log.min_offset
        self.anchor = PhysicalOffset(0)
        """Start of the last record before `position`."""
        self.last_timestamp = 0
        self.damage: list[Damage] = []
        """Ranges that no longer contained a record when they were dispatched."""
        self.malformed: list[Malformed] = []
        """Records that were skipped because they cannot be put into a queue. The owner of the
        dispatcher clears and reports both lists."""
        self.fresh: deque[FreshRecords] = deque()
        """Chunks in the order of the log. The writer adds what it appended, up to the limit; the
        rest is read again."""

    def run(self, limit: PhysicalOffset) -> list[QueueUnits]:
        """Dispatch one slice between the position and the limit; empty at the limit."""
        if self.position >= limit:
            return []
        fresh = self.fresh
        while fresh and fresh[0].offset < self.position:
            fresh.popleft()
        if fresh and fresh[0].offset == self.position:
            offset, data, starts = fresh[0]
            # Several small chunks are faster as one slice of the log.
            worth = len(fresh) == 1 or len(starts) >= _WORTH_KEEPING
            if worth and offset + len(data) <= limit:
                return self.apply(data, starts, len(data), base=offset)
        return self._slice(limit)

    def _slice(self, limit: PhysicalOffset) -> list[QueueUnits]:
        segment = self._log.segment_at(self.position)
        assert segment is not None, f"dispatch is at {self.position}, outside of the log"
        start = self.position - segment.start
        end = min(limit - segment.start, self._log.file_bytes)
        data, base, found, is_whole = read_slice(segment, start, end)
        if found.starts:
            return self.apply(data, found.starts, found.end, base=base)
        if found.stop is Stop.BLANK:
            self.skip_to(PhysicalOffset(segment.start + self._log.file_bytes))
            return self.run(limit)
        why = found.stop.name.lower() if is_whole else "unreadable"
        self._step_over(limit, f"no record where one was appended ({why})")
        return self.run(limit)

    def _step_over(self, limit: PhysicalOffset, reason: str) -> None:
        """Skip bytes that the medium changed after they were appended. The limit is the end of a
        record, so dispatch can always continue there."""
        log, start = self._log, self.position
        behind = next_sound_record(log.segments, log.file_bytes, start)
        self.skip_to(limit if behind is None else min(behind, limit))
        self.damage.append(Damage(start, self.position, reason))

    def apply(
        self, buffer: Bytes, starts: Sequence[int], end: int, *, base: PhysicalOffset
    ) -> list[QueueUnits]:
        """Add adjacent records to queues and index, and advance the position past them."""
        derivation = self.derivation
        if derivation is None or derivation.is_uniform:
            delays_ms = self._delays_ms if derivation is None else derivation.delays_ms
            derived = derive(buffer, starts, end, base=base, delays_ms=delays_ms)
            return self._add(derived, derived.runs, base + starts[-1], base + end)
        runs: list[QueueUnits] = []
        for part in derivation.parts(starts, end, base=base):
            derived = derive(buffer, part.starts, part.end, base=base, delays_ms=part.delays_ms)
            lives = [live for run in derived.runs if (live := derivation.live(run)) is not None]
            runs += self._add(derived, lives, base + part.starts[-1], base + part.end)
        return runs

    def _add(
        self, derived: Derived, runs: list[QueueUnits], anchor: int, end: int
    ) -> list[QueueUnits]:
        malformed = [*derived.malformed]
        if armed:
            failpoint("dispatch.before_queues")
        for run in runs:
            if not self._queues.obtain(run.queue).append(run.first, run.units):
                malformed += malformed_of(run)
        if armed:
            failpoint("dispatch.before_index")
        if self._index is not None and len(derived.key_hashes):
            self._index.put(derived.key_hashes, derived.key_offsets, derived.key_timestamps)
        if derived.last_timestamp is not None:
            self.last_timestamp = derived.last_timestamp
        if malformed:
            self.malformed += malformed  # added here because a failed slice is applied again
        self.anchor, self.position = PhysicalOffset(anchor), PhysicalOffset(end)
        if armed:
            failpoint("dispatch.after")
        return runs

    def take_damage(self) -> list[Damage]:
        taken, self.damage = self.damage, []
        return taken

    def take_malformed(self) -> list[Malformed]:
        taken, self.malformed = self.malformed, []
        return taken

    def go_back(self, position: PhysicalOffset, anchor: PhysicalOffset, timestamp: int) -> None:
        """Reset the position after log, queues and index were truncated here."""
        self.fresh.clear()
        self.position, self.anchor, self.last_timestamp = position, anchor, timestamp

    def skip_to(self, position: PhysicalOffset) -> None:
        """Skip bytes without records: a blank tail, or damage that was reported."""
        assert position >= self.position
        self.position = position
