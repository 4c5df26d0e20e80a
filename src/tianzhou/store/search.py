"""Find messages by store time, by key, or by offset in the log."""

import enum

from tianzhou.base.kinds import QueueOffset
from tianzhou.record import properties
from tianzhou.record.errors import RecordDamaged
from tianzhou.record.layout import RECORD_BYTES_MIN
from tianzhou.record.message import MessageView
from tianzhou.record.walk import is_sound
from tianzhou.store.commit_log import CommitLog
from tianzhou.store.consume_queue import MISSING_SIZE, ConsumeQueue
from tianzhou.store.derive import store_time_of
from tianzhou.store.key_index import KeyIndex
from tianzhou.store.read import ReadResult, ReadStatus
from tianzhou.store.scan import record_bytes


class Boundary(enum.Enum):
    """Which message to choose for a timestamp between two messages."""

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
            time = _store_time(log, unit.physical_offset)
            if time is not None:
                return time
        rank += 1
    return None


def _store_time(log: CommitLog, offset: int) -> int | None:
    """Store time of the record at this offset; None if it is gone or cannot be read."""
    try:
        data = log.read(offset, RECORD_BYTES_MIN)
    except OSError:
        return None
    return None if data is None else store_time_of(data, 0)


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

    Hashes collide and seconds are coarse, so every hit is compared. Each span is one record.
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
        try:
            record = record_bytes(segment, offset - segment.start, log.file_bytes)
        except OSError:
            result.damaged.append(offset)
            continue
        if record is None or not _is_wanted(record, topic, wanted, times_ms=(begin_ms, end_ms)):
            continue
        if is_sound(record, 0, len(record), base=offset):
            result.add(record, 1)
        else:
            result.damaged.append(offset)
    if not result.count:
        result.status = ReadStatus.NO_MATCHED_MESSAGE
    return result


def _is_wanted(record: bytes, topic: str, key: bytes, *, times_ms: tuple[int, int]) -> bool:
    begin_ms, end_ms = times_ms
    try:
        message = MessageView(record)
    except RecordDamaged:
        return False  # an index entry may outlive damage to its record
    return (
        message.topic == topic
        and begin_ms <= message.store_timestamp <= end_ms
        and key in properties.keys_of(message.stored_properties)
    )


def record_at(log: CommitLog, offset: int, *, limit: int) -> ReadResult:
    """Return the record that starts at this offset, if there is one and it ends below the limit."""
    zero = QueueOffset(0)
    result = ReadResult(
        ReadStatus.NO_MATCHED_MESSAGE, next_offset=zero, min_offset=zero, max_offset=zero
    )
    segment = log.segment_at(offset)
    if segment is None or offset >= limit:
        return result
    try:
        end = min(limit - segment.start, log.file_bytes)
        record = record_bytes(segment, offset - segment.start, end)
        message = MessageView(record or b"")
    except RecordDamaged:
        return result  # no record starts at the requested offset
    except OSError:
        result.damaged.append(offset)
        return result
    if record is None or message.physical_offset != offset:
        return result
    if is_sound(record, 0, len(record), base=offset):
        result.add(record, 1)
        result.status = ReadStatus.FOUND
    else:
        result.damaged.append(offset)
    return result
