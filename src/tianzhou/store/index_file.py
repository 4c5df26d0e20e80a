"""One file of the key index: hash slots, and entries chained newest first.

    header 40 | slots, 4 bytes each | entries, 20 bytes each

    header: begin_timestamp 8 | end_timestamp 8 | begin_offset 8 | end_offset 8 |
            slot_count 4 | entry_count 4
    entry:  key_hash 4 | physical_offset 8 | seconds 4 | previous 4

Slots are numbered from 0 and hold the number of the newest entry of their chain, 0 meaning none.
Entries are numbered from 1; `entry_count` is the number the next one gets, so it starts at 1 and
the place of entry 0 stays unused. `seconds` is the store time relative to the file's begin.

Entries are buffered in memory and written a page at a time, in blocks that were reserved before: a
write for each key would cost as much as the rest of the index. Keys hash all over the slots, so
writing each changed slot would cost one system call per key: the slots of the newest file and its
header change in memory too. A checkpoint writes all of it: entries, then the header, then the pages
of slots that changed, so that no slot in the file leads beyond the header's count. A crash loses
what was not written, and recovery derives it from the log again. Everything is read with `pread`: a
bad sector or a truncated file raises an error for this file, never a signal.

This is one file because header, slots and entries are one format, and must be written in an order
that survives a crash.
"""

import struct
from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tianzhou.store.errors import StoreDamaged
from tianzhou.store.failpoint import armed, failpoint
from tianzhou.store.files import File

HEADER: Final = struct.Struct(">qqqqii")
SLOT: Final = struct.Struct(">i")
ENTRY: Final = struct.Struct(">iqii")
ENTRY_FIELDS: Final = (
    ("key_hash", ">i4"),
    ("physical_offset", ">i8"),
    ("seconds", ">i4"),
    ("previous", ">i4"),
)
_ENTRY_DTYPE: Final = np.dtype(list(ENTRY_FIELDS))
_NUMPY_FROM: Final = 20
_RESERVE_BYTES: Final = 1 << 20
_SECONDS_MAX: Final = 2**31 - 1
_TAIL_BYTES: Final = 4096
"""Entries that are buffered in memory before they are written."""
_CUT_ENTRIES: Final = 1 << 16
"""Entries that a truncation reads at once."""
SLOT_BYTES: Final = SLOT.size
_PAGE_SHIFT: Final = 10
PAGE_SLOTS: Final = 1 << _PAGE_SHIFT
"""Slots in 4 KiB."""
SLICE_PAGES: Final = 256
"""Pages that one call of `write_some` writes: 1 MiB, less than a millisecond."""
_SLOT_DTYPE: Final = np.dtype(">i4")

assert (HEADER.size, SLOT.size, ENTRY.size, _ENTRY_DTYPE.itemsize) == (40, 4, 20, 20)

Ints = npt.NDArray[np.int64]


def file_bytes(slots: int, entries: int) -> int:
    return HEADER.size + SLOT.size * slots + ENTRY.size * entries


def _read(file: File, at: int, size: int) -> bytes:
    """Bytes of the file. Raises StoreDamaged if the disk cannot read them or the file was
    truncated."""
    try:
        data = file.pread(at, size)
    except OSError as error:
        raise StoreDamaged(file.path, f"can't be read at byte {at}: {error}") from error
    if len(data) != size:
        raise StoreDamaged(file.path, f"was shortened to {file.size()} bytes")
    return data


def empty_slots(count: int) -> npt.NDArray[np.int32]:
    """The values of a table whose chains are all empty. Raises MemoryError."""
    return np.zeros(count, np.int32)


class SlotTable:
    """Slots are numbered from 0; each holds the number of the newest entry of its chain.

    Owner: the index file.
    """

    def __init__(self, file: File, at: int, values: npt.NDArray[np.int32]) -> None:
        self._file = file
        self._at = at
        self.values = values
        self.heads = values.data.cast("B").cast("i")
        """The same slots: reading and writing one of them is faster here than in numpy."""
        pages = (len(values) + PAGE_SLOTS - 1) >> _PAGE_SHIFT
        self._changed_page = bytearray(pages)
        """1 for each page that changed; as with `heads`, setting one is faster here."""
        self._changed = np.frombuffer(self._changed_page, np.bool_)
        self._due = np.zeros(pages, np.bool_)
        self.is_doubtful = False
        """Whether memory ran out during a put: slots may then lead to entries that were not
        added."""

    @classmethod
    def empty(cls, file: File, at: int, slots: int) -> "SlotTable":
        return cls(file, at, empty_slots(slots))

    @classmethod
    def decode(cls, file: File, at: int, data: bytes) -> "SlotTable":
        """The table whose bytes were read from position `at` of the file."""
        return cls(file, at, np.frombuffer(data, _SLOT_DTYPE).astype(np.int32))

    def put(self, slot: int, number: int) -> None:
        """Set one slot."""
        self.heads[slot] = number
        self._changed_page[slot >> _PAGE_SHIFT] = 1

    def put_many(self, slots: npt.NDArray[Any], numbers: npt.NDArray[Any]) -> None:
        """Set many slots, each at most once."""
        self.values[slots] = numbers
        self._changed[slots >> _PAGE_SHIFT] = True

    def change_all(self) -> None:
        """Treat every slot as changed: the file has different content."""
        self._changed[:] = True

    def begin_write(self) -> None:
        """Mark all pages changed so far to be written by `write_some`."""
        self._due |= self._changed
        self._changed[:] = False

    def write_some(self) -> bool:
        """Write a slice of the marked pages; returns whether all of them are written. Raises
        OSError."""
        pages = np.flatnonzero(self._due)
        for run in _runs(pages[:SLICE_PAGES]):
            first, last = int(run[0]), int(run[-1])
            start, end = first << _PAGE_SHIFT, (last + 1) << _PAGE_SHIFT
            data = self.values[start:end].astype(_SLOT_DTYPE).tobytes()
            self._file.pwrite(self._at + SLOT_BYTES * start, data)
            self._due[first : last + 1] = False
        return len(pages) <= SLICE_PAGES


def _runs(pages: npt.NDArray[Any]) -> list[npt.NDArray[Any]]:
    """Adjacent pages, which one call writes."""
    if not len(pages):
        return []
    return np.split(pages, np.flatnonzero(np.diff(pages) != 1) + 1)


class EntryTable:
    """The entries of a file, the newest in memory. Owner: the index file.

    Invariant: the entries before `tail_from` are in the file
    """

    def __init__(self, file: File, at: int, *, places: int, count: int) -> None:
        self._file = file
        self._at = at
        self.places = places
        """Entries that the file has room for, entry 0 included."""
        self.reserved = 0
        """Blocks are known to be allocated up to here: a copy of a file may have holes."""
        self.tail = bytearray()
        """The newest entries, which are not yet in the file."""
        self.tail_from = count
        """The number of the first of them, or of the next entry."""

    def check_length(self) -> None:
        """Raise if the file was truncated: entries after a hole would be found, and those in it
        silently missing."""
        found, wanted = self._file.size(), self._at + ENTRY.size * self.places
        if found < wanted:
            raise StoreDamaged(self._file.path, f"was shortened to {found} of {wanted} bytes")

    def reserve(self, count: int) -> None:
        """Allocate blocks for the entries below this number."""
        end = self._at + ENTRY.size * count
        if end > self.reserved:
            size = self._file.size()
            wanted = min((end + _RESERVE_BYTES) // _RESERVE_BYTES * _RESERVE_BYTES, size)
            self._file.reserve(self.reserved, max(wanted, end))
            self.reserved = wanted

    def write_tail(self) -> None:
        """Write all buffered entries to the file. On StoreDamaged or OSError the entries stay in
        memory."""
        if self.tail:
            self.check_length()
            behind = self.tail_from + len(self.tail) // ENTRY.size
            self._file.pwrite(self._at + ENTRY.size * self.tail_from, self.tail)
            self.tail_from = behind
            self.tail.clear()
            failpoint("index.after_entries")

    def drop_from(self, number: int) -> None:
        """Drop the buffered entries from this number on."""
        del self.tail[ENTRY.size * (number - self.tail_from) :]

    def entry(self, number: int) -> tuple[int, int, int, int]:
        if number >= self.tail_from:
            return ENTRY.unpack_from(self.tail, ENTRY.size * (number - self.tail_from))
        return ENTRY.unpack(_read(self._file, self._at + ENTRY.size * number, ENTRY.size))

    def written(self, first: int, end: int) -> npt.NDArray[Any]:
        """Entries that are in the file."""
        size = ENTRY.size * (end - first)
        return np.frombuffer(_read(self._file, self._at + ENTRY.size * first, size), _ENTRY_DTYPE)


class IndexFile:
    """Owner: the store's writer.

    Invariant: 1 <= count <= entries; every chain leads to smaller numbers
    """

    def __init__(self, file: File, *, slots: int, entries: int) -> None:
        self.file = file
        self._slots_number = slots
        if file.size() != file_bytes(slots, entries):
            raise StoreDamaged(
                file.path,
                f"has {file.size()} bytes; {slots} slots and {entries} entries need "
                f"{file_bytes(slots, entries)}",
            )
        self._table: SlotTable | None = None
        """The slots, once something was written; None while they are read from the file."""
        self._is_written = True
        """Whether the header in the file is up to date."""
        self.damage = ""
        """Why no more entries are added to this file."""
        self.count: int
        """The number that the next entry gets."""
        (
            self.begin_timestamp,
            self.end_timestamp,
            self.begin_offset,
            self.end_offset,
            self.slot_count,
            self.count,
        ) = HEADER.unpack(_read(file, 0, HEADER.size))
        at = HEADER.size + SLOT.size * slots
        self._entries = EntryTable(file, at, places=entries, count=self.count)

    @property
    def name(self) -> str:
        return self.file.path.rpartition("/")[2]

    @classmethod
    def begin(
        cls,
        file: File,
        slots: npt.NDArray[np.int32],
        *,
        entries: int,
        offset: int,
        timestamp: int,
    ) -> "IndexFile":
        """Create a file. It uses the last one's end as its begin until the first entry is added.

        `slots` are `empty_slots`, which the caller allocates before it creates the file."""
        slots_end = HEADER.size + SLOT.size * len(slots)
        file.reserve(0, slots_end)
        file.pwrite(0, HEADER.pack(timestamp, timestamp, offset, offset, 0, 1))
        made = cls(file, slots=len(slots), entries=entries)
        made._entries.reserved = slots_end
        made._table = SlotTable(file, HEADER.size, slots)
        return made

    @property
    def room(self) -> int:
        """How many more entries fit. Java leaves the last place unused, and so do we."""
        return self._entries.places - self.count

    @property
    def is_empty(self) -> bool:
        return self.count <= 1

    # Writing

    def put(self, hashes: Sequence[int], offsets: Sequence[int], timestamps: Sequence[int]) -> None:
        """Add entries in the order of the log. The caller has checked `room`. If this raises
        StoreDamaged or OSError, nothing was added."""
        entries, count = self._entries, self.count + len(hashes)
        assert count <= entries.places
        entries.check_length()
        table = self._table
        if table is None or table.is_doubtful:
            table = self._sound_slots()
        if len(entries.tail) + ENTRY.size * len(hashes) > _TAIL_BYTES:
            entries.write_tail()
        if armed:
            failpoint("index.before_put")
        entries.reserve(count)
        try:
            self._put(table, hashes, offsets, timestamps)
        except MemoryError:
            entries.drop_from(self.count)
            table.is_doubtful = True
            raise
        if armed:
            failpoint("index.after_put")

    def _sound_slots(self) -> SlotTable:
        """The slots in memory: read from the file, or rebuilt from the entries. Raises
        StoreDamaged."""
        if self._table is None:
            data = _read(self.file, HEADER.size, SLOT.size * self._slots_number)
            self._table = SlotTable.decode(self.file, HEADER.size, data)
        elif not self.cut(self.count):
            raise StoreDamaged(self.file.path, "has entries that are not in the order of the log")
        return self._table

    def _put(
        self,
        table: SlotTable,
        hashes: Sequence[int],
        offsets: Sequence[int],
        timestamps: Sequence[int],
    ) -> None:
        if self.count <= 1:  # the first entry's time is relative to the begin that it then replaces
            self._put_few(table, hashes[:1], offsets[:1], timestamps[:1])
            hashes, offsets, timestamps = hashes[1:], offsets[1:], timestamps[1:]
        if len(hashes) >= _NUMPY_FROM:
            self._put_many(table, np.asarray(hashes), np.asarray(offsets), np.asarray(timestamps))
        elif len(hashes):
            self._put_few(table, hashes, offsets, timestamps)

    def _put_few(
        self,
        table: SlotTable,
        hashes: Sequence[int],
        offsets: Sequence[int],
        timestamps: Sequence[int],
    ) -> None:
        slots, heads, number = self._slots_number, table.heads, self.count
        tail = self._entries.tail
        for key_hash, offset, timestamp in zip(hashes, offsets, timestamps, strict=True):
            slot = key_hash % slots
            previous = heads[slot]
            if not 0 < previous <= number:
                previous = 0
                self.slot_count += 1
            tail += ENTRY.pack(key_hash, offset, self._seconds(timestamp), previous)
            table.put(slot, number)
            number += 1
        self._was_put(len(hashes), offsets, timestamps)

    def _put_many(self, table: SlotTable, hashes: Ints, offsets: Ints, timestamps: Ints) -> None:
        numbers = np.arange(self.count, self.count + len(hashes))
        slots = hashes % self._slots_number
        previous = table.values[slots].astype(np.int64)
        previous[(previous < 0) | (previous > self.count)] = 0
        # Entries of this call that share a slot follow each other in the chain.
        order = np.argsort(slots, kind="stable")
        in_order = slots[order]
        repeats = in_order[1:] == in_order[:-1]
        previous[order[1:][repeats]] = numbers[order[:-1][repeats]]
        newest = np.append(~repeats, True)
        entries = np.empty(len(hashes), _ENTRY_DTYPE)
        entries["key_hash"] = hashes
        entries["physical_offset"] = offsets
        entries["seconds"] = self._all_seconds(timestamps)
        entries["previous"] = previous
        self._entries.tail += entries.tobytes()
        table.put_many(in_order[newest], numbers[order[newest]])
        self.slot_count += int(np.count_nonzero(previous == 0))
        self._was_put(len(hashes), offsets, timestamps)

    def _was_put(
        self, count: int, offsets: Sequence[int] | Ints, timestamps: Sequence[int] | Ints
    ) -> None:
        # Computed first and then assigned, so that a MemoryError cannot leave a partial update.
        count += self.count
        end_offset, end_timestamp = int(offsets[-1]), int(timestamps[-1])
        if self.count <= 1:
            self.begin_offset, self.begin_timestamp = end_offset, end_timestamp
        self.count, self.end_offset, self.end_timestamp = count, end_offset, end_timestamp
        self._is_written = False

    def _seconds(self, timestamp: int) -> int:
        if self.begin_timestamp <= 0:
            return 0
        return min(max((timestamp - self.begin_timestamp) // 1000, 0), _SECONDS_MAX)

    def _all_seconds(self, timestamps: Ints) -> Ints:
        if self.begin_timestamp <= 0:
            return np.zeros_like(timestamps)
        return np.clip((timestamps - self.begin_timestamp) // 1000, 0, _SECONDS_MAX)

    def begin_write(self) -> None:
        """Mark all changes so far to be written by `write_some`."""
        if self._table is not None:
            self._table.begin_write()

    def write_some(self) -> bool:
        """Write a slice of the marked changes; returns whether that was all. Raises StoreDamaged or
        OSError."""
        if self.damage:
            return True
        self._entries.write_tail()
        if not self._is_written:
            self._write_header()
            self._is_written = True
        return self._table is None or self._table.write_some()

    def write_out(self) -> None:
        """Write everything that changed."""
        self.begin_write()
        while not self.write_some():
            pass

    def seal(self) -> None:
        """Write everything and free the memory of the slots: the file is complete."""
        self.write_out()
        self._table = None

    def count_below(self, offset: int) -> int:
        """The value of `count` before the first entry of a message at or beyond this offset. Raises
        StoreDamaged."""
        low, high = 1, min(self.count, self._entries.places)
        while low < high:
            middle = (low + high) // 2
            if self._entries.entry(middle)[1] < offset:
                low = middle + 1
            else:
                high = middle
        return low

    def cut(self, count: int) -> bool:
        """Truncate to `count` entries, dropping newer ones and any partial slot; False if
        impossible.

        Entries are only ever added, so those that were synced are complete; the slots are rebuilt
        from them. Later entries are reached by no slot and will be overwritten.
        """
        entries = self._entries
        if not 1 <= count <= entries.places:
            return False
        entries.write_tail()
        table = SlotTable.empty(self.file, HEADER.size, self._slots_number)
        last = -1
        for first in range(1, count, _CUT_ENTRIES):
            kept = entries.written(first, min(first + _CUT_ENTRIES, count))
            offsets = kept["physical_offset"].astype(np.int64)
            if not self._is_chain(kept, first, offsets, last):
                return False
            numbers = np.arange(first, first + len(kept))
            table.values[kept["key_hash"].astype(np.int64) % self._slots_number] = numbers
            last = int(offsets[-1])
        table.change_all()
        entries.reserve(count)
        self._table = table
        self._is_written = False
        self.count = entries.tail_from = count
        self.slot_count = int(np.count_nonzero(table.values))
        self.end_offset = last if count > 1 else self.begin_offset
        return True

    def _is_chain(self, kept: npt.NDArray[Any], first: int, offsets: Ints, last: int) -> bool:
        """Whether these entries, from number `first` on, can follow one of a message at `last`."""
        numbers = np.arange(first, first + len(kept))
        if (kept["key_hash"] < 0).any() or (kept["previous"] >= numbers).any():
            return False
        # A file that lost its bytes has chains too: all of them empty.
        if first == 1 and (self.begin_timestamp <= 0 or offsets[0] != self.begin_offset):
            return False
        return bool(offsets[0] >= last and (offsets[1:] >= offsets[:-1]).all())

    def set_end(self, timestamp: int) -> None:
        """Set the store time of the newest entry after a truncation; only the log knows it
        exactly."""
        self.end_timestamp = timestamp
        self._is_written = False

    def _write_header(self) -> None:
        header = HEADER.pack(
            self.begin_timestamp,
            self.end_timestamp,
            self.begin_offset,
            self.end_offset,
            self.slot_count,
            self.count,
        )
        self.file.pwrite(0, header)

    # Reading

    def overlaps(self, begin_ms: int, end_ms: int) -> bool:
        return (
            not self.is_empty and self.begin_timestamp <= end_ms and begin_ms <= self.end_timestamp
        )

    def find(self, key_hash: int, begin_ms: int, end_ms: int) -> Iterator[int]:
        """Physical offsets of entries with this hash in this time range, newest first. Raises
        StoreDamaged."""
        number = self._head(key_hash % self._slots_number)
        # Entries know the second, so a time may be up to 999 ms later than they say.
        earliest = begin_ms - 999
        entries = self._entries
        while 0 < number < min(self.count, entries.places):
            hash_, offset, seconds, previous = entries.entry(number)
            # The first entry's time was taken against the begin of before; see `begin`.
            timestamp = self.begin_timestamp + (seconds * 1000 if number > 1 else 0)
            if seconds < 0 or timestamp < earliest:
                break
            if hash_ == key_hash and timestamp <= end_ms:
                yield offset
            if previous >= number:  # a chain leads to older entries only
                break
            number = previous

    def close(self) -> None:
        """Close the file. Unwritten changes are left to recovery."""
        self.file.close()

    def _head(self, slot: int) -> int:
        """The number of the newest entry in this slot."""
        if self._table is not None:
            return self._table.heads[slot]
        return SLOT.unpack(_read(self.file, HEADER.size + SLOT.size * slot, SLOT.size))[0]
