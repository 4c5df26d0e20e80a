"""The entries of a Raft group in the commit log: their bytes, and where they are.

    header record | records of the entry, back to back

The header is an ordinary record of fixed size, so that every reader of a commit log can skip it.
Its system flag marks it as rolled back: it is in no queue and no index. The body:

    0 magic 4 | 4 version 2 | 6 kind 2 | 8 index 8 | 16 term 8 | 24 prev_term 8 |
    32 payload_bytes 4 | 36 payload_count 4

All integers are big-endian and signed. The checksum is the one that every record carries.

A chunk is followed by the messages of users, which carry their physical offsets as the leader
stamped them; a change of members by one record of the same flag with the members; a barrier by
nothing. An entry never spans two files, so every file of the log begins with a header. Everything
in it follows from the entry, its place and the time of the entry before: all members write the same
bytes.

From a known entry the next one is one step away, because headers contain the size of entries. So a
few known positions suffice for a log of any size (`Places`), and a scan can rebuild all of them.
"""

import json
import struct
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec

from tianzhou.base.errors import RemoteProtocolError
from tianzhou.base.kinds import Bytes, PhysicalOffset, QueueKey, queue_key
from tianzhou.raft.messages import STORED, Entry, Kind, LogIndex, Term
from tianzhou.record import flags
from tianzhou.record.chunk import Entry as Message
from tianzhou.record.chunk import RecordChunk, build, stamp
from tianzhou.record.layout import HEAD, INT64, MAGIC_BLANK, SIZE_AND_MAGIC, position_of
from tianzhou.record.message import MessageView
from tianzhou.record.walk import Stop, first_unsound, is_sound, walk
from tianzhou.replication.raft_prefix import PlainEntries, PlainRow
from tianzhou.store.commit_log import CommitLog
from tianzhou.store.derive import store_time_of
from tianzhou.store.errors import StoreDamaged
from tianzhou.store.segments import Segment
from tianzhou.wire.names import SYSTEM_PREFIX

TOPIC: Final = SYSTEM_PREFIX + "raft_entry"
QUEUE: Final[QueueKey] = queue_key(TOPIC, 0)
MAGIC: Final = 0x545A5245  # "TZRE"
VERSION: Final = 1
BODY: Final = struct.Struct(">ihhqqqii")
_NO_HOST: Final = bytes(8)
_AT_SYS_FLAG: Final = position_of("sys_flag")
EXACT: Final = 4096
"""The number of newest entries with exact positions; followers mostly lack these."""
STEP_BYTES: Final = 256 * 1024
"""Distance between the known positions of older entries: some hundred steps at most."""


class Header(NamedTuple):
    """The header of an entry."""

    kind: Kind
    index: LogIndex  # pyright: ignore[reportIncompatibleMethodOverride]
    term: Term
    prev_term: Term
    payload_bytes: int
    payload_count: int

    @property
    def entry_bytes(self) -> int:
        if self.kind is Kind.PLAIN:
            return self.payload_bytes
        return HEADER_BYTES + self.payload_bytes


def header_chunk(header: Header) -> RecordChunk:
    """Return the header as a record that is not stamped yet."""
    body = BODY.pack(
        MAGIC,
        VERSION,
        header.kind,
        header.index,
        header.term,
        header.prev_term,
        header.payload_bytes,
        header.payload_count,
    )
    return _record(body)


def _record(body: bytes) -> RecordChunk:
    message = Message(QUEUE, body, sys_flag=flags.TRANSACTION_ROLLBACK)
    return build([message], store_host=_NO_HOST, record_crc=True)


_BLANK: Final = Header(Kind.BARRIER, LogIndex(0), Term(0), Term(0), 0, 0)
HEADER_BYTES: Final = len(header_chunk(_BLANK).data)


def size_of(entry: Entry) -> int:
    """Return the size of an entry in the log."""
    if entry.kind is Kind.MEMBERS:
        return 2 * HEADER_BYTES - BODY.size + len(entry.data)
    return HEADER_BYTES + len(entry.data)


def encode(
    entry: Entry, *, prev_term: Term, place: PhysicalOffset, time_ms: int
) -> tuple[bytes, int]:
    """Return the bytes of an entry that starts at `place`, and its store time.

    `time_ms` is the store time of the previous entry; a chunk has its own. Raises ValueError if a
    chunk has damaged records, or belongs to another position.
    """
    at = PhysicalOffset(place + HEADER_BYTES)
    payload, count = entry.data, 0
    if entry.kind is Kind.CHUNK:
        count = check_chunk(entry.data, at)
        time_ms = store_time_of(entry.data, 0)
    elif entry.kind is Kind.MEMBERS:
        payload, count = _stamped(_record(entry.data), at, time_ms), 1
    header = Header(entry.kind, entry.index, entry.term, prev_term, len(payload), count)
    return _stamped(header_chunk(header), place, time_ms) + payload, time_ms


def check_chunk(data: Bytes, place: int) -> int:
    """Return the number of records in a chunk. Raises ValueError if one is damaged or misplaced."""
    found = walk(data, 0, len(data))
    if not found.starts or found.end != len(data) or found.stop is not Stop.END:
        raise ValueError(f"invalid chunk for {place}: {found.stop.name.lower()}")
    bad = first_unsound(data, found.starts, len(data), base=place)
    if bad is not None:
        stated = INT64.unpack_from(data, found.starts[bad] + position_of("physical_offset"))[0]
        wanted = place + found.starts[bad]
        raise ValueError(f"record {bad} of a chunk for {wanted} is damaged, or is for {stated}")
    return len(found.starts)


def _stamped(chunk: RecordChunk, place: PhysicalOffset, time_ms: int) -> bytes:
    stamp(chunk, 0, 1, queue_offsets=[0], physical_offset=place, store_timestamp=time_ms)
    return bytes(chunk.data)


def header_at(buffer: Bytes, at: int, *, base: int) -> Header | None:
    """Parse the header that starts here; None if this is another record, or damaged.

    `base` is the physical offset of the buffer's first byte.
    """
    end = at + HEADER_BYTES
    if end > len(buffer) or not looks_like_header(buffer, at):
        return None
    if not is_sound(buffer, at, end, base=base):
        return None
    magic, version, kind, *rest = BODY.unpack_from(buffer, at + HEAD.size)
    if (magic, version) != (MAGIC, VERSION) or kind not in _HEADED:
        return None
    index, term, prev_term, size, count = rest
    return Header(Kind(kind), LogIndex(index), Term(term), Term(prev_term), size, count)


_HEADED: Final = STORED - {Kind.PLAIN}
_START: Final = bytes(header_chunk(_BLANK).data)
_MARK: Final = _START[HEAD.size : HEAD.size + 6]


def looks_like_header(buffer: Bytes, at: int) -> bool:
    """Whether an intact record is a header; cheap."""
    return (
        bytes(buffer[at : at + 8]) == _START[:8]
        and bytes(buffer[at + HEAD.size : at + HEAD.size + 6]) == _MARK
        and buffer[at + _AT_SYS_FLAG + 3] == flags.TRANSACTION_ROLLBACK
    )


def decode(header: Header, buffer: Bytes, at: int) -> Entry:
    """Return the entry whose header is at `at`."""
    start = at + HEADER_BYTES
    data = b""
    if header.kind is Kind.CHUNK:
        data = bytes(buffer[start : start + header.payload_bytes])
    elif header.kind is Kind.MEMBERS:
        data = bytes(MessageView(buffer, start).stored_body)
    return Entry(header.index, header.term, header.kind, data)


def encode_mark(place: PhysicalOffset, ranks: Sequence[tuple[str, int, int]]) -> bytes:
    """Where a log starts, and the first rank of each of its queues: what a member needs to start
    its log there. See `Install`."""
    return json.dumps([place, ranks]).encode()


def decode_mark(mark: bytes) -> tuple[PhysicalOffset, tuple[tuple[str, int, int], ...]]:
    """The start of a leader's log, and the first rank of each of its queues. Raises
    RemoteProtocolError."""
    try:
        place, ranks = msgspec.json.decode(mark, type=tuple[int, list[tuple[str, int, int]]])
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise RemoteProtocolError(f"the mark of a log can't be read: {error}") from error
    return PhysicalOffset(place), tuple(ranks)


# Where entries are


class Places:
    """Positions of entries: exact for the newest, sampled for older ones.

    Owner: the storage.    Invariant: indices and places grow.
    """

    __slots__ = ("_indices", "_places", "_thinned")

    def __init__(self) -> None:
        self._indices: list[LogIndex] = []
        self._places: list[PhysicalOffset] = []
        self._thinned = 0
        """Rows before this rank are already sampled."""

    def __len__(self) -> int:
        return len(self._indices)

    def add(self, index: LogIndex, place: PhysicalOffset) -> None:
        assert not self._indices or self._indices[-1] < index
        self._indices.append(index)
        self._places.append(place)
        if len(self._indices) - self._thinned > 2 * EXACT:
            self._thin()

    def _thin(self) -> None:
        end, last = len(self._indices) - EXACT, -STEP_BYTES
        kept: list[int] = []
        for rank in range(self._thinned, end):
            if self._places[rank] - last >= STEP_BYTES:
                last = self._places[rank]
                kept.append(rank)
        self._indices[self._thinned : end] = [self._indices[rank] for rank in kept]
        self._places[self._thinned : end] = [self._places[rank] for rank in kept]
        self._thinned += len(kept)

    def at_or_before(self, index: LogIndex) -> tuple[LogIndex, PhysicalOffset]:
        """Return the last known entry up to this one."""
        rank = bisect_right(self._indices, index) - 1
        assert rank >= 0, f"entry {index} has expired, or the log is empty"
        return self._indices[rank], self._places[rank]

    def cut(self, first: LogIndex) -> None:
        """Drop everything from `first` on."""
        rank = bisect_left(self._indices, first)
        del self._indices[rank:], self._places[rank:]
        self._thinned = min(self._thinned, rank)

    def trim(self, first: LogIndex, place: PhysicalOffset) -> None:
        """Record that the log now starts with the entry `first` at this position."""
        rank = bisect_left(self._indices, first)
        del self._indices[:rank], self._places[:rank]
        self._thinned = max(0, self._thinned - rank)
        if not self._indices or self._indices[0] != first:
            self._indices.insert(0, first)
            self._places.insert(0, place)
            self._thinned += 1

    def clear(self) -> None:
        self._indices.clear()
        self._places.clear()
        self._thinned = 0


class Found(NamedTuple):
    """An entry in the log: its header, and its position in its file."""

    header: Header
    segment: Segment
    at: int
    place: PhysicalOffset

    @property
    def data(self) -> bytes:
        """The whole entry, header included. Raises StoreDamaged if it cannot be read."""
        return _read(self.segment, self.at, self.header.entry_bytes)

    @property
    def time_ms(self) -> int:
        """Store time of the header, or of the first record if it has none. Raises
        StoreDamaged."""
        size = min(HEADER_BYTES, self.header.entry_bytes)
        return store_time_of(_read(self.segment, self.at, size), 0)

    @property
    def end(self) -> PhysicalOffset:
        return PhysicalOffset(self.place + self.header.entry_bytes)


def _read(segment: Segment, at: int, size: int) -> bytes:
    try:
        return segment.read(at, at + size)
    except OSError as error:
        raise StoreDamaged(segment.file.path, str(error), offset=segment.start + at) from error


class Entries:
    """Finds entries by index, and iterates over them. Owner: the storage."""

    __slots__ = ("_log", "_places", "_plain")

    def __init__(self, log: CommitLog, places: Places, plain: PlainEntries) -> None:
        self._log = log
        self._places = places
        self._plain = plain

    def find(self, index: LogIndex) -> Found:
        row = self._plain.find(index)
        if row is not None:
            return self.at(row.place)
        known, place = self._places.at_or_before(index)
        found = self.at(place)
        while known < index:
            found = self.next(found)
            known = found.header.index
        return found

    def at(self, place: PhysicalOffset) -> Found:
        """Return the entry that starts here. Raises StoreDamaged if there is none."""
        found = self.maybe_at(place)
        if found is None:
            raise StoreDamaged(
                self._log.directory, "no entry of the group starts here", offset=place
            )
        return found

    def maybe_at(self, place: PhysicalOffset) -> Found | None:
        segment = self._log.segment_at(place)
        if segment is None:
            return None
        at = place - segment.start
        if place < self._plain.end:
            row = self._plain.at(place)
            return None if row is None else Found(_plain_header(row), segment, at, place)
        try:
            data = segment.read(at, min(at + HEADER_BYTES, self._log.file_bytes))
        except OSError:
            return None
        header = header_at(data, 0, base=place)
        return None if header is None else Found(header, segment, at, place)

    def next(self, found: Found) -> Found:
        row = self._plain.find(LogIndex(found.header.index + 1))
        return self.at(self.behind(found) if row is None else row.place)

    def behind(self, found: Found) -> PhysicalOffset:
        """Return where the next entry starts, or will start."""
        end = found.at + found.header.entry_bytes
        if found.end < self._log.end and end + 8 <= self._log.file_bytes:
            room, magic = SIZE_AND_MAGIC.unpack(_read(found.segment, end, SIZE_AND_MAGIC.size))
            if magic == MAGIC_BLANK:
                return PhysicalOffset(found.end + room)
        return found.end


def _plain_header(row: PlainRow) -> Header:
    return Header(Kind.PLAIN, row.index, row.term, row.term, row.size, 0)
