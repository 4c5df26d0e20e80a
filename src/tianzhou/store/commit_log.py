"""The commit log: every record of every topic, one after the other.

A record never spans two files: a file without room for the next one ends with a blank record. The
writer stamps a chunk, writes it with one `pwrite` per file and advances `end`; it does not wait for
the disk. Space is reserved before anything is written, so that a full disk rejects the whole chunk.
"""

import errno
import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from tianzhou.base.kinds import Bytes, PhysicalOffset, QueueKey
from tianzhou.base.limits import BLANK_BYTES_MIN
from tianzhou.record.chunk import RecordChunk, stamp
from tianzhou.record.errors import RecordTooLarge
from tianzhou.record.layout import BLANK, MAGIC_BLANK
from tianzhou.record.light_queues import is_light
from tianzhou.store import append_check, segments
from tianzhou.store.descriptors import Failure, is_shortage, shortage_text
from tianzhou.store.errors import DiskFull
from tianzhou.store.failpoint import armed, failpoint
from tianzhou.store.files import Files
from tianzhou.store.segments import PageSums, Segment

HOT_MEMORY_RATIO: Final = 0.4
"""RocketMQ's rule: the end of the log, up to this fraction of memory, is assumed to be cached."""


class LogSpan(NamedTuple):
    """Records `first` to `end` of a chunk, which are in this segment from this offset on."""

    segment: Segment
    offset: PhysicalOffset
    first: int
    end: int


class Appended(NamedTuple):
    """The positions of a chunk's records."""

    end: PhysicalOffset
    """The records are durable once the log is flushed up to here."""
    queue_offsets: Sequence[int]
    spans: list[LogSpan]
    starts: list[int]

    def physical_offsets(self) -> list[int]:
        """The log offset of each record."""
        return [
            span.offset - self.starts[span.first] + start
            for span in self.spans
            for start in self.starts[span.first : span.end]
        ]


class NextOffsets(dict[QueueKey, int]):
    """The queue offsets of the next messages: what a store assigns when it appends.

    Owner: the store's writer.    Invariant: at least the end of each queue; more while messages of
    the queue are not dispatched yet
    """

    def __init__(self, ends: Mapping[QueueKey, int]) -> None:
        super().__init__(ends)
        self.light_count = sum(is_light(key.topic) for key in self)
        """Light queues among them."""

    def assign(self, queues: list[QueueKey | None]) -> tuple[Sequence[int], dict[QueueKey, int]]:
        """Return the queue offsets for a chunk, and the new ends of its queues. They take effect
        only when the chunk is in the log."""
        get = self.get
        first = queues[0] if queues else None
        if first is not None and queues.count(first) == len(queues):
            offset = get(first)
            if offset is None:  # add the row now, while a MemoryError is harmless
                offset = self[first] = 0
            return range(offset, offset + len(queues)), {first: offset + len(queues)}
        ends: dict[QueueKey, int] = {}
        offsets: list[int] = []
        for queue in queues:
            if queue is None:
                offsets.append(0)
                continue
            offset = ends.get(queue)
            if offset is None and (offset := get(queue)) is None:
                offset = self[queue] = 0
            ends[queue] = offset + 1
            offsets.append(offset)
        return offsets, ends

    def assign_light(self, chunk: RecordChunk, ends: dict[QueueKey, int]) -> None:
        """Write the offsets in light queues into the records of a chunk, and add the new ends."""
        for room in chunk.rooms:
            offsets: list[int] = []
            for queue in room.queues:
                offset = ends.get(queue)
                if offset is None and (offset := self.get(queue)) is None:
                    self.light_count += 1
                    offset = self[queue] = 0
                ends[queue] = offset + 1
                offsets.append(offset)
            room.write(chunk.data, offsets)

    def forget(self, keys: Iterable[QueueKey]) -> None:
        """Restart these queues at 0."""
        for key in keys:
            if self.pop(key, None) is not None:
                self.light_count -= is_light(key.topic)


class CommitLog:
    """Owner: the store's writer. The flusher reads `end` and the segments, and prepares files.

    Invariant: min_offset <= end <= start of the last segment + file size
    """

    def __init__(
        self, files: Files, directory: str, *, file_bytes: int, reserve_bytes: int
    ) -> None:
        self._files = files
        self.directory = directory
        self.file_bytes = file_bytes
        self._reserve_bytes = reserve_bytes
        files.make_dirs(directory)
        self.segments = segments.open_all(files, directory, file_bytes)
        self.end = self.min_offset
        self.mark: tuple[PhysicalOffset, int] = (self.end, 0)
        """The end and the store time of the last record before it, as one value: the flusher
        reads them in another thread."""
        self._opened_end = self.end
        self._hot_bytes = int(files.memory_bytes() * HOT_MEMORY_RATIO)
        self._is_removal_unsynced = False
        self.prepared: Segment | None = None
        """The next file, created before it is needed."""
        self._preparing = threading.Lock()

    @property
    def min_offset(self) -> PhysicalOffset:
        return self.segments[0].start if self.segments else PhysicalOffset(0)

    # Writing

    def append(
        self, chunk: RecordChunk, *, queue_offsets: Sequence[int], now_ms: int
    ) -> list[LogSpan]:
        """Write all records of a chunk and return their positions. The chunk is almost always one
        span.

        Raises DiskFull if nothing was written. After an OSError some records may be written."""
        if armed:
            failpoint("log.before_append")
        try:
            spans = self._plan(chunk)
            for span in spans:
                stamp(
                    chunk,
                    span.first,
                    span.end,
                    queue_offsets=queue_offsets[span.first : span.end],
                    physical_offset=span.offset,
                    store_timestamp=now_ms,
                )
        except MemoryError as error:
            raise self._refused(error, len(chunk.data)) from error
        try:
            for span in spans:
                self._write(chunk, span, now_ms)
            if armed:
                failpoint("log.after_append")
        except MemoryError as error:
            raise OSError(errno.ENOMEM, "out of memory between two writes") from error
        return spans

    def _write(self, chunk: RecordChunk, span: LogSpan, now_ms: int) -> None:
        segment = span.segment
        if segment.start > self.end:
            self._close_file(segment)
        start, stop = chunk.starts[span.first], chunk.ends[span.end - 1]
        whole = start == 0 and stop == len(chunk.data)
        data = chunk.data if whole else memoryview(chunk.data)[start:stop]
        if append_check.installed:
            append_check.check(data, span.offset, chunk.queues[span.first : span.end])
        end = PhysicalOffset(span.offset + stop - start)
        mark = (end, now_ms)
        segment.write(span.offset - segment.start, data)
        if armed:
            failpoint("log.after_write")
        self.end, self.mark = end, mark

    def append_raw(self, data: Bytes, *, timestamp: int) -> None:
        """Append bytes unchanged, across the ends of files: whole records, and blank records with
        their full size. `timestamp` is the store time of the last record."""
        at, view = 0, memoryview(data)
        if armed:
            failpoint("log.before_append")
        while at < len(view):
            try:
                segment = self._segment_for_write(self.end)
                span = view[at : at + segment.start + self.file_bytes - self.end]
                self._reserve(segment, self.end - segment.start + len(span))
                end = PhysicalOffset(self.end + len(span))
                mark = (end, timestamp)
            except (OSError, MemoryError) as error:
                raise self._refused(error, len(view) - at) from error
            segment.write(self.end - segment.start, span)
            if armed:
                failpoint("log.after_write")
            self.end, self.mark = end, mark
            at += len(span)
        if armed:
            failpoint("log.after_append")

    def _refused(self, error: Failure, size: int) -> Exception:
        if not is_shortage(error):
            return error
        return DiskFull(
            f"not enough space in {self.directory} for {size} more bytes; nothing was stored; "
            f"{shortage_text(error)}"
        )

    def _plan(self, chunk: RecordChunk) -> list[LogSpan]:
        """Find and reserve space for every record, before anything is written."""
        tail = self.segments[-1] if self.segments else None
        if tail is not None:
            at = self.end - tail.start
            if at >= 0 and at + len(chunk.data) + BLANK_BYTES_MIN <= tail.reserved:
                return [LogSpan(tail, self.end, 0, len(chunk.starts))] if chunk.starts else []
        spans: list[LogSpan] = []
        first, offset = 0, self.end
        try:
            while first < len(chunk):
                segment = self._segment_for_write(offset)
                room = segment.start + self.file_bytes - offset - BLANK_BYTES_MIN
                end = chunk.fitting(first, room)
                if end > first:
                    size = chunk.ends[end - 1] - chunk.starts[first]
                    self._reserve(segment, offset - segment.start + size + BLANK_BYTES_MIN)
                    spans.append(LogSpan(segment, offset, first, end))
                elif offset == segment.start:
                    size = chunk.ends[first] - chunk.starts[first]
                    raise RecordTooLarge(
                        f"a record of {size} bytes does not fit a file of {self.file_bytes}; "
                        "raise commit_log_file_bytes for a new directory"
                    )
                if end < len(chunk):
                    self._reserve(segment, offset - segment.start + BLANK_BYTES_MIN)
                    offset = PhysicalOffset(segment.start + self.file_bytes)
                first = end
        except (OSError, MemoryError) as error:
            raise self._refused(error, len(chunk.data)) from error
        return spans

    def _segment_for_write(self, offset: PhysicalOffset) -> Segment:
        """Return the segment with this offset, creating it if the log has not reached it."""
        tail = self.segments[-1] if self.segments else None
        if tail is not None and offset < tail.start + self.file_bytes:
            return self.segments[(offset - self.segments[0].start) // self.file_bytes]
        failpoint("log.before_roll")
        with self._preparing:
            # The file stays in `_prepared` until it is part of the log: memory may run out in
            # between.
            segment = self.prepared = self.prepared or self._create(offset)
            assert segment.start == offset
            segment.sums = PageSums(0)
            self.segments.append(segment)
            self.prepared = None
        self._forget_sums()
        failpoint("log.after_roll")
        return segment

    def _forget_sums(self) -> None:
        """Free the page checksums of files that are no longer cached: they are read from the
        disk."""
        for segment in self.segments:
            if segment.start + self.file_bytes <= self.end - self._hot_bytes:
                segment.sums = None

    def _reserve(self, segment: Segment, end: int) -> None:
        end = min(end, self.file_bytes)
        if end > segment.reserved:
            step = self._reserve_bytes
            wanted = min((end + step - 1) // step * step, self.file_bytes)
            segment.file.reserve(segment.reserved, wanted)
            segment.reserved = wanted

    def _close_file(self, following: Segment) -> None:
        """Mark the rest of the current file as blank and continue in the next."""
        room = following.start - self.end
        if room > 0:
            current = self.segments[(self.end - self.segments[0].start) // self.file_bytes]
            at = self.end - current.start
            current.file.pwrite(at, BLANK.pack(room, MAGIC_BLANK))
            failpoint("log.after_blank")
            self.end = following.start

    def prepare_next(self) -> None:
        """Create the next file before it is needed. Called by the flusher.

        The lock is held while the file is created: a writer that reaches the end of its file in
        the meantime waits, instead of creating, and truncating, the same file.
        """
        with self._preparing:
            tail = self.segments[-1] if self.segments else None
            if tail is None or self.prepared is not None:
                return
            if self.end - tail.start >= self.file_bytes // 2:
                self.prepared = self._create(PhysicalOffset(tail.start + self.file_bytes))

    def _create(self, start: PhysicalOffset) -> Segment:
        return segments.create(
            self._files,
            self.directory,
            start,
            size=self.file_bytes,
            reserve=self._reserve_bytes,
        )

    # Reading

    def segment_at(self, offset: int) -> Segment | None:
        """Return the segment with this offset; None if it is expired or does not exist yet."""
        held = self.segments
        if not held or not held[0].start <= offset < self.end:
            return None
        return held[(offset - held[0].start) // self.file_bytes]

    def read(self, offset: int, size: int) -> bytes | None:
        """Stored bytes within one file; None if the log does not contain them. Raises OSError."""
        segment = self.segment_at(offset)
        if segment is None or offset + size > self.end:
            return None
        at = offset - segment.start
        if at + size > self.file_bytes:
            return None
        return segment.read(at, at + size)

    @property
    def hot_from(self) -> int:
        """Bytes below this offset are read from the disk, or were when the log was opened; later
        ones were written recently."""
        return max(self._opened_end, self.end - self._hot_bytes)

    def set_end(self, end: PhysicalOffset, timestamp: int) -> None:
        """Set the end of the log, as found by recovery or after a truncation."""
        self.end = self._opened_end = end
        self.mark = (end, timestamp)
        for segment in self.segments:
            at = end - segment.start
            segment.sums = PageSums(at) if 0 <= at < self.file_bytes else None

    # Truncation

    def cut(self, end: PhysicalOffset) -> bool:
        """Durably remove everything after `end`; returns whether there was anything."""
        found = False
        with self._preparing:
            prepared, self.prepared = self.prepared, None
        if prepared is not None:
            self._drop(prepared)
        # Newest first, each synced before the next: a crash leaves a log without a gap.
        while self.segments and self.segments[-1].start >= max(end, self.min_offset + 1):
            segment = self.segments.pop()
            found |= any(segment.salvage(0, 8).data)
            self._drop(segment)
        tail = self.segments[-1] if self.segments else None
        if tail is not None and end < tail.start + self.file_bytes:
            at = end - tail.start
            found |= any(tail.salvage(at, min(at + 8, self.file_bytes)).data)
            # Truncating and extending frees the blocks; they read as zero afterwards.
            tail.file.truncate(at)
            tail.file.truncate(self.file_bytes)
            tail.reserved = 0
            tail.file.sync()
        return found

    def begin_at(self, start: PhysicalOffset) -> None:
        """Delete every file and continue at `start`, a multiple of the file size."""
        assert start % self.file_bytes == 0, f"no file starts at {start}"
        self.cut(self.min_offset)
        while self.segments:
            self._drop(self.segments.pop())
        self.segments.append(self._create(start))
        self.set_end(start, 0)

    def _drop(self, segment: Segment) -> None:
        segment.close()
        self._files.remove(segment.file.path)
        self._files.sync_dir(self.directory)

    # Syncing and removing

    def sync(self, start: int, end: int) -> None:
        """Sync the bytes of this range."""
        for segment in tuple(self.segments):  # the writer may add one meanwhile
            if segment.start + self.file_bytes > start and segment.start < end:
                segment.file.sync()

    def remove_first(self) -> None:
        """Remove the oldest file."""
        assert len(self.segments) > 1, "the file that is being written stays"
        # Sync each removal before the next: a crash must not restore an older file alone.
        if self._is_removal_unsynced:
            self._files.sync_dir(self.directory)
        segment = self.segments[0]
        self._files.remove(segment.file.path)
        self._is_removal_unsynced = True
        self.segments.pop(0)
        segment.close()
        self._files.sync_dir(self.directory)
        self._is_removal_unsynced = False

    def close(self) -> None:
        with self._preparing:
            prepared, self.prepared = self.prepared, None
        if prepared is not None:
            prepared.close()
        for segment in self.segments:
            segment.close()
