"""Consume queues: the positions of the messages of each queue in the commit log.

This is in one file because a queue and the table of all queues share one format and one cache of
open files, and every message passes through both.

A unit has 20 bytes, and its rank is its position:

    physical_offset 8 | size 4 | tags_code 8

Files have a fixed number of units, are named by the offset of their first byte, and are zero where
nothing was written. New units are buffered in memory (`tail`) and written a page at a time; units
lost in a crash are derived from the log again. A unit that marks a missing message (the log was
damaged there, or the queue started later) has offset 0 and the largest size.
"""

import contextlib
import resource
import struct
import threading
from collections.abc import Callable, Iterator
from itertools import count, pairwise
from typing import Final, NamedTuple

from tianzhou.base.kinds import PhysicalOffset, QueueKey, QueueOffset, queue_key
from tianzhou.base.limits import QUEUE_OFFSET_MAX, TOPIC_DIRECTORY_BYTES_MAX
from tianzhou.record.light_queues import is_light
from tianzhou.store.descriptors import is_unopened
from tianzhou.store.errors import StoreDamaged
from tianzhou.store.failpoint import failpoint
from tianzhou.store.file_cache import FileCache
from tianzhou.store.files import File, Files, list_visible
from tianzhou.store.segments import file_name, is_file_name

UNIT: Final = struct.Struct(">qiq")
UNIT_BYTES: Final = UNIT.size
MISSING_SIZE: Final = 0x7FFFFFFF
MISSING: Final = UNIT.pack(0, MISSING_SIZE, 0)

TAIL_BYTES_MAX: Final = 4096
"""A page of units in memory: few enough that thousands of queues stay small."""
_BLANK: Final = bytes(UNIT_BYTES)
_PAGE_UNITS: Final = TAIL_BYTES_MAX // UNIT_BYTES
_BLOCK_BYTES: Final = 4096
"""Holes in files start at multiples of this number, or of a larger one."""

assert UNIT_BYTES == 20


class Unit(NamedTuple):
    physical_offset: PhysicalOffset
    size: int
    tags_code: int


def gap_max(before: int, offset: int, size: int, file_units: int) -> int:
    """How many messages can be missing between a queue's last record and the one at `offset`.

    Each of them took at least one byte of the log. A record that claims a higher rank is wrong, and
    would fill the disk with meaningless units.
    """
    if size == MISSING_SIZE:  # not a record: recovery or replication sets the next rank
        return QUEUE_OFFSET_MAX
    return max(offset + size - before, file_units)


class ConsumeQueue:
    """Owner: the store's writer.

    Invariant: first <= min_offset <= end;  written + len(tail) / 20 == end
    """

    __slots__ = (
        "_cache",
        "_file_units",
        "_last_written",
        "directory",
        "first",
        "is_light",
        "key",
        "log_min",
        "min_offset",
        "tail",
        "written",
    )

    def __init__(self, cache: FileCache, directory: str, key: QueueKey, file_units: int) -> None:
        self._cache = cache
        self.directory = directory
        self.key = key
        self.is_light = is_light(key.topic)
        """Whether it is a light queue: its records belong to other topics."""
        self._file_units = file_units
        self.tail = bytearray()
        """Units that are in memory only."""
        self.first = QueueOffset(0)
        """Rank of the first unit of the oldest file."""
        self.min_offset = QueueOffset(0)
        self.written = QueueOffset(0)
        """Units before this rank are in the files."""
        self._last_written = b""
        """The unit before `written`; empty if the file has to be read for it."""
        self.log_min = PhysicalOffset(0)
        """The log offset for which the minimum was computed."""

    @property
    def count(self) -> int:
        return self.written + len(self.tail) // UNIT_BYTES - self.first

    @property
    def is_expired(self) -> bool:
        """Whether it had messages and the log has none of them any more."""
        return self.min_offset == self.end > 0

    @property
    def is_unwritten(self) -> bool:
        """Whether units are in memory only."""
        return bool(self.tail)

    @property
    def end(self) -> QueueOffset:
        return QueueOffset(self.written + len(self.tail) // UNIT_BYTES)

    # Loading

    def load(self, *, below: PhysicalOffset, clean: bool, repair: bool = False) -> None:
        """Load the units of messages below this offset; truncate the rest.

        After a clean stop there are no later units, and nothing is written. Raises StoreDamaged if
        the files contradict each other, unless they are to be repaired: then the newest count.
        """
        starts = self._file_starts(repair=repair)
        if not starts:
            return
        self.first = self.min_offset = QueueOffset(starts[0])
        self.log_min, self._last_written = PhysicalOffset(0), b""
        self.written = QueueOffset(starts[-1] + self._file_units)
        self._check_sizes(starts, heal=not clean, repair=repair)
        end, last = self._search_written(below)
        if clean or self._is_blank_from(end):
            self.written = end
        else:
            self.truncate(end)
        if end > self.first:
            self._last_written = last or self.read(end - 1, 1)

    def _file_starts(self, *, repair: bool) -> list[int]:
        names = list_visible(self._cache.files, self.directory)
        for name in names:
            if not is_file_name(name) or int(name) % (self._file_units * UNIT_BYTES):
                raise StoreDamaged(f"{self.directory}/{name}", "is not a consume queue file")
        starts = [int(name) // UNIT_BYTES for name in names]
        for rank, (before, after) in enumerate(pairwise(starts), 1):
            if after == before + self._file_units:
                continue
            if repair:
                self._remove(starts[:rank])
                return self._file_starts(repair=repair)
            raise StoreDamaged(self._path(before + self._file_units), "is missing")
        return starts

    def _check_sizes(self, starts: list[int], *, heal: bool, repair: bool) -> None:
        for start in starts:
            path = self._path(start)
            file, wanted = self._cache.get(path), self._file_units * UNIT_BYTES
            size = file.size()
            if size < wanted and (repair or (heal and start == starts[-1])):
                file.truncate(wanted)
            elif size != wanted:
                raise StoreDamaged(path, f"has {size} bytes and should have {wanted}")

    def _search_written(self, below: PhysicalOffset) -> tuple[QueueOffset, bytes]:
        """First rank that is not written, or points at or beyond `below`; and the unit before it,
        if it was already read."""

        def is_written(offset: int, size: int) -> bool:
            return size == MISSING_SIZE or (size > 0 and 0 <= offset < below)

        # A start calls this once per queue, and most queues hold less than a page. A written unit
        # is never all zeros, so the units end at the first zeros of the page.
        page = self.read(self.first, min(_PAGE_UNITS, self.written - self.first))
        count = -(-page.find(_BLANK) // UNIT_BYTES)
        last = page[max(0, count - 1) * UNIT_BYTES : count * UNIT_BYTES]
        if count > 0 and is_written(*UNIT.unpack(last)[:2]):
            return QueueOffset(self.first + count), last
        return self._first_not(is_written, self.first, self.written)

    def _is_blank_from(self, end: QueueOffset) -> bool:
        """Whether the files are empty from this rank on and need no truncation: truncating 50,000
        files is slow, and each of them must be synced afterwards."""
        start = (self.written - 1) // self._file_units * self._file_units
        if end < start:
            return False  # in the last file but one, or before
        file, at = self._cache.get(self._path(start)), (end - start) * UNIT_BYTES
        size = self._file_units * UNIT_BYTES
        page_end = min(-(-at // _BLOCK_BYTES) * _BLOCK_BYTES, size)
        return file.next_data(page_end) >= size and not file.pread(at, page_end - at).strip(b"\0")

    def _first_not(
        self, is_before: Callable[[int, int], bool], low: QueueOffset, high: QueueOffset
    ) -> tuple[QueueOffset, bytes]:
        """First rank in `low … high` whose unit is not "before", by its offset and size; and the
        unit before that rank, or nothing if it was not read.

        Reads a page at `low` first, then single units in steps that double, then the page where
        the answer is: a start searches every queue, and most hold less than a page.
        """
        start, page = low, self.read(low, min(_PAGE_UNITS, high - low))
        if high - low > _PAGE_UNITS and is_before(*UNIT.unpack(page[-UNIT_BYTES:])[:2]):
            low, high = self._narrowed(is_before, QueueOffset(low + _PAGE_UNITS), high)
            start, page = low, self.read(low, high - low)
        high = QueueOffset(min(high, start + len(page) // UNIT_BYTES))
        while low < high:
            rank = (low + high) // 2
            offset, size, _ = UNIT.unpack_from(page, (rank - start) * UNIT_BYTES)
            if is_before(offset, size):
                low = QueueOffset(rank + 1)
            else:
                high = QueueOffset(rank)
        at = (low - start) * UNIT_BYTES
        return low, page[max(0, at - UNIT_BYTES) : at]

    def _narrowed(
        self, is_before: Callable[[int, int], bool], low: QueueOffset, high: QueueOffset
    ) -> tuple[QueueOffset, QueueOffset]:
        """The bounds of `_first_not`, until they are within a page."""
        step = _PAGE_UNITS
        while high - low > _PAGE_UNITS:
            rank = low + min(step, (high - low) // 2)
            if is_before(*UNIT.unpack(self.read(rank, 1))[:2]):
                low, step = QueueOffset(rank + 1), step * 2
            else:
                high, step = QueueOffset(rank), high - low
        return low, high

    # Writing

    def append(self, first: QueueOffset, units: bytes) -> bool:
        """Add units from rank `first` on. Existing units are skipped; a gap is marked.

        False, and nothing is added, if the gap is larger than the log allows.
        """
        end = self.end
        if first < end and units and self._is_behind_all(units):
            self._begin_again()
            end = self.end
        if first > end:
            if end == self.first and not self.tail:
                self._begin_at(first)
            if not self._mark_missing(first, units):
                return False
        elif first < end:
            units = units[(end - first) * UNIT_BYTES :]
        self.tail += units
        if len(self.tail) >= TAIL_BYTES_MAX:
            self.write_out()
        return True

    def _mark_missing(self, first: QueueOffset, units: bytes) -> bool:
        """Mark the ranks before `first` as missing, a page at a time: a gap takes no memory."""
        offset, size, _ = UNIT.unpack_from(units or MISSING)
        before = self.last_physical_offset() if self.end > self.first else 0
        if first - self.end > gap_max(before, offset, size, self._file_units):
            return False
        if self.end < first:
            self.log_min = PhysicalOffset(0)  # the minimum may have to skip these
        while self.end < first:
            self.tail += MISSING * min(first - self.end, TAIL_BYTES_MAX // UNIT_BYTES)
            if len(self.tail) >= TAIL_BYTES_MAX // UNIT_BYTES * UNIT_BYTES:
                self.write_out()
        return True

    def _is_behind_all(self, units: bytes) -> bool:
        """Restart the queue at a lower rank later in the log: the topic was deleted there and
        created again. A rebuild still finds the earlier messages in the log."""
        last = self.last_unit()
        if last is None:
            return True
        return last.size == MISSING_SIZE or UNIT.unpack_from(units)[0] > last.physical_offset

    def _begin_again(self) -> None:
        self._remove_files()
        self._cache.dirty_dirs.add(self.directory)
        self.first = self.min_offset = self.written = QueueOffset(0)
        self.log_min, self._last_written = PhysicalOffset(0), b""

    def _begin_at(self, first: QueueOffset) -> None:
        """Start a queue whose older messages have expired in the file of its first message."""
        start = QueueOffset(first // self._file_units * self._file_units)
        if self.written == self.first and not self._has_files():
            self.first = self.written = start
            self.min_offset = first

    def _has_files(self) -> bool:
        return bool(self._cache.files.list(self.directory))

    def write_out(self) -> None:
        """Move the tail into the files. They are synced later, with the checkpoint."""
        while self.tail:
            failpoint("queue.before_write")
            start = self.written // self._file_units * self._file_units
            room = (start + self._file_units - self.written) * UNIT_BYTES
            piece = self.tail[:room]
            path = self._path(start)
            file = self._file_for_write(path, fresh=self.written == start)
            file.pwrite((self.written - start) * UNIT_BYTES, piece)
            self._cache.dirty.add(path)
            # Computed first and then assigned, so that a MemoryError cannot leave a partial update.
            written = QueueOffset(self.written + len(piece) // UNIT_BYTES)
            last = bytes(piece[-UNIT_BYTES:])
            del self.tail[:room]
            self.written, self._last_written = written, last
            failpoint("queue.after_write")

    def _file_for_write(self, path: str, *, fresh: bool) -> File:
        if not fresh or self._cache.files.exists(path):
            return self._cache.get(path)
        if not self._cache.files.exists(self.directory):
            self._cache.files.make_dirs(self.directory)
        file = self._cache.create(path, self._file_units * UNIT_BYTES)
        failpoint("queue.after_create")
        return file

    def truncate(self, end: QueueOffset) -> None:
        """Truncate units from this rank on, on disk too: truncated units must never come back."""
        if end >= self.written:
            del self.tail[max(0, end - self.written) * UNIT_BYTES :]
            return
        self.tail.clear()
        self._last_written = b""
        last = max(self.first, QueueOffset(end // self._file_units * self._file_units))
        start = (self.written - 1) // self._file_units * self._file_units
        self._remove(list(range(start, last, -self._file_units)))
        if end < last + self._file_units:
            file = self._cache.get(self._path(last))
            file.truncate((end - last) * UNIT_BYTES)
            file.truncate(self._file_units * UNIT_BYTES)
            self._cache.dirty.add(self._path(last))
        self.written = end

    def cut(self, below: PhysicalOffset) -> None:
        """Truncate units of messages at or beyond this offset. The positions of trailing missing
        messages are unknown; if they were before the offset, the next message marks the gap
        again."""
        self.write_out()
        end, _ = self._search_written(below)
        while end > self.first and self.unit(end - 1).size == MISSING_SIZE:
            end = QueueOffset(end - 1)
        self.truncate(end)
        self.min_offset = min(self.min_offset, self.end)

    # Reading

    def read(self, start: int, count: int) -> bytes:
        """Return the bytes of units from rank `start` on; fewer if the queue ends earlier."""
        end, written, units = min(start + count, self.end), self.written, b""
        while start < end and start < written:
            file_start = start // self._file_units * self._file_units
            stop = min(end, file_start + self._file_units, written)
            at, size = (start - file_start) * UNIT_BYTES, (stop - start) * UNIT_BYTES
            units += self._pread(self._path(file_start), at, size)
            start = stop
        if start >= end:
            return units
        at = (start - written) * UNIT_BYTES
        return units + self.tail[at : at + (end - start) * UNIT_BYTES]

    def _pread(self, path: str, at: int, size: int) -> bytes:
        """Raises StoreDamaged if the disk cannot read these bytes or the file was truncated.
        Readers must not skip such messages: the next start derives the queue from the log again."""
        try:
            data = self._cache.get(path).pread(at, size)
        except OSError as error:
            if is_unopened(error):
                raise  # the file itself is intact
            raise StoreDamaged(path, f"cannot be read: {error}", offset=at) from error
        if len(data) != size:
            raise StoreDamaged(path, f"ends at byte {at + len(data)}", offset=at)
        return data

    def unit(self, rank: int) -> Unit:
        offset, size, tags_code = UNIT.unpack(self.read(rank, 1))
        return Unit(PhysicalOffset(offset), size, tags_code)

    def last_unit(self) -> Unit | None:
        """Return the newest unit; None for an empty queue. Reads no file, except after a
        truncation."""
        if self.end == self.first:
            return None
        raw = bytes(self.tail[-UNIT_BYTES:]) or self._last_written or self.read(self.end - 1, 1)
        offset, size, tags_code = UNIT.unpack(raw)
        return Unit(PhysicalOffset(offset), size, tags_code)

    def last_physical_offset(self) -> PhysicalOffset:
        """The log offset of the newest message; 0 for an empty queue."""
        last = self.last_unit()
        return PhysicalOffset(0) if last is None else last.physical_offset

    # Retention

    def raise_minimum(self, log_min: PhysicalOffset) -> None:
        """Move the minimum to the first message that the log still has."""
        if log_min <= self.log_min:
            return
        self.log_min = log_min
        low, high = self.min_offset, self.end
        if low < high and self.unit(low).physical_offset >= log_min:
            return

        def is_gone(offset: int, size: int) -> bool:
            return size == MISSING_SIZE or offset < log_min

        self.min_offset, _ = self._first_not(is_gone, low, high)

    def remove_expired(self) -> int:
        """Remove files whose every unit lies below the minimum; the newest always stays."""
        last = max(self.written - 1, self.first) // self._file_units * self._file_units
        kept = min(self.min_offset // self._file_units * self._file_units, last)
        expired = range(self.first, kept, self._file_units)
        for start in expired:
            if start > expired[0]:
                self._cache.files.sync_dir(self.directory)
            self._remove([start])
            # Updated after each file: if no descriptor is free for the next sync, the rest is
            # synced later.
            self.first = QueueOffset(start + self._file_units)
        return len(expired)

    def _remove(self, starts: list[int]) -> None:
        """Remove files in this order, each synced before the next, so that a crash leaves no
        gap."""
        for rank, start in enumerate(starts):
            if rank:
                self._cache.files.sync_dir(self.directory)
            path = self._path(start)
            self._cache.drop(path)
            self._cache.files.remove(path)
        if starts:
            self._cache.dirty_dirs.add(self.directory)

    def remove_all(self) -> None:
        """Remove the queue's files and its directory."""
        self._remove_files()
        if self._cache.files.exists(self.directory):
            self._cache.files.remove_dir(self.directory)

    def let_go(self) -> None:
        """Close the queue's files and discard unwritten units: the queue was deleted."""
        for start in range(self.first, self.written + 1, self._file_units):
            self._cache.drop(self._path(start))
        self._cache.dirty_dirs.discard(self.directory)
        self.tail.clear()

    def move_files(self, places: Iterator[str], moved: list[str]) -> None:
        """Move the files of a deleted queue to these paths, add them to the list, and remove the
        directory. May be called from any thread, and again after an error."""
        files = self._cache.files
        for name in reversed(files.list(self.directory)):
            place = next(places)
            files.rename(f"{self.directory}/{name}", place)
            moved.append(place)
        if files.exists(self.directory):
            files.remove_dir(self.directory)

    def _remove_files(self) -> None:
        """Order the files for removal, the oldest last: without the others the queue is visibly too
        short, but without the oldest it would look like one whose first messages expired."""
        files = self._cache.files
        names = files.list(self.directory)
        for rank, name in reversed(tuple(enumerate(names))):
            if rank == 0 and len(names) > 1:
                files.sync_dir(self.directory)
            path = f"{self.directory}/{name}"
            self._cache.drop(path)
            files.remove(path)
        self.tail.clear()

    def _path(self, start: int) -> str:
        return f"{self.directory}/{file_name(start * UNIT_BYTES)}"


def sizes_of(units: bytes) -> tuple[int, ...]:
    """The sizes of the records that units point at."""
    return struct.unpack(">" + "8xi8x" * (len(units) // UNIT_BYTES), units)


OPEN_FILES_MAX: Final = 256
_NOTHING: Final = PhysicalOffset(0)
DELETED: Final = ".deleted"
"""Directory for files of deleted queues that still have to be removed. Listings skip it."""


class Census(NamedTuple):
    """Totals of all queues, as a checkpoint records them."""

    used: int
    """Queues that ever had a unit. A crash may leave the file of a queue that the checkpoint does
    not know of; it is not counted, because its units were truncated."""
    units: int
    """Units of all queues: a number that shows when a queue, or either end of one, is lost."""
    unwritten: list[ConsumeQueue]
    """Queues with units that are in memory only."""


def open_files_max() -> int:
    """Queue files that stay open: a quarter of what the process may open, at most 256."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return OPEN_FILES_MAX
    return max(1, min(OPEN_FILES_MAX, soft // 4))


class Queues:
    """Owner: the store's writer."""

    def __init__(
        self, files: Files, directory: str, file_units: int, *, create: bool = True
    ) -> None:
        self.directory = directory
        self.cache = FileCache(files, open_files_max())
        self._files = files
        self._file_units = file_units
        self._queues: dict[QueueKey, ConsumeQueue] = {}
        self._by_topic: dict[str, dict[QueueKey, ConsumeQueue]] = {}
        """The same queues: a deletion must not search all of them."""
        self._leaving: dict[str, list[ConsumeQueue]] = {}
        """By topic: deleted queues whose files are still in their place."""
        self._aside: dict[str, list[str]] = {}
        """By topic: their files once moved, until they are removed."""
        self._moving = threading.Lock()
        """Guards both, because the writer and the flush thread use them."""
        self._deleted = f"{directory}/{DELETED}"
        self._places = (f"{self._deleted}/{number:020d}" for number in count())
        self.log_min = PhysicalOffset(0)
        """The start of the log: messages below it have expired."""
        if create:
            files.make_dirs(directory)

    def __iter__(self) -> Iterator[ConsumeQueue]:
        return iter(self._queues.values())

    def __len__(self) -> int:
        return len(self._queues)

    def get(self, key: QueueKey) -> ConsumeQueue | None:
        queue = self._queues.get(key)
        if queue is not None and queue.log_min < self.log_min:
            # Retention has removed files of the log but not yet visited this queue.
            queue.raise_minimum(self.log_min)
        return queue

    def has(self, queue: ConsumeQueue) -> bool:
        """Whether this object is still the current one of its queue: the topic may have been
        deleted."""
        return self._queues.get(queue.key) is queue

    def of_topic(self, topic: str) -> list[ConsumeQueue]:
        return list(self._by_topic.get(topic, {}).values())

    def obtain(self, key: QueueKey) -> ConsumeQueue:
        """Return the queue, creating it if it is new."""
        queue = self._queues.get(key)
        if queue is None:
            topic_directory = f"{self.directory}/{key.topic}"
            if key.topic in self._leaving:
                self.move_aside(key.topic)  # the new queue has the same path
            self.cache.dirty_dirs |= {self.directory, topic_directory}
            queue = self._make(key)
            self._add(queue)
        return queue

    def _add(self, queue: ConsumeQueue) -> None:
        self._queues[queue.key] = queue
        self._by_topic.setdefault(queue.key.topic, {})[queue.key] = queue

    def _drop(self, queue: ConsumeQueue) -> None:
        del self._queues[queue.key]
        siblings = self._by_topic[queue.key.topic]
        del siblings[queue.key]
        if not siblings:
            del self._by_topic[queue.key.topic]

    def load(
        self, *, below: PhysicalOffset, clean: bool, log_min: PhysicalOffset = _NOTHING
    ) -> None:
        """Open the queues on disk up to messages below one offset, and raise the minimum of each
        queue to the other."""
        self.log_min = log_min
        for key in self.on_disk():
            queue = self._make(key)
            queue.load(below=below, clean=clean)
            # Done while the file is open: with many queues it would have to be opened again.
            queue.raise_minimum(log_min)
            self._add(queue)

    def on_disk(self) -> Iterator[QueueKey]:
        for topic in list_visible(self._files, self.directory):
            for name in list_visible(self._files, f"{self.directory}/{topic}"):
                if not name.isdecimal():
                    raise StoreDamaged(
                        f"{self.directory}/{topic}/{name}", "is not a queue number; move it away"
                    )
                yield queue_key(topic, int(name))

    def ends_on_disk(self) -> dict[QueueKey, int]:
        """The ends of queues according to their files alone. A queue with inconsistent files is
        left out. Changes nothing."""
        found: dict[QueueKey, int] = {}
        for key in self.on_disk():
            queue = self._make(key)
            with contextlib.suppress(StoreDamaged):
                queue.load(below=PhysicalOffset(1 << 62), clean=True)
                found[key] = queue.end
        return found

    def census(self) -> Census:
        """Count the queues in one pass with plain attributes: there may be 50,000, and the event
        loop waits."""
        used = units = 0
        unwritten: list[ConsumeQueue] = []
        for queue in self._queues.values():
            end = queue.written
            if tail := queue.tail:
                unwritten.append(queue)
                end += len(tail) // UNIT_BYTES
            if end:
                used += 1
                units += end - queue.first
        return Census(used, units, unwritten)

    def write_out(self) -> None:
        for queue in self._queues.values():
            queue.write_out()

    def remove(self, queue: ConsumeQueue) -> None:
        """Remove one queue, on disk with the next checkpoint."""
        queue.remove_all()
        self._drop(queue)
        directory = f"{self.directory}/{queue.key.topic}"
        self.cache.dirty_dirs -= {directory, queue.directory}
        if self._files.exists(directory) and not self._files.list(directory):
            self._files.remove_dir(directory)
        self.cache.dirty_dirs.add(self.directory)

    def remove_topic(self, topic: str, *, before: PhysicalOffset | None = None) -> int:
        """Remove every queue of a topic, or those that end before a log offset; returns how
        many."""
        queues = self._ending(topic, before)
        for queue in queues:
            queue.remove_all()
            self._drop(queue)
        directory = f"{self.directory}/{topic}"
        if queues and self._files.exists(directory):
            if not self._files.list(directory):
                self._files.remove_dir(directory)
                self.cache.dirty_dirs.discard(directory)
            self._files.sync_dir(self.directory)
        return len(queues)

    def detach(self, topic: str, *, before: PhysicalOffset | None) -> int:
        """Like `remove_topic`, but leave the files to `move_aside` and `remove_aside`: while a
        thread syncs, changing a directory may take 100 ms. The queues may be created again at
        once."""
        queues = self._ending(topic, before)
        for queue in queues:
            queue.let_go()
            self._drop(queue)
        with self._moving:
            self._leaving.setdefault(topic, []).extend(queues)
        if topic in self._by_topic:
            self.move_aside(topic)  # queues that stay use the directory
        else:
            self.cache.dirty_dirs.discard(f"{self.directory}/{topic}")
        return len(queues)

    def move_aside(self, topic: str) -> None:
        """Rename the files of a topic's deleted queues. May be called from any thread, and again
        after an error."""
        with self._moving:
            queues, directory = self._leaving.get(topic, []), f"{self.directory}/{topic}"
            if queues:
                self._files.make_dirs(self._deleted)
            while queues:
                queues[-1].move_files(self._places, self._aside.setdefault(topic, []))
                queues.pop()
            if topic in self._leaving:
                if self._files.exists(directory) and not self._files.list(directory):
                    self._files.remove_dir(directory)
                del self._leaving[topic]

    def remove_aside(self, topic: str) -> None:
        """Remove the renamed files of a topic. Called like `move_aside`."""
        with self._moving:
            moved = self._aside.get(topic, [])
            while moved:
                self._files.remove(moved[-1])
                moved.pop()
            self._aside.pop(topic, None)

    def _ending(self, topic: str, before: PhysicalOffset | None) -> list[ConsumeQueue]:
        """The queues of a topic, or those that end before a log offset."""
        queues = self.of_topic(topic)
        if before is None:
            return queues
        return [queue for queue in queues if queue.last_physical_offset() < before]

    def remove_set_aside(self) -> None:
        """Remove the remaining files of deleted queues now."""
        if self._files.exists(self._deleted):
            for name in self._files.list(self._deleted):
                self._files.remove(f"{self._deleted}/{name}")
            self._files.remove_dir(self._deleted)

    def keep_expired(self, log_min: PhysicalOffset) -> None:
        """Remove, on disk too, every unit that can be derived from the log again. Units of expired
        messages stay: only they record how many there were, and a queue that restarted at 0 would
        make groups skip the next messages."""
        self._queues.clear()
        self._by_topic.clear()
        for key in tuple(self.on_disk()):
            queue = self.obtain(key)
            try:
                queue.load(below=log_min, clean=False, repair=True)
                is_needed = log_min > 0 and queue.end > 0
            except StoreDamaged:
                is_needed = False  # its end is then what the log says
            if not is_needed:
                queue.remove_all()
                self._drop(queue)
        for topic in list_visible(self._files, self.directory):
            if not self._files.list(f"{self.directory}/{topic}"):
                self._files.remove_dir(f"{self.directory}/{topic}")

    def close(self) -> None:
        self.cache.close()

    def _make(self, key: QueueKey) -> ConsumeQueue:
        # Admission and `derive` check names too; this is the last line of defence.
        if not is_topic_name(key.topic):
            raise StoreDamaged(self.directory, f"{key.topic!r} is not a valid directory name")
        directory = f"{self.directory}/{key.topic}/{key.queue_id}"
        return ConsumeQueue(self.cache, directory, key, self._file_units)


def is_topic_name(topic: str) -> bool:
    """Whether queues of this topic can have a directory."""
    if not topic.strip(".") or "/" in topic or "\0" in topic:
        return False
    return len(topic.encode("utf-8", "replace")) <= TOPIC_DIRECTORY_BYTES_MAX
