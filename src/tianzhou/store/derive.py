"""Derivation of queue units and index entries from the bytes of the log. Pure.

One function, used right after an append and when everything is rebuilt: `derive` takes a row of
records and returns runs of consume-queue units, one per queue, and the entries of the key index.

Below a few dozen records a plain loop is fastest; it is also the reference. Above,
`derive_columns.py` reads all heads at once and groups the records whose topic and properties have
the same shape (the names and lengths of all properties); inside a group every tag and key is at the
same position, so that they are hashed as columns of a matrix. Records of a rare shape go through
the loop.

No input makes it fail: a malformed record is listed with the reason and contributes nothing; the
others are derived as usual.
"""

from collections.abc import Sequence
from typing import Final

from tianzhou.base.kinds import Bytes, PhysicalOffset, QueueKey, QueueOffset
from tianzhou.record.errors import RecordDamaged
from tianzhou.store.consume_queue import UNIT
from tianzhou.store.derive_columns import derive_by_shape
from tianzhou.store.derive_record import Derived, Malformed, QueueUnits, facts_of

_SHAPES_FROM: Final = 16
"""From this many records on the matrices pay for themselves."""


def derive(
    buffer: Bytes,
    starts: Sequence[int],
    end: int,
    *,
    base: PhysicalOffset,
    delays_ms: Sequence[int],
) -> Derived:
    """Units and index entries of the records at `starts`, each ending where the next begins.

    `base` is the physical offset of the buffer's first byte.
    """
    if len(starts) < _SHAPES_FROM:
        return derive_plainly(buffer, starts, end, base=base, delays_ms=delays_ms)
    return derive_by_shape(buffer, starts, end, base=base, delays_ms=delays_ms)


def derive_plainly(
    buffer: Bytes,
    starts: Sequence[int],
    end: int,
    *,
    base: PhysicalOffset,
    delays_ms: Sequence[int],
) -> Derived:
    units: dict[QueueKey, tuple[int, bytearray]] = {}
    runs: list[QueueUnits] = []
    hashes: list[int] = []
    offsets: list[int] = []
    timestamps: list[int] = []
    malformed: list[Malformed] = []
    store_timestamp = None
    ends = [*starts[1:], end]
    for start, stop in zip(starts, ends, strict=True):
        offset = base + start
        try:
            queue, queue_offset, tags_code, keys, store_timestamp = facts_of(
                buffer, start, stop, delays_ms
            )
        except RecordDamaged as error:
            malformed.append(Malformed(offset, stop - start, str(error)))
            continue
        for hash_ in keys:
            hashes.append(hash_)
            offsets.append(offset)
            timestamps.append(store_timestamp)
        if queue is None:
            continue
        unit = UNIT.pack(offset, stop - start, tags_code)
        first, row = units.get(queue, (queue_offset, None))
        if row is not None and queue_offset == first + len(row) // UNIT.size:
            row += unit
            continue
        if row is not None:  # a record of this queue is missing in between
            runs.append(QueueUnits(queue, QueueOffset(first), bytes(row)))
        units[queue] = (queue_offset, bytearray(unit))
    runs += [QueueUnits(q, QueueOffset(first), bytes(row)) for q, (first, row) in units.items()]
    return Derived(runs, hashes, offsets, timestamps, store_timestamp, malformed)
