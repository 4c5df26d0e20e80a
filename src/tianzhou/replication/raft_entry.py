"""The format of a Raft entry in the commit log.

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
"""

import struct
from typing import Final, NamedTuple

from tianzhou.base.kinds import Bytes, PhysicalOffset, QueueKey, queue_key
from tianzhou.raft.messages import Entry, Kind, LogIndex, Term
from tianzhou.record import flags
from tianzhou.record.chunk import Entry as Message
from tianzhou.record.chunk import RecordChunk, build, stamp
from tianzhou.record.layout import HEAD, INT64, position_of
from tianzhou.record.message import MessageView
from tianzhou.record.walk import Stop, first_unsound, is_sound, walk
from tianzhou.store.derive import store_time_of
from tianzhou.wire.names import SYSTEM_PREFIX

TOPIC: Final = SYSTEM_PREFIX + "raft_entry"
QUEUE: Final[QueueKey] = queue_key(TOPIC, 0)
MAGIC: Final = 0x545A5245  # "TZRE"
VERSION: Final = 1
BODY: Final = struct.Struct(">ihhqqqii")
_NO_HOST: Final = bytes(8)
_AT_SYS_FLAG: Final = position_of("sys_flag")


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
    if (magic, version) != (MAGIC, VERSION) or kind not in _KINDS:
        return None
    index, term, prev_term, size, count = rest
    return Header(Kind(kind), LogIndex(index), Term(term), Term(prev_term), size, count)


_KINDS: Final = frozenset(Kind)
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
