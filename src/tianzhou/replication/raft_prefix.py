"""The records that a log had before it became the log of a Raft group, as entries of the group.

The log is not rewritten: records stay where they are and as they are, without headers. The file
`raft/plain` lists runs of them, and each run is an entry:

    index 8 | place 8 | term 8 | size 4 | digest 8 | crc 4

All integers are big-endian and signed, except `crc`: the CRC-32 of the 36 bytes before it. The
digest is the BLAKE2b of the entry's bytes. Rows are in the order of the log; an entry lies within
one file. All rows have one term, that of the group's start, and their indices have no gaps.

On the wire such an entry also contains its place, because blank records between files depend on
the broker that wrote the log, and not on the sizes of entries:

    place 8 | records

A member syncs a row before it acknowledges the entry. Rows whose records a crash lost are dropped
at the next start, and so are records without a row: neither were acknowledged.
"""

import struct
from array import array
from bisect import bisect_left
from hashlib import blake2b
from typing import Final, NamedTuple

from tianzhou.base.kinds import Bytes, PhysicalOffset
from tianzhou.raft.messages import Entry, Kind, LogIndex, Term
from tianzhou.record.crc import crc32
from tianzhou.store.descriptors import is_shortage
from tianzhou.store.errors import DiskFull, StoreDamaged
from tianzhou.store.files import File

_FIELDS: Final = struct.Struct(">qqqi8s")
_CRC: Final = struct.Struct(">I")
_PLACE: Final = struct.Struct(">q")
ROW_BYTES: Final = _FIELDS.size + _CRC.size
DIGEST_BYTES: Final = 8
_REMEDY: Final = "remove the directory: the others of the group repair this member"


class PlainRow(NamedTuple):
    """One entry without a header."""

    index: LogIndex  # pyright: ignore[reportIncompatibleMethodOverride]
    place: PhysicalOffset
    term: Term
    size: int
    digest: bytes

    @property
    def end(self) -> PhysicalOffset:
        return PhysicalOffset(self.place + self.size)


def row_of(index: LogIndex, term: Term, place: PhysicalOffset, data: Bytes) -> PlainRow:
    """Describe records that lie at this place."""
    return PlainRow(index, place, term, len(data), digest_of(data))


def digest_of(data: Bytes) -> bytes:
    return blake2b(data, digest_size=DIGEST_BYTES).digest()


def encode_row(row: PlainRow) -> bytes:
    fields = _FIELDS.pack(*row)
    return fields + _CRC.pack(crc32(fields))


def decode_row(data: Bytes, at: int = 0) -> PlainRow | None:
    """Parse a row; None if it is torn or damaged."""
    fields = bytes(data[at : at + _FIELDS.size])
    crc = bytes(data[at + _FIELDS.size : at + ROW_BYTES])
    if len(crc) < _CRC.size or crc != _CRC.pack(crc32(fields)):
        return None
    index, place, term, size, digest = _FIELDS.unpack(fields)
    return PlainRow(LogIndex(index), PhysicalOffset(place), Term(term), size, digest)


def decode_rows(data: Bytes) -> list[PlainRow]:
    """Parse the rows of a file, up to the first that is torn, damaged or out of order."""
    rows: list[PlainRow] = []
    for at in range(0, len(data) - ROW_BYTES + 1, ROW_BYTES):
        row = decode_row(data, at)
        if row is None or (rows and not _follows(rows[-1], row)):
            break
        rows.append(row)
    return rows


def _follows(before: PlainRow, row: PlainRow) -> bool:
    is_next = row.index == before.index + 1 and row.term == before.term
    return is_next and row.place >= before.end


def encode(index: LogIndex, term: Term, place: PhysicalOffset, records: bytes) -> Entry:
    """Return the entry for other members."""
    return Entry(index, term, Kind.PLAIN, _PLACE.pack(place) + records)


def decode(entry: Entry) -> tuple[PhysicalOffset, memoryview]:
    """Return the place and the records of an entry. Raises ValueError."""
    if len(entry.data) <= _PLACE.size:
        raise ValueError(f"entry {entry.index} without a header has no records")
    (place,) = _PLACE.unpack_from(entry.data)
    if place < 0:
        raise ValueError(f"entry {entry.index} is for the position {place}")
    return PhysicalOffset(place), memoryview(entry.data)[_PLACE.size :]


class PlainEntries:
    """The rows of `raft/plain`. Owner: the storage.

    Invariant: `_places` has one position for each row of the file; the rows are consecutive.
    """

    __slots__ = ("_file", "_first", "_is_dirty", "_last", "_places")

    def __init__(self, file: File) -> None:
        self._file = file
        self._is_dirty = False
        rows = decode_rows(file.pread(0, file.size()))
        self._places = array("q", [row.place for row in rows])
        self._first = rows[0].index if rows else LogIndex(0)
        self._last = rows[-1] if rows else None

    @property
    def last(self) -> PlainRow | None:
        return self._last

    @property
    def end(self) -> PhysicalOffset:
        """Where the last entry without a header ends."""
        return PhysicalOffset(0) if self._last is None else self._last.end

    def find(self, index: LogIndex) -> PlainRow | None:
        if self._last is None or not self._first <= index <= self._last.index:
            return None
        return self._row(index - self._first)

    def at(self, place: PhysicalOffset) -> PlainRow | None:
        """Return the row of the entry that starts here."""
        rank = bisect_left(self._places, place)
        return self._row(rank) if self._places[rank : rank + 1] == array("q", [place]) else None

    def _row(self, rank: int) -> PlainRow:
        row = decode_row(self._file.pread(rank * ROW_BYTES, ROW_BYTES))
        if row is None:
            raise StoreDamaged(self._file.path, f"row {rank} is damaged; {_REMEDY}")
        return row

    def append(self, row: PlainRow) -> None:
        """Add the next row; `sync` makes it durable. Raises ValueError if it is not the next one,
        DiskFull, and OSError."""
        if self._last is not None and not _follows(self._last, row):
            raise ValueError(f"entry {row.index} at {row.place} does not follow {self._last.index}")
        try:
            self._file.pwrite(len(self._places) * ROW_BYTES, encode_row(row))
        except OSError as error:
            if is_shortage(error):
                raise DiskFull(f"cannot write {self._file.path}: {error}") from error
            raise
        if self._last is None:
            self._first = row.index
        self._places.append(row.place)
        self._last = row
        self._is_dirty = True

    def sync(self) -> None:
        if self._is_dirty:
            self._file.sync()
            self._is_dirty = False

    def cut(self, first: LogIndex) -> None:
        """Drop the rows from the entry `first` on, durably."""
        self._keep(max(0, first - self._first))

    def keep_until(self, end: int) -> None:
        """Drop the rows of entries that end behind this offset, durably."""
        rank = bisect_left(self._places, end)
        if rank and self._row(rank - 1).end > end:
            rank -= 1
        self._keep(rank)

    def _keep(self, count: int) -> None:
        if count >= len(self._places):
            return
        self._last = self._row(count - 1) if count else None
        del self._places[count:]
        self._file.truncate(count * ROW_BYTES)
        self._file.sync()
        self._is_dirty = False
