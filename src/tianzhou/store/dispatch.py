"""Dispatch: derive queues and index from new bytes of the log, in bounded slices.

The same code runs right after an append and for a rebuild of a whole log. It stops at the given
limit, because a message must not be visible before it is as durable as configured.
"""

from collections import deque
from collections.abc import Sequence
from typing import Final, NamedTuple

from tianzhou.base.kinds import Bytes, PhysicalOffset
from tianzhou.record.walk import Stop
from tianzhou.store.commit_log import CommitLog
from tianzhou.store.consume_queue import UNIT
from tianzhou.store.derivation import Derivation
from tianzhou.store.derive import Derived, Malformed, QueueUnits, derive
from tianzhou.store.failpoint import failpoint
from tianzhou.store.key_index import KeyIndex
from tianzhou.store.queues import Queues
from tianzhou.store.scan import Damage, next_sound_record, read_slice

_FRESH_BYTES_MAX: Final = 8 * 1024 * 1024
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


class _Fresh(NamedTuple):
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
        self.position = log.min_offset
        self.anchor = PhysicalOffset(0)
        """Start of the last record before `position`."""
        self.last_timestamp = 0
        self.damage: list[Damage] = []
        """Ranges that no longer contained a record when they were dispatched."""
        self.malformed: list[Malformed] = []
        """Records that were skipped because they cannot be put into a queue. The owner of the
        dispatcher clears and reports both lists."""
        self._fresh: deque[_Fresh] = deque()
        self._fresh_bytes = 0

    def offer(self, offset: PhysicalOffset, data: Bytes, starts: Sequence[int]) -> None:
        """Buffer adjacent records that were appended at `offset`, until they are dispatched."""
        if self._fresh_bytes + len(data) <= _FRESH_BYTES_MAX:
            self._fresh.append(_Fresh(offset, data, starts))
            self._fresh_bytes += len(data)

    def run(self, limit: PhysicalOffset) -> list[QueueUnits]:
        """Dispatch one slice between the position and the limit; empty at the limit."""
        if self.position >= limit:
            return []
        while self._fresh and self._fresh[0].offset < self.position:
            self._fresh_bytes -= len(self._fresh.popleft().data)
        if self._fresh and self._fresh[0].offset == self.position:
            fresh = self._fresh[0]
            # Several small chunks are faster as one slice of the log.
            worth = len(self._fresh) == 1 or len(fresh.starts) >= _WORTH_KEEPING
            if worth and fresh.offset + len(fresh.data) <= limit:
                return self.apply(fresh.data, fresh.starts, len(fresh.data), base=fresh.offset)
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
        failpoint("dispatch.before_queues")
        for run in runs:
            if not self._queues.obtain(run.queue).append(run.first, run.units):
                malformed += malformed_of(run)
        failpoint("dispatch.before_index")
        if self._index is not None and len(derived.key_hashes):
            self._index.put(derived.key_hashes, derived.key_offsets, derived.key_timestamps)
        if derived.last_timestamp is not None:
            self.last_timestamp = derived.last_timestamp
        if malformed:
            self.malformed += malformed  # added here because a failed slice is applied again
        self.anchor, self.position = PhysicalOffset(anchor), PhysicalOffset(end)
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
        self._fresh.clear()
        self._fresh_bytes = 0
        self.position, self.anchor, self.last_timestamp = position, anchor, timestamp

    def skip_to(self, position: PhysicalOffset) -> None:
        """Skip bytes without records: a blank tail, or damage that was reported."""
        assert position >= self.position
        self.position = position
