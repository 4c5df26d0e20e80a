"""Reading a queue: find the units, filter by tag, and lease the stored bytes.

What is returned are views of the mapped log, neighbours joined into one; nothing is copied. The
lease keeps their file from being removed until it is given back. Every record is checked first, and
what is not as it was written is left out and reported.
"""

import enum
import struct
from collections.abc import Collection
from dataclasses import dataclass
from itertools import accumulate, groupby
from operator import itemgetter
from types import TracebackType
from typing import Final, NamedTuple, Self

import numpy as np

from tianzhou.base.kinds import QueueOffset
from tianzhou.record.layout import MAGIC_V1, MAGIC_V2
from tianzhou.record.walk import are_vouched_for, is_sound
from tianzhou.store.commit_log import CommitLog
from tianzhou.store.consume_queue import MISSING_SIZE, UNIT, ConsumeQueue
from tianzhou.store.segments import Segment

SCAN_UNITS_MAX: Final = 800
"""RocketMQ looks at most at this many units for one pull, matching or not."""

_CHECK: Final = struct.Struct(">ii4xi4xq")
"""Size, magic, queue and queue offset of a record."""
_UNITS: Final = tuple(struct.Struct(">" + "qiq" * count) for count in range(65))
_UNIT_DTYPE: Final = np.dtype([("offset", ">i8"), ("size", ">i4"), ("tags_code", ">i8")])


class ReadStatus(enum.Enum):
    """The outcome of a read. Names follow RocketMQ's, one for one."""

    FOUND = enum.auto()
    NO_MATCHED_MESSAGE = enum.auto()
    MESSAGE_WAS_REMOVING = enum.auto()
    NO_MATCHED_LOGIC_QUEUE = enum.auto()
    NO_MESSAGE_IN_QUEUE = enum.auto()
    OFFSET_TOO_SMALL = enum.auto()
    OFFSET_OVERFLOW_ONE = enum.auto()
    OFFSET_OVERFLOW_BADLY = enum.auto()


@dataclass(frozen=True, slots=True)
class ReadLimit:
    """At least one message is given if there is one, whatever its size."""

    count: int = 32
    size: int = 256 * 1024


class ReadResult:
    """What was found, and where to go on. Use it as a context, or call `release`.

    Valid until: `release`; the views must not be used after it.
    """

    __slots__ = (
        "_segments", "count", "damaged", "max_offset", "min_offset", "next_offset", "size", "spans",
        "status",
    )  # fmt: skip

    def __init__(
        self,
        status: ReadStatus,
        *,
        next_offset: QueueOffset,
        min_offset: QueueOffset,
        max_offset: QueueOffset,
    ) -> None:
        self.status = status
        self.next_offset = next_offset
        self.min_offset = min_offset
        self.max_offset = max_offset
        self.count = 0
        self.size = 0
        self.damaged: list[int] = []
        """Where in the log records should stand that were left out, because their checksum fails
        or something else stands there."""
        self.spans: list[memoryview] = []
        self._segments: list[Segment] = []

    def lease(self, segment: Segment, start: int, end: int) -> None:
        segment.leases += 1
        self._segments.append(segment)
        self.spans.append(segment.view[start:end])

    def release(self) -> None:
        for span in self.spans:
            span.release()
        for segment in self._segments:
            segment.leases -= 1
        self.spans, self._segments = [], []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()


def read(
    log: CommitLog,
    queue: ConsumeQueue,
    start: QueueOffset,
    limit: ReadLimit,
    tags_codes: Collection[int] | None,
) -> ReadResult:
    """Messages of a queue from an offset on, only those with one of these tag hashes if given."""
    end = queue.end
    result = ReadResult(
        ReadStatus.FOUND, next_offset=start, min_offset=queue.min_offset, max_offset=end
    )
    outside = _outside(queue, start, end)
    if outside is not None:
        result.status, result.next_offset = outside
    elif tags_codes is None:
        _read_all(log, queue, start, limit, result)
    else:
        _read_matching(log, queue, start, limit, tags_codes, result)
    return result


def _outside(
    queue: ConsumeQueue, start: QueueOffset, end: QueueOffset
) -> tuple[ReadStatus, QueueOffset] | None:
    if end == 0:
        return ReadStatus.NO_MESSAGE_IN_QUEUE, QueueOffset(0)
    if start < queue.min_offset:
        return ReadStatus.OFFSET_TOO_SMALL, queue.min_offset
    if start == end:
        return ReadStatus.OFFSET_OVERFLOW_ONE, start
    if start > end:
        return ReadStatus.OFFSET_OVERFLOW_BADLY, end if queue.min_offset else QueueOffset(0)
    return None


def _read_all(
    log: CommitLog, queue: ConsumeQueue, start: QueueOffset, limit: ReadLimit, result: ReadResult
) -> None:
    count = min(limit.count, SCAN_UNITS_MAX)
    raw = queue.read(start, count)
    units = len(raw) // UNIT.size
    values = _UNITS[units].unpack(raw) if units < len(_UNITS) else _unpack_many(raw)
    offsets, sizes = values[0::3], values[1::3]
    total = sum(sizes)
    if total > limit.size:
        units = _within(sizes, limit.size)
        offsets, sizes = offsets[:units], sizes[:units]
        total = sum(sizes)
    first, queue_id = offsets[0], queue.key.queue_id
    # Neighbours in one file: the whole run is one view, and its ends vouch for the middle.
    if offsets[-1] + sizes[-1] - first == total and min(sizes) > 0:
        segment = log.segment_at(first)
        if segment is not None:
            at = first - segment.start
            if (
                _is_record(segment, first, sizes[0], queue_id, start)
                and _is_record(segment, offsets[-1], sizes[-1], queue_id, start + units - 1)
                and _is_as_written(segment, at, sizes, at + total)
            ):
                result.lease(segment, at, at + total)
                result.count, result.size = units, total
                result.next_offset = QueueOffset(start + units)
                return
    wanted = list(zip(range(start, start + units), offsets, sizes, strict=True))
    _take(log, queue_id, wanted, result)
    result.next_offset = QueueOffset(start + units)


def _unpack_many(raw: bytes) -> tuple[int, ...]:
    return struct.unpack(">" + "qiq" * (len(raw) // UNIT.size), raw)


def _within(sizes: tuple[int, ...], size_max: int) -> int:
    """How many fit into this many bytes; at least one."""
    total = 0
    for rank, size in enumerate(sizes):
        if size != MISSING_SIZE:
            total += size
            if total > size_max and rank:
                return rank
    return len(sizes)


def _read_matching(
    log: CommitLog,
    queue: ConsumeQueue,
    start: QueueOffset,
    limit: ReadLimit,
    tags_codes: Collection[int],
    result: ReadResult,
) -> None:
    raw = queue.read(start, SCAN_UNITS_MAX)
    units = np.frombuffer(raw, _UNIT_DTYPE)
    codes = units["tags_code"].astype(np.int64)
    matches = np.zeros(len(units), np.bool_)
    for code in tags_codes:
        matches |= codes == code
    ranks = np.flatnonzero(matches)[: limit.count]
    sizes = tuple(units["size"][ranks].tolist())
    count = _within(sizes, limit.size) if sizes else 0
    chosen = ranks[:count]
    offsets = units["offset"][chosen].tolist()
    wanted = list(zip((chosen + start).tolist(), offsets, sizes[:count], strict=True))
    _take(log, queue.key.queue_id, wanted, result)
    # When a limit stopped us the next read goes on behind the last message, else behind the scan.
    stopped = count == limit.count or count < len(ranks)
    scanned = int(chosen[-1]) + 1 if stopped and count else len(units)
    result.next_offset = QueueOffset(start + scanned)
    if not result.count:
        result.status = ReadStatus.NO_MATCHED_MESSAGE


class _Place(NamedTuple):
    segment: Segment
    start: int
    end: int


def _take(
    log: CommitLog, queue_id: int, wanted: list[tuple[int, int, int]], result: ReadResult
) -> None:
    """Lease the records of these units (rank, offset, size), neighbours joined."""
    places = _records_of(log, queue_id, wanted, result)
    for segment, row in groupby(places, itemgetter(0)):
        run_start = run_end = -1
        for _, start, end in _sound(segment, list(row), result):
            if start != run_end:
                if run_end >= 0:
                    result.lease(segment, run_start, run_end)
                run_start = start
            run_end = end
            result.count += 1
            result.size += end - start
        if run_end >= 0:
            result.lease(segment, run_start, run_end)
    if not result.count:
        result.status = ReadStatus.MESSAGE_WAS_REMOVING


def _records_of(
    log: CommitLog, queue_id: int, wanted: list[tuple[int, int, int]], result: ReadResult
) -> list[_Place]:
    """A unit that leads to no record of its queue and rank is passed over: a wrong message is
    worse than none."""
    places: list[_Place] = []
    for rank, offset, size in wanted:
        if size == MISSING_SIZE or size <= 0:
            continue
        segment = log.segment_at(offset)
        if segment is None:  # it expired a moment ago
            continue
        if _is_record(segment, offset, size, queue_id, rank):
            at = offset - segment.start
            places.append(_Place(segment, at, at + size))
        else:
            result.damaged.append(offset)
    return places


def _sound(segment: Segment, places: list[_Place], result: ReadResult) -> list[_Place]:
    """Those of one file that are as they were written."""
    _, starts, ends = zip(*places, strict=True)
    view, base = segment.view, segment.start
    if are_vouched_for(view, starts, ends, base=base):
        return places
    sound: list[_Place] = []
    for place in places:
        if is_sound(view, place.start, place.end, base=base):
            sound.append(place)
        else:
            result.damaged.append(base + place.start)
    return sound


def _is_as_written(segment: Segment, start: int, sizes: tuple[int, ...], end: int) -> bool:
    """Whether records of these sizes stand here, one behind the other, and all are sound."""
    if segment.sums is not None and segment.sums.agree(segment.view, start, end):
        return True
    starts = list(accumulate(sizes, initial=start))
    return are_vouched_for(segment.view, starts[:-1], starts[1:], base=segment.start)


def _is_record(segment: Segment, offset: int, size: int, queue_id: int, rank: int) -> bool:
    at = offset - segment.start
    if at + size > len(segment.view):
        return False
    found_size, magic, found_queue, found_rank = _CHECK.unpack_from(segment.view, at)
    return (
        found_size == size
        and magic in (MAGIC_V1, MAGIC_V2)
        and (found_queue, found_rank) == (queue_id, rank)
    )
