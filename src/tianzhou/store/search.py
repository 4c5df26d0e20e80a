"""Finding messages other than by queue and offset: by store time, by key, by place in the log."""

import enum

from tianzhou.base.kinds import QueueOffset
from tianzhou.record import properties
from tianzhou.record.errors import RecordDamaged
from tianzhou.record.layout import SIZE_AND_MAGIC
from tianzhou.record.message import MessageView
from tianzhou.record.walk import is_sound
from tianzhou.store.commit_log import CommitLog
from tianzhou.store.consume_queue import MISSING_SIZE, ConsumeQueue
from tianzhou.store.facts import store_time_of
from tianzhou.store.key_index import KeyIndex
from tianzhou.store.read import ReadResult, ReadStatus


class Boundary(enum.Enum):
    """Which message a moment between two messages stands for."""

    LOWER = enum.auto()
    """The first at or after it; the end of the queue when all are older."""
    UPPER = enum.auto()
    """The last at or before it; 0 when all are younger."""


def offset_by_time(
    log: CommitLog, queue: ConsumeQueue, timestamp: int, boundary: Boundary
) -> QueueOffset:
    """Binary search: store times never decrease along a queue, unless a clock was set back."""
    low, high = queue.min_offset, queue.end
    past = timestamp if boundary is Boundary.LOWER else timestamp + 1
    while low < high:
        middle = QueueOffset((low + high) // 2)
        time = _time_at(log, queue, middle, high)
        if time is None or time >= past:
            high = middle
        else:
            low = QueueOffset(middle + 1)
    if boundary is Boundary.LOWER:
        return low
    return QueueOffset(low - 1 if low > queue.min_offset else 0)


def _time_at(log: CommitLog, queue: ConsumeQueue, rank: int, end: int) -> int | None:
    """Store time of the first message at or behind this rank; None if all up to `end` are gone."""
    while rank < end:
        unit = queue.unit(rank)
        if unit.size != MISSING_SIZE:
            view = log.view(unit.physical_offset, unit.size)
            if view is not None:
                return store_time_of(view, 0)
        rank += 1
    return None


def find(
    log: CommitLog,
    index: KeyIndex,
    *,
    topic: str,
    key: str,
    begin_ms: int,
    end_ms: int,
    count_max: int,
) -> ReadResult:
    """Messages of a topic with this key or unique id, stored in this time, newest first.

    Hashes collide and seconds are coarse, so every hit is looked at. Each span is one record.
    """
    zero = QueueOffset(0)
    result = ReadResult(ReadStatus.FOUND, next_offset=zero, min_offset=zero, max_offset=zero)
    wanted = key.encode()
    for offset in index.candidates(topic, key, begin_ms=begin_ms, end_ms=end_ms):
        if result.count >= count_max:
            break
        segment = log.segment_at(offset)
        if segment is None:
            continue
        at = offset - segment.start
        if _is_wanted(segment.view, at, topic, wanted, begin_ms, end_ms):
            size, _ = SIZE_AND_MAGIC.unpack_from(segment.view, at)
            if not is_sound(segment.view, at, at + size, base=segment.start):
                result.damaged.append(offset)
                continue
            result.lease(segment, at, at + size)
            result.count += 1
            result.size += size
    if not result.count:
        result.status = ReadStatus.NO_MATCHED_MESSAGE
    return result


def _is_wanted(
    view: memoryview, at: int, topic: str, key: bytes, begin_ms: int, end_ms: int
) -> bool:
    try:
        message = MessageView(view, at)
    except RecordDamaged:
        return False  # an index entry may outlive damage to its record
    return (
        message.topic == topic
        and begin_ms <= message.store_timestamp <= end_ms
        and key in properties.keys_of(message.stored_properties)
    )


def record_at(log: CommitLog, offset: int, *, limit: int) -> ReadResult:
    """The record that begins at this place of the log, if one does and ends below the limit."""
    zero = QueueOffset(0)
    result = ReadResult(
        ReadStatus.NO_MATCHED_MESSAGE, next_offset=zero, min_offset=zero, max_offset=zero
    )
    segment = log.segment_at(offset)
    if segment is None or offset >= limit:
        return result
    at = offset - segment.start
    try:
        message = MessageView(segment.view[: limit - segment.start], at)
    except RecordDamaged:
        return result  # the caller asked for a place where no record begins
    end = at + message.total_size
    if message.physical_offset == offset and not is_sound(
        segment.view, at, end, base=segment.start
    ):
        result.damaged.append(offset)
    elif message.physical_offset == offset:
        result.lease(segment, at, end)
        result.status, result.count, result.size = ReadStatus.FOUND, 1, message.total_size
    return result
