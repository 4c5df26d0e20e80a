"""Iterate over a buffer of records: where each starts, where they end, whether they are intact.

`walk` reads eight bytes per record and trusts them; it is for bytes that were checked before.
`first_unsound` checks records that were walked: lengths add up, the checksum is right, and the
offset in the record is its position. `are_vouched_for` confirms the same for most records at a
fraction of the cost. Nothing here raises; findings are return values.
"""

import enum
import struct
from collections.abc import Iterable, Sequence
from itertools import repeat
from operator import eq, sub
from typing import Final, NamedTuple

from tianzhou.base import limits
from tianzhou.base.kinds import Bytes
from tianzhou.record.chunk import NUMPY_FROM, crc_digits
from tianzhou.record.crc import CRC_BITS, crc31, crc32
from tianzhou.record.layout import (
    AT_SYS_FLAG,
    CRC_PROPERTY,
    CRC_PROPERTY_BYTES,
    HEAD,
    HOST_BYTES_EXTRA,
    INT16,
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    RECORD_BYTES_MIN,
    SIZE_AND_MAGIC,
)

_PLACE: Final = struct.Struct(">ii4xi4xqq")
"""Size, magic, queue, queue offset and physical offset."""
_STAND: Final = struct.Struct(">i24xq")
"""Size and physical offset."""
_SHAPE: Final = struct.Struct(f">ii{AT_SYS_FLAG - 8}xi")
"""Size, magic and system flag."""
_CRC_NAME: Final = CRC_PROPERTY + b"\x01"
_TAIL_REVERSED: Final = b"\x02%010d" + _CRC_NAME[::-1]
"""The checksum property read from its end: its digits are reversed."""


class Stop(enum.Enum):
    """Why a walk ended where it ended."""

    END = enum.auto()
    """The buffer is used up, or nothing has been written here yet."""
    BLANK = enum.auto()
    """The marker that fills the tail of a file."""
    TORN = enum.auto()
    """A record announces more bytes than there are."""
    DAMAGED = enum.auto()
    """These eight bytes are not the start of a record."""
    LIMIT = enum.auto()
    """The requested number of records was reached."""


class Walk(NamedTuple):
    starts: list[int]
    end: int
    """The first byte not covered by a whole record."""
    stop: Stop


def walk(buffer: Bytes, start: int, end: int, *, count_max: int = 1 << 62) -> Walk:
    """Positions of the whole records in `buffer[start:end]`."""
    starts: list[int] = []
    found, unpack = starts.append, SIZE_AND_MAGIC.unpack_from
    at, last = start, end - 8
    while at <= last:
        size, magic = unpack(buffer, at)
        if magic != MAGIC_V1 and magic != MAGIC_V2:
            return Walk(starts, at, _classify(size, magic))
        if not RECORD_BYTES_MIN <= size <= _WALK_BYTES_MAX:
            return Walk(starts, at, Stop.DAMAGED)
        if at + size > end:
            return Walk(starts, at, Stop.TORN)
        if len(starts) >= count_max:
            return Walk(starts, at, Stop.LIMIT)
        found(at)
        at += size
    return Walk(starts, at, Stop.END if at == end or not any(buffer[at:end]) else Stop.TORN)


# Another broker may be configured for larger messages than ours; its records must be readable.
_WALK_BYTES_MAX: Final = limits.FRAME_BYTES_MAX * 8


def _classify(size: int, magic: int) -> Stop:
    if magic == MAGIC_BLANK:
        return Stop.BLANK
    return Stop.END if size == 0 and magic == 0 else Stop.DAMAGED


def first_unsound(
    buffer: Bytes, starts: Sequence[int], end: int, *, base: int, well_formed: bool = False
) -> int | None:
    """Rank of the first damaged record, or None if all are intact.

    `base` is the physical offset of the buffer's first byte. The records must be neighbours:
    each ends where the next begins, the last at `end`. With `well_formed` their lengths must add
    up too.
    """
    if len(starts) >= NUMPY_FROM:
        from tianzhou.record import columns

        suspects, ends = columns.suspects(buffer, starts, end, base), [*starts[1:], end]
    else:
        suspects, ends = range(len(starts)), [*starts[1:], end]
    for rank in suspects:
        if not is_sound(buffer, starts[rank], ends[rank], base=base):
            return rank
        if well_formed and not is_well_formed(buffer, starts[rank], ends[rank]):
            return rank
    return None


def is_well_formed(buffer: Bytes, start: int, end: int) -> bool:
    """Whether the lengths in a record add up. An intact record has the bytes that were written, but
    these may be malformed; such a record cannot be parsed."""
    size, magic, sys_flag = _SHAPE.unpack_from(buffer, start)
    if size != end - start or magic not in (MAGIC_V1, MAGIC_V2):
        return False
    found = _parts(buffer, start, end, layout=(sys_flag, magic))
    return found is not None and found[2] == end


def are_vouched_for(
    buffer: Bytes, starts: Sequence[int], ends: Sequence[int], *, places: Iterable[int]
) -> bool:
    """Whether each of these records has a checksum of the whole that agrees, and was written for
    its place, a physical offset. False proves nothing: Java writes records without a checksum,
    which `is_sound` checks too.

    Every pulled record is checked with this. About 0.4 µs for 1 KiB, because the row is formatted
    and compared as one.
    """
    if not starts or min(map(sub, ends, starts)) < RECORD_BYTES_MIN:
        return False
    with memoryview(buffer) as view:
        crcs = [
            crc32(view[start : end - CRC_PROPERTY_BYTES]) & CRC_BITS
            for start, end in zip(starts, ends, strict=True)
        ]
        tails = b"".join([view[end - CRC_PROPERTY_BYTES : end] for end in ends])
        crcs.reverse()
        if tails != (_TAIL_REVERSED * len(crcs) % tuple(crcs))[::-1]:
            return False
        found = list(map(_STAND.unpack_from, repeat(view), starts))
        return found == list(zip(map(sub, ends, starts), places, strict=True))


def is_sound(buffer: Bytes, start: int, end: int, *, base: int) -> bool:
    """One record, every check. The reference for the fast way of `columns`."""
    if end - start < RECORD_BYTES_MIN:
        return False
    covered = end - CRC_PROPERTY_BYTES
    crc = crc32(memoryview(buffer)[start:covered])
    if buffer[covered:end] == _CRC_NAME + crc_digits(crc) + b"\x02":
        # A checksum of the whole that agrees vouches for all that it covers.
        size, magic, queue_id, queue_offset, physical_offset = _PLACE.unpack_from(buffer, start)
        return (
            size == end - start
            and magic in (MAGIC_V1, MAGIC_V2)
            and physical_offset == base + start
            and queue_offset >= 0
            and queue_id >= 0
        )
    (
        size,
        magic,
        body_crc,
        queue_id,
        _,
        queue_offset,
        physical_offset,
        sys_flag,
        *_,
    ) = HEAD.unpack_from(buffer, start)
    if size != end - start or magic not in (MAGIC_V1, MAGIC_V2):
        return False
    if physical_offset != base + start or queue_offset < 0 or queue_id < 0:
        return False
    parts = _parts(buffer, start, end, layout=(sys_flag, magic))
    if parts is None:
        return False
    body_start, body_end, properties_end = parts
    if properties_end != end or _is_torn(buffer, body_end, end, magic):
        return False
    if _resembles_crc(bytes(buffer[covered:end])):
        return False
    return body_crc == crc31(memoryview(buffer)[body_start:body_end])


def _parts(
    buffer: Bytes, start: int, end: int, *, layout: tuple[int, int]
) -> tuple[int, int, int] | None:
    """Return where the body starts and ends, and where the properties end; None if the lengths
    overrun the record. `layout` is its system flag and its magic."""
    sys_flag, magic = layout
    hosts = (sys_flag >> 4 & 1) + (sys_flag >> 5 & 1)
    body_start = start + HEAD.size + HOST_BYTES_EXTRA * hosts
    if body_start + 3 > end:
        return None
    body_size = int.from_bytes(buffer[body_start - 4 : body_start], "big", signed=True)
    topic_at = body_start + body_size
    width = 1 if magic == MAGIC_V1 else 2
    if body_size < 0 or topic_at + width + 2 > end:
        return None
    topic_size = int.from_bytes(buffer[topic_at : topic_at + width], "big", signed=True)
    properties_at = topic_at + width + topic_size + 2
    if topic_size < 0 or properties_at > end:
        return None
    (properties_size,) = INT16.unpack_from(buffer, properties_at - 2)
    if properties_size < 0:
        return None
    return body_start, topic_at, properties_at + properties_size


def _is_torn(buffer: Bytes, body_end: int, end: int, magic: int) -> bool:
    """Whether the end of the topic or of the properties was never written."""
    width = 1 if magic == MAGIC_V1 else 2
    name_at = body_end + width
    name_end = name_at + int.from_bytes(buffer[body_end:name_at], "big", signed=True)
    return _ends_in_zero(buffer, name_at, name_end) or _ends_in_zero(buffer, name_end + 2, end)


def _ends_in_zero(buffer: Bytes, start: int, end: int) -> bool:
    """Whether a text lacks its last bytes: the file was zero before the record came. Without this
    a record torn in its properties would pass for one that was written without a checksum."""
    return end > start and buffer[end - 1] == 0


def _resembles_crc(tail: bytes) -> bool:
    """Whether these last bytes are, or before some bit flipped were, the checksum of the whole.

    Asking for an exact match would let a flip inside the property's own name pass as a record
    that never had one.
    """
    alike = sum(map(eq, tail, _CRC_NAME)) + (tail[-1] == 2)
    return alike >= len(_CRC_NAME) - 1
