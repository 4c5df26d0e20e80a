"""The reading part of a store: by queue offset, timestamp, key and log offset."""

from collections.abc import Callable, Collection, Iterable
from itertools import islice
from typing import Final

from tianzhou.base.errors import UsageError
from tianzhou.base.kinds import QueueKey, QueueOffset
from tianzhou.store import read, search
from tianzhou.store.commit_log import CommitLog
from tianzhou.store.derivation import Derivation
from tianzhou.store.derive import Malformed
from tianzhou.store.descriptors import NotOpened, shortage_text
from tianzhou.store.dispatch import Dispatcher
from tianzhou.store.errors import DiskFull
from tianzhou.store.files import Files, Usage
from tianzhou.store.key_index import QUERY_COUNT_MAX, KeyIndex
from tianzhou.store.layout import Paths
from tianzhou.store.queues import Queues
from tianzhou.store.read import ReadLimit, ReadResult, ReadStatus
from tianzhou.store.retention import usages
from tianzhou.store.search import Boundary

DAMAGED_MAX: Final = 10_000
"""Damaged records that are remembered, so that each is reported only once."""


class StoreReader:
    """Reads queues and finds messages. Owner: the store's writer."""

    files: Files
    paths: Paths
    log: CommitLog
    queues: Queues
    index: KeyIndex | None
    dispatcher: Dispatcher

    def __init__(self) -> None:
        self.damaged: set[int] = set()
        """Records that were found damaged when they were read."""
        self.on_damage: Callable[[int], None] = lambda _offset: None
        """Called once for each of them."""
        self.on_malformed: Callable[[Malformed], None] = lambda _record: None
        """Called once for each intact record that belongs to no queue."""

    def report_damage(
        self,
        *,
        on_damage: Callable[[int], None],
        on_malformed: Callable[[Malformed], None],
        on_index_damage: Callable[[str, str], None],
    ) -> None:
        """Call these for damage that reading finds: in the log, in its structure, in the index."""
        self.on_damage, self.on_malformed = on_damage, on_malformed
        if self.index is not None:
            self.index.on_damage = on_index_damage

    def read(
        self,
        key: QueueKey,
        start: QueueOffset,
        limit: ReadLimit = ReadLimit(),  # noqa: B008 - frozen
        *,
        tags_codes: Collection[int] | None = None,
    ) -> ReadResult:
        """Read stored records of a queue from an offset on. The caller releases the result."""
        queue = self.queues.get(key)
        if queue is None:
            zero = QueueOffset(0)
            status = ReadStatus.NO_MATCHED_LOGIC_QUEUE
            return ReadResult(status, next_offset=zero, min_offset=zero, max_offset=zero)
        try:
            return self._noted(read.read(self.log, queue, start, limit, tags_codes=tags_codes))
        except NotOpened as error:
            raise DiskFull(f"the queue cannot be read now; {shortage_text(error)}") from error

    @property
    def derivation(self) -> Derivation:
        """Inputs of queue derivation besides the log."""
        assert self.dispatcher.derivation is not None
        return self.dispatcher.derivation

    @property
    def usage(self) -> Usage:
        """Usage of the disk with the log."""
        return self.files.usage(self.paths.commit_log)

    def usages(self) -> dict[str, Usage]:
        """Usage of every disk of the store, by path."""
        return usages(self.files, self.paths)

    def _was_recovered(self, malformed: Iterable[int]) -> None:
        """Initialise from recovery: the offsets of records it left out, and the end of the log."""
        self.damaged.update(islice(malformed, DAMAGED_MAX))
        self.derivation.begin(self.log.min_offset, self.log.end)

    def _note_damage(self) -> None:
        """Report the records that dispatch had to skip."""
        for damage in self.dispatcher.take_damage():
            self._report(damage.start, self.on_damage)
        for record in self.dispatcher.take_malformed():
            self._report(record.offset, lambda _, record=record: self.on_malformed(record))

    def _noted(self, result: ReadResult) -> ReadResult:
        for offset in result.damaged:
            self._report(offset, self.on_damage)
        return result

    def _report(self, offset: int, report: Callable[[int], None]) -> None:
        if offset not in self.damaged and len(self.damaged) < DAMAGED_MAX:
            self.damaged.add(offset)
            report(offset)

    def min_offset(self, key: QueueKey) -> QueueOffset:
        queue = self.queues.get(key)
        return queue.min_offset if queue else QueueOffset(0)

    def max_offset(self, key: QueueKey) -> QueueOffset:
        """Return the queue offset of the next visible message."""
        queue = self.queues.get(key)
        return queue.end if queue else QueueOffset(0)

    def offset_by_time(
        self, key: QueueKey, timestamp: int, boundary: Boundary = Boundary.LOWER
    ) -> QueueOffset:
        """Return the offset of the message that was stored at a timestamp, or next to it."""
        queue = self.queues.get(key)
        if queue is None:
            return QueueOffset(0)
        return search.offset_by_time(self.log, queue, timestamp, boundary)

    def find(
        self,
        topic: str,
        key: str,
        *,
        begin_ms: int = 0,
        end_ms: int = 1 << 62,
        count_max: int = QUERY_COUNT_MAX,
    ) -> ReadResult:
        """Find messages with this key or unique id, newest first; one span each. The caller
        releases the result."""
        if self.index is None:
            raise UsageError("index_enabled is off, so messages cannot be found by key")
        return self._noted(
            search.find(
                self.log,
                self.index,
                topic=topic,
                key=key,
                begin_ms=begin_ms,
                end_ms=end_ms,
                count_max=count_max,
            )
        )

    def record_at(self, offset: int) -> ReadResult:
        """Read the record at this log offset, as in an offset id. The caller releases the
        result."""
        return self._noted(search.record_at(self.log, offset, limit=self.dispatcher.position))
