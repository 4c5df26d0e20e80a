"""What users of a store depend on, in parts. `MessageStore` satisfies all of them.

A part of the broker that only reads takes a `QueueReader`, one that stores messages a
`LogAppender`; replication copies bytes between logs through a `ReplicaLog`.
"""

from collections.abc import Callable, Collection
from typing import Protocol

from tianzhou.base.kinds import Bytes, PhysicalOffset, QueueKey, QueueOffset
from tianzhou.record.chunk import RecordChunk
from tianzhou.store.commit_log import Appended, CommitLog
from tianzhou.store.files import Files
from tianzhou.store.layout import Paths
from tianzhou.store.read import ReadLimit, ReadResult
from tianzhou.store.search import Boundary


class StorePlace(Protocol):
    """Where a store is, for those who keep a table of their own beside its tables."""

    @property
    def files(self) -> Files: ...
    @property
    def paths(self) -> Paths: ...


class QueueReader(Protocol):
    """Reads queues, and finds messages by time, key or place. Called by the store's owner."""

    def read(
        self,
        key: QueueKey,
        start: QueueOffset,
        limit: ReadLimit = ...,
        *,
        tags_codes: Collection[int] | None = None,
    ) -> ReadResult:
        """Read stored records of a queue from an offset on. The caller releases the result."""
        ...

    def min_offset(self, key: QueueKey) -> QueueOffset:
        """The oldest offset that can be read; 0 for an unknown queue."""
        ...

    def max_offset(self, key: QueueKey) -> QueueOffset:
        """The offset that the next visible message gets; 0 for an unknown queue."""
        ...

    def offset_by_time(
        self, key: QueueKey, timestamp: int, boundary: Boundary = ...
    ) -> QueueOffset:
        """The offset of the message that was stored at a timestamp, or next to it."""
        ...

    def find(
        self, topic: str, key: str, *, begin_ms: int = ..., end_ms: int = ..., count_max: int = ...
    ) -> ReadResult:
        """Find messages by key or unique id, newest first. The caller releases the result."""
        ...

    def record_at(self, offset: int) -> ReadResult:
        """Read the record at an offset of the log. The caller releases the result."""
        ...


class LogAppender(Protocol):
    """Appends messages, and says whether and how far they are stored."""

    @property
    def is_writing(self) -> bool:
        """Whether messages may be appended: the log does not follow another one."""
        ...

    @property
    def is_broken(self) -> bool:
        """Whether an error has ended all writing until the store is opened again."""
        ...

    @property
    def refusal(self) -> str:
        """Why appends are currently refused; empty if they are not."""
        ...

    @property
    def flushed(self) -> PhysicalOffset:
        """Every byte of the log below this offset is on the disk."""
        ...

    def append(self, chunk: RecordChunk) -> Appended:
        """Append records. Raises DiskFull, StoreFenced or StoreClosed, and then stores nothing."""
        ...

    def assigned_end(self, key: QueueKey) -> int:
        """The queue offset that the next appended message gets."""
        ...

    def ask_flush(self) -> None:
        """Ask the flush thread to sync what was appended."""
        ...


class ReplicaLog(Protocol):
    """Receives the bytes of another log, and truncates what a new master does not have."""

    log: CommitLog

    @property
    def flushed(self) -> PhysicalOffset:
        """Every byte of the log below this offset is on the disk."""
        ...

    @property
    def is_writing(self) -> bool:
        """Whether messages may be appended: the log does not follow another one."""
        ...

    def append_raw(self, offset: PhysicalOffset, data: Bytes) -> PhysicalOffset:
        """Append bytes of another log unchanged; returns the new end."""
        ...

    def append_between(self, data: Bytes, *, timestamp: int) -> None:
        """Append bytes that belong to no queue, between messages."""
        ...

    def truncate(self, offset: PhysicalOffset) -> None:
        """Discard everything from this offset on, in the log, the queues and the index."""
        ...

    def begin_again(self, offset: PhysicalOffset) -> None:
        """Discard everything and continue with an empty log that begins at this offset."""
        ...

    def begin_writing(self) -> None:
        """Accept messages from now on, as a master does."""
        ...

    def stop_writing(self) -> None:
        """Accept no messages until `begin_writing`, as a replica does."""
        ...

    def limit_visible(self, bound: Callable[[], PhysicalOffset] | None) -> None:
        """Keep records beyond this offset invisible to consumers; None: no limit."""
        ...

    def when_expired(self, call: Callable[[], None]) -> None:
        """Call this when files of the log were deleted."""
        ...

    def dispatch_all(self) -> None:
        """Make everything visible that may be visible."""
        ...
