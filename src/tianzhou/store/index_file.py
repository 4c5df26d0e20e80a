"""One file of the key index: hash slots, and entries chained newest first.

    header 40 | slots, 4 bytes each | entries, 20 bytes each

    header: begin_timestamp 8 | end_timestamp 8 | begin_offset 8 | end_offset 8 |
            slot_count 4 | entry_count 4
    entry:  key_hash 4 | physical_offset 8 | seconds 4 | previous 4

Slots are numbered from 0 and hold the number of the newest entry of their chain, 0 meaning none.
Entries are numbered from 1; `entry_count` is the number the next one gets, so it begins at 1 and
the place of entry 0 stays unused. `seconds` is the store time relative to the file's begin.

Slots are written all over the file, so this is the one place that writes through a mapping. Blocks
are reserved first: an unreserved one on a full disk would be a signal and not an error.
"""

import struct
from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tianzhou.store.errors import StoreDamaged
from tianzhou.store.failpoint import failpoint
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
_SLOT_DTYPE: Final = np.dtype(">i4")
_NUMPY_FROM: Final = 20
_RESERVE_BYTES: Final = 1 << 20
_SECONDS_MAX: Final = 2**31 - 1

assert (HEADER.size, ENTRY.size, _ENTRY_DTYPE.itemsize) == (40, 20, 20)

Ints = npt.NDArray[np.int64]


def file_bytes(slots: int, entries: int) -> int:
    return HEADER.size + SLOT.size * slots + ENTRY.size * entries


class IndexFile:
    """Owner: the store's writer.

    Invariant: 1 <= count <= entries; every chain leads to smaller numbers
    """

    def __init__(self, file: File, *, slots: int, entries: int) -> None:
        self.file = file
        self.name = file.path.rpartition("/")[2]
        self._slots_number = slots
        self._entries_max = entries
        self._entries_at = HEADER.size + SLOT.size * slots
        if file.size() != file_bytes(slots, entries):
            raise StoreDamaged(
                file.path,
                f"has {file.size()} bytes; {slots} slots and {entries} entries need "
                f"{file_bytes(slots, entries)}",
            )
        self._reserved = 0
        """Blocks are known to be taken up to here: a copy of a file may have holes."""
        self._view = file.writable()
        (
            self.begin_timestamp, self.end_timestamp, self.begin_offset, self.end_offset,
            self.slot_count, self.count,
        ) = HEADER.unpack_from(self._view)  # fmt: skip

    @classmethod
    def begin(
        cls, file: File, *, slots: int, entries: int, offset: int, timestamp: int
    ) -> "IndexFile":
        """A new file. It inherits the last one's end as its begin until the first entry comes."""
        slots_end = HEADER.size + SLOT.size * slots
        file.reserve(0, slots_end)
        file.pwrite(0, HEADER.pack(timestamp, timestamp, offset, offset, 0, 1))
        made = cls(file, slots=slots, entries=entries)
        made._reserved = slots_end
        return made

    def _check_length(self) -> None:
        """A mapped page behind the end of a file that was shortened is a signal, which kills."""
        size = file_bytes(self._slots_number, self._entries_max)
        found = self.file.size()
        if found < size:
            raise StoreDamaged(self.file.path, f"was shortened to {found} of {size} bytes")

    @property
    def room(self) -> int:
        """How many more entries fit. Java leaves the last place unused, and so do we."""
        return self._entries_max - self.count

    @property
    def is_empty(self) -> bool:
        return self.count <= 1

    # Writing

    def put(self, hashes: Sequence[int], offsets: Sequence[int], timestamps: Sequence[int]) -> None:
        """Add entries in the order of the log. The caller looked at `room`. Raises StoreDamaged."""
        assert len(hashes) <= self.room
        self._check_length()
        failpoint("index.before_put")
        self._reserve(self.count + len(hashes))
        if len(hashes) < _NUMPY_FROM:
            self._put_few(hashes, offsets, timestamps)
        else:
            self._put_many(np.asarray(hashes), np.asarray(offsets), np.asarray(timestamps))
        self.end_offset, self.end_timestamp = int(offsets[-1]), int(timestamps[-1])
        failpoint("index.after_entries")
        self._put_header()
        failpoint("index.after_put")

    def _put_few(
        self, hashes: Sequence[int], offsets: Sequence[int], timestamps: Sequence[int]
    ) -> None:
        view, count = self._view, self.count
        for key_hash, offset, timestamp in zip(hashes, offsets, timestamps, strict=True):
            slot_at = HEADER.size + SLOT.size * (key_hash % self._slots_number)
            (previous,) = SLOT.unpack_from(view, slot_at)
            if not 0 < previous <= count:
                previous = 0
                self.slot_count += 1
            seconds = self._seconds(timestamp)
            at = self._entries_at + ENTRY.size * count
            ENTRY.pack_into(view, at, key_hash, offset, seconds, previous)
            SLOT.pack_into(view, slot_at, count)
            if count <= 1:
                self.begin_offset, self.begin_timestamp = offset, timestamp
            count += 1
        self.count = count

    def _put_many(self, hashes: Ints, offsets: Ints, timestamps: Ints) -> None:
        if self.is_empty:  # its time is relative to the begin that it then replaces
            self._put_few(hashes[:1].tolist(), offsets[:1].tolist(), timestamps[:1].tolist())
            hashes, offsets, timestamps = hashes[1:], offsets[1:], timestamps[1:]
        numbers = np.arange(self.count, self.count + len(hashes))
        slots = hashes % self._slots_number
        table = self._slots()
        previous = table[slots].astype(np.int64)
        previous[(previous < 0) | (previous > self.count)] = 0
        # Entries of this call that share a slot follow each other in the chain.
        order = np.argsort(slots, kind="stable")
        in_order = slots[order]
        repeats = in_order[1:] == in_order[:-1]
        previous[order[1:][repeats]] = numbers[order[:-1][repeats]]
        newest = np.append(~repeats, True)
        entries = self._entries()[self.count : self.count + len(hashes)]
        entries["key_hash"] = hashes
        entries["physical_offset"] = offsets
        entries["seconds"] = self._all_seconds(timestamps)
        entries["previous"] = previous
        table[in_order[newest]] = numbers[order[newest]]
        self.slot_count += int(np.count_nonzero(previous == 0))
        self.count += len(hashes)

    def _seconds(self, timestamp: int) -> int:
        if self.begin_timestamp <= 0:
            return 0
        return min(max((timestamp - self.begin_timestamp) // 1000, 0), _SECONDS_MAX)

    def _all_seconds(self, timestamps: Ints) -> Ints:
        if self.begin_timestamp <= 0:
            return np.zeros_like(timestamps)
        return np.clip((timestamps - self.begin_timestamp) // 1000, 0, _SECONDS_MAX)

    def _reserve(self, count: int) -> None:
        end = self._entries_at + ENTRY.size * count
        if end > self._reserved:
            size = self.file.size()
            wanted = min((end + _RESERVE_BYTES) // _RESERVE_BYTES * _RESERVE_BYTES, size)
            self.file.reserve(self._reserved, max(wanted, end))
            self._reserved = wanted

    def count_below(self, offset: int) -> int:
        """What `count` was before the first entry of a message at or beyond this offset."""
        offsets = self._entries()[1 : self.count]["physical_offset"].astype(np.int64)
        return 1 + int(np.searchsorted(offsets, offset))

    def cut(self, count: int) -> bool:
        """Go back to `count`, dropping newer entries and any half-done slot; False if impossible.

        Entries are only ever added, so those that were synced are whole; the slots are made anew
        from them. What lies beyond is reached by no slot and will be overwritten.
        """
        if not 1 <= count <= self._entries_max:
            return False
        kept = self._entries()[1:count]
        numbers = np.arange(1, count)
        hashes = kept["key_hash"].astype(np.int64)
        offsets = kept["physical_offset"].astype(np.int64)
        if (hashes < 0).any() or (kept["previous"] >= numbers).any():
            return False
        # A file that lost its bytes has chains too: all of them empty.
        if count > 1 and (self.begin_timestamp <= 0 or offsets[0] != self.begin_offset):
            return False
        if (offsets[1:] < offsets[:-1]).any():
            return False
        self._reserve(count)
        table = self._slots()
        table.fill(0)
        table[hashes % self._slots_number] = numbers
        self.count = count
        self.slot_count = int(np.count_nonzero(table))
        self.end_offset = int(offsets[-1]) if count > 1 else self.begin_offset
        return True

    def set_end(self, timestamp: int) -> None:
        """After a cut: the store time of the newest entry, which only the log knows exactly."""
        self.end_timestamp = timestamp
        self._put_header()

    def _put_header(self) -> None:
        HEADER.pack_into(
            self._view, 0, self.begin_timestamp, self.end_timestamp, self.begin_offset,
            self.end_offset, self.slot_count, self.count,
        )  # fmt: skip

    # Reading

    def overlaps(self, begin_ms: int, end_ms: int) -> bool:
        return (
            not self.is_empty and self.begin_timestamp <= end_ms and begin_ms <= self.end_timestamp
        )

    def find(self, key_hash: int, begin_ms: int, end_ms: int) -> Iterator[int]:
        """Physical offsets of entries with this hash in this time, newest first. Raises
        StoreDamaged."""
        self._check_length()
        slot_at = HEADER.size + SLOT.size * (key_hash % self._slots_number)
        (number,) = SLOT.unpack_from(self._view, slot_at)
        # Entries know the second, so a time may be up to 999 ms later than they say.
        earliest = begin_ms - 999
        while 0 < number < min(self.count, self._entries_max):
            at = self._entries_at + ENTRY.size * number
            hash_, offset, seconds, previous = ENTRY.unpack_from(self._view, at)
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
        self._view.release()
        self.file.close()

    def _slots(self) -> npt.NDArray[Any]:
        return np.frombuffer(self._view, _SLOT_DTYPE, self._slots_number, HEADER.size)

    def _entries(self) -> npt.NDArray[Any]:
        return np.frombuffer(self._view, _ENTRY_DTYPE, self._entries_max, self._entries_at)
