"""Check of a consume queue against the log: replays what `ConsumeQueue.append` must have done."""

from collections.abc import Callable

from tianzhou.store.consume_queue import UNIT, UNIT_BYTES, ConsumeQueue, gap_max
from tianzhou.store.derive_record import QueueUnits


class QueueCheck:
    """Takes the runs of one queue in the order of the log, and compares them with its files."""

    __slots__ = (
        "_file_units", "_kept", "_last", "_owed_of", "_queue", "count", "deleted", "end",
        "is_wrong", "owed", "pending",
    )  # fmt: skip

    def __init__(
        self,
        queue: ConsumeQueue | None,
        file_units: int,
        owed_of: Callable[[bytes], int],
        *,
        kept: int = 0,
    ) -> None:
        """`owed_of` returns how many of some units should be in the queue by now. Offsets below
        `kept` may belong to lost messages."""
        self._queue = queue
        self._kept = kept
        self._file_units = file_units
        self._owed_of = owed_of
        self.end = 0
        self._last: int | None = None
        """The log offset of the newest message; None before the first."""
        self.count = 0
        self.is_wrong = False
        self.pending = self.owed = 0
        """Units that the queue lacks, and how many of these it should have."""
        self.deleted = 0
        """Units from before the topic was deleted and created again."""

    @property
    def exists(self) -> bool:
        return self._queue is not None

    def take(self, run: QueueUnits) -> bool:
        """False for a run that dispatch rejected because its rank is impossible."""
        first, units = int(run.first), run.units
        offset, size, _ = UNIT.unpack_from(units)
        if self.end < self._kept <= first:
            self.end = self._kept
        if self._last is not None:
            if first < self.end and offset > self._last:
                self._begin_again()
            elif first - self.end > gap_max(self._last, offset, size, self._file_units):
                return False
            elif first < self.end:
                # Two records claim the same rank; the first one keeps it.
                units = units[(self.end - first) * UNIT_BYTES :]
                first = self.end
        if units:
            self._compare(first, units)
            self.end = first + len(units) // UNIT_BYTES
            self._last = UNIT.unpack_from(units, len(units) - UNIT_BYTES)[0]
        return True

    def _begin_again(self) -> None:
        self.deleted += self.count
        self.count = self.end = self.pending = self.owed = 0
        self.is_wrong = False

    def _compare(self, first: int, units: bytes) -> None:
        count = len(units) // UNIT_BYTES
        self.count += count
        queue = self._queue
        have = min(max((queue.end if queue else 0) - first, 0), count)
        if queue is not None and have and queue.read(first, have) != units[: have * UNIT_BYTES]:
            self.is_wrong = True
        self.pending += count - have
        self.owed += self._owed_of(units[have * UNIT_BYTES :])
