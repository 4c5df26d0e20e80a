"""A message store some of whose reads are not ready, as with storage that is slower than a disk."""

from collections.abc import Callable, Collection
from typing import Any, Final

from tianzhou.base.kinds import QueueKey, QueueOffset
from tianzhou.store.read import PendingRead, ReadLimit, ReadResult
from tianzhou.store.store import MessageStore

_ZERO: Final = QueueOffset(0)


class DeferringStore(MessageStore):
    """A real store. Reads of the queues in `deferred` return a `PendingRead` until `make_ready`; so
    do lookups by key and by log offset while `defers_lookups` is set."""

    def __init__(self, *args: Any, **options: Any) -> None:
        self.deferred: set[QueueKey] = set()
        self.defers_lookups = False
        self.deferred_count = 0
        """Reads that were not ready."""
        self._repeats: list[Callable[[], None]] = []
        super().__init__(*args, **options)

    def make_ready(self) -> None:
        """Serve every read from now on, and notify the callers that wait."""
        self.deferred.clear()
        self.defers_lookups = False
        repeats, self._repeats = self._repeats, []
        for repeat in repeats:
            repeat()

    @property
    def waiting_count(self) -> int:
        """Callers that wait to be notified."""
        return len(self._repeats)

    def read(
        self,
        key: QueueKey,
        start: QueueOffset,
        limit: ReadLimit = ReadLimit(),  # noqa: B008 - frozen
        *,
        tags_codes: Collection[int] | None = None,
    ) -> ReadResult:
        if key in self.deferred and self.min_offset(key) <= start < self.max_offset(key):
            return self._pending(start, self.min_offset(key), self.max_offset(key))
        return super().read(key, start, limit, tags_codes=tags_codes)

    def record_at(self, offset: int) -> ReadResult:
        return self._pending() if self.defers_lookups else super().record_at(offset)

    def find(self, topic: str, key: str, **range_: int) -> ReadResult:
        return self._pending() if self.defers_lookups else super().find(topic, key, **range_)

    def _pending(
        self,
        start: QueueOffset = _ZERO,
        first: QueueOffset = _ZERO,
        end: QueueOffset = _ZERO,
    ) -> PendingRead:
        self.deferred_count += 1
        return PendingRead(
            next_offset=start, min_offset=first, max_offset=end, on_ready=self._repeats.append
        )
