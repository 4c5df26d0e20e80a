"""Strategies: records that were valid until a field, some bytes or all of them were changed.

A mutation may be covered by the record's checksum again. Such a record is stored as it was written
and still cannot be read: a bug of an earlier version, or of another broker, may leave it in a log.
"""

import struct
import zlib
from typing import Final

from hypothesis import strategies as st
from record_entries import NOW_MS, STORE_HOSTS, mixtures

from tianzhou.record.chunk import RecordChunk, build, stamp

_FIELDS: Final = {
    "size": (0, "i"),
    "magic": (4, "i"),
    "body_crc": (8, "i"),
    "queue_id": (12, "i"),
    "flag": (16, "i"),
    "queue_offset": (20, "q"),
    "physical_offset": (28, "q"),
    "sys_flag": (36, "i"),
    "born_timestamp": (40, "q"),
    "born_port": (52, "i"),
    "store_timestamp": (56, "q"),
    "reconsume_times": (72, "i"),
    "prepared_offset": (76, "q"),
    "body_size": (84, "i"),
}
_EXTREMES: Final = {
    "i": (0, 1, -1, 91, 92, 0x10, 0x20, 0x30, 0x3C, 0xFF, (1 << 31) - 1, -(1 << 31)),
    "q": (0, 1, -1, 1 << 40, 1 << 58, (1 << 63) - 1, -(1 << 63)),
}


def seal(record: bytearray) -> None:
    """Update the checksum at the end for the current bytes."""
    if len(record) > 111 and record[-20:].startswith(b"__CRC32#\x01"):
        digits = b"%010d" % (zlib.crc32(record[:-20]) & 0x7FFFFFFF)
        record[-11:-1] = digits[::-1]


@st.composite
def mutated_chunks(draw: st.DrawFn) -> tuple[bytearray, list[int], list[int]]:
    """Bytes, and the bounds of the records before they were changed."""
    made = draw(mixtures(count_min=draw(st.sampled_from([1, 3, 20, 50]))))
    chunk = build(made, store_host=draw(st.sampled_from(STORE_HOSTS)), record_crc=True)
    _stamp(chunk)
    data = bytearray(chunk.data)
    for _ in range(draw(st.integers(1, 3))):
        rank = draw(st.integers(0, len(chunk) - 1))
        start, end = chunk.starts[rank], chunk.ends[rank]
        record = data[start:end]
        _mutate(draw, record)
        if draw(st.booleans()):
            seal(record)
        data[start:end] = record
    return data, chunk.starts, chunk.ends


def _stamp(chunk: RecordChunk) -> None:
    ranks: dict[object, int] = {}
    offsets: list[int] = []
    for queue in chunk.queues:
        offsets.append(ranks.get(queue, 0) if queue else 0)
        ranks[queue] = offsets[-1] + 1
    stamp(
        chunk,
        0,
        len(chunk),
        queue_offsets=offsets,
        physical_offset=0,
        store_timestamp=NOW_MS,
    )


def _mutate(draw: st.DrawFn, record: bytearray) -> None:
    match draw(st.sampled_from(("field", "field", "field", "byte", "tail", "all"))):
        case "field":
            at, code = _FIELDS[draw(st.sampled_from(sorted(_FIELDS)))]
            struct.pack_into(f">{code}", record, at, draw(st.sampled_from(_EXTREMES[code])))
        case "byte":
            record[draw(st.integers(0, len(record) - 1))] = draw(st.integers(0, 255))
        case "tail":
            # Topic and properties start somewhere here.
            at = draw(st.integers(88, len(record) - 21))
            new = draw(st.binary(min_size=1, max_size=12))[: len(record) - 20 - at]
            record[at : at + len(new)] = new
        case _:
            new = draw(st.binary(min_size=1, max_size=len(record) - 8))
            record[8 : 8 + len(new)] = new
