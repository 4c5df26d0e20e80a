"""Reading a queue: find the units, filter by tag, and read the stored bytes.

The result is bytes of the log as they are stored, adjacent records joined. Every record is checked
first; damaged or unreadable ones are left out and reported.
"""

import contextlib
import enum
import struct
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, repeat
from types import TracebackType
from typing import Final, NamedTuple, Self

import numpy as np

from tianzhou.base.kinds import Bytes, QueueKey, QueueOffset
from tianzhou.base.limits import RECORD_BYTES_MAX
from tianzhou.record.errors import RecordDamaged
from tianzhou.record.layout import MAGIC_V1, MAGIC_V2, RECORD_BYTES_MIN
from tianzhou.record.light_queues import is_light, offset_in
from tianzhou.record.message import MessageView
from tianzhou.record.walk import are_vouched_for, is_sound
from tianzhou.store.commit_log import CommitLog
from tianzhou.store.consume_queue import MISSING_SIZE, UNIT, ConsumeQueue

SCAN_UNITS_MAX: Final = 800
"""Units that one pull examines at most, matching or not, as in RocketMQ."""

_CHECK: Final = struct.Struct(">ii4xi4xq")
"""Size, magic, queue and queue offset of a record."""
_UNITS: Final = tuple(struct.Struct(">" + "qiq" * count) for count in range(65))
_UNIT_DTYPE: Final = np.dtype([("offset", ">i8"), ("size", ">i4"), ("tags_code", ">i8")])


class ReadStatus(enum.Enum):
    """The outcome of a read. All but `NOT_READY` have RocketMQ's names."""

    FOUND = enum.auto()
    NO_MATCHED_MESSAGE = enum.auto()
    MESSAGE_WAS_REMOVING = enum.auto()
    NO_MATCHED_LOGIC_QUEUE = enum.auto()
    NO_MESSAGE_IN_QUEUE = enum.auto()
    OFFSET_TOO_SMALL = enum.auto()
    OFFSET_OVERFLOW_ONE = enum.auto()
    OFFSET_OVERFLOW_BADLY = enum.auto()
    NOT_READY = enum.auto()
    """The records exist, but cannot be read yet: the store is fetching them from a slower place.
    Repeat the read later; the result is a `PendingRead`. The end of the log is always ready."""


@dataclass(frozen=True, slots=True)
class ReadLimit:
    """Limits of one read. At least one message is returned if there is one, whatever its size."""

    count: int = 32
    size: int = 256 * 1024


class ReadResult:
    """The result of a read, and the next offset. Use it as a context manager, or call `release`: a
    large result holds memory."""

    __slots__ = (
        "count",
        "damaged",
        "max_offset",
        "min_offset",
        "next_offset",
        "reached",
        "size",
        "spans",
        "status",
    )

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
        self.reached: int | None = None
        """Log offset of the last message that was examined, whether it matches or not; None if
        there is none."""
        self.damaged: list[int] = []
        """Log offsets of records that were left out because their checksum fails, something else is
        stored there, or the disk cannot read them."""
        self.spans: list[memoryview] = []

    def add(self, records: Bytes, count: int) -> None:
        """Neighbouring records."""
        self.spans.append(memoryview(records))
        self.count += count
        self.size += len(records)

    def release(self) -> None:
        self.spans = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()


class PendingRead(ReadResult):
    """The result of a read that is not ready. `next_offset` is the offset that was requested."""

    __slots__ = ("_on_ready",)

    def __init__(
        self,
        *,
        next_offset: QueueOffset,
        min_offset: QueueOffset,
        max_offset: QueueOffset,
        on_ready: Callable[[Callable[[], None]], None],
    ) -> None:
        """`on_ready` registers a callback, which the store calls once when the read may be
        repeated, in the thread of the store's owner."""
        super().__init__(
            ReadStatus.NOT_READY,
            next_offset=next_offset,
            min_offset=min_offset,
            max_offset=max_offset,
        )
        self._on_ready = on_ready

    def when_ready(self, repeat: Callable[[], None]) -> None:
        """Call `repeat` once when the read may be repeated."""
        self._on_ready(repeat)


def read(
    log: CommitLog,
    queue: ConsumeQueue,
    start: QueueOffset,
    limit: ReadLimit,
    *,
    tags_codes: Collection[int] | None,
) -> ReadResult:
    """Read messages of a queue from an offset on, optionally only those with one of these tag
    hashes."""
    end = queue.end
    result = ReadResult(
        ReadStatus.FOUND, next_offset=start, min_offset=queue.min_offset, max_offset=end
    )
    outside = _outside(queue, start, end)
    if outside is not None:
        result.status, result.next_offset = outside
    elif tags_codes is None:
        _read_all(log, queue, result, limit)
    else:
        _read_matching(log, queue, result, limit, tags_codes=tags_codes)
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
        return ReadStatus.OFFSET_OVERFLOW_BADLY, end
    return None


def _read_all(log: CommitLog, queue: ConsumeQueue, result: ReadResult, limit: ReadLimit) -> None:
    start = result.next_offset
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
    result.reached = offsets[-1]
    first, queue_id = offsets[0], queue.key.queue_id
    # Adjacent records in one file are one read; checking the first and the last suffices. Those of
    # a light queue are rarely adjacent, and contain their offset elsewhere.
    is_run = offsets[-1] + sizes[-1] - first == total and min(sizes) >= RECORD_BYTES_MIN
    if is_run and not queue.is_light:
        found = _read_neighbours(log, first, sizes, total)
        if found is not None and (
            _is_record(found, 0, sizes[0], (queue_id, start))
            and _is_record(found, total - sizes[-1], sizes[-1], (queue_id, start + units - 1))
        ):
            result.add(found, units)
            result.next_offset = QueueOffset(start + units)
            return
    _take(log, _Units(queue.key, range(start, start + units), offsets, sizes), result)
    result.next_offset = QueueOffset(start + units)
    if not result.count:
        result.status = ReadStatus.MESSAGE_WAS_REMOVING


def _unpack_many(raw: bytes) -> tuple[int, ...]:
    return struct.unpack(">" + "qiq" * (len(raw) // UNIT.size), raw)


def _within(sizes: tuple[int, ...], size_max: int) -> int:
    """Return how many records fit into this many bytes; at least one."""
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
    result: ReadResult,
    limit: ReadLimit,
    *,
    tags_codes: Collection[int],
) -> None:
    start = result.next_offset
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
    found = _Units(queue.key, (chosen + start).tolist(), offsets, sizes[:count])
    _take(log, found, result)
    # After a limit the next read continues behind the last message, else behind the scan.
    stopped = count == limit.count or count < len(ranks)
    scanned = int(chosen[-1]) + 1 if stopped and count else len(units)
    result.reached = int(units["offset"][scanned - 1])
    result.next_offset = QueueOffset(start + scanned)
    if not result.count:
        result.status = ReadStatus.NO_MATCHED_MESSAGE


def _read_neighbours(
    log: CommitLog, first: int, sizes: tuple[int, ...], total: int
) -> memoryview | None:
    """Consecutive records of these sizes from `first` on; None unless all are intact."""
    segment = log.segment_at(first)
    if segment is None:
        return None
    start = first - segment.start
    end = start + total
    if end > log.file_bytes:
        return None
    sums = segment.sums
    around = None if sums is None else sums.around(start, end)
    try:
        if sums is not None and around is not None:
            pages = segment.read(*around)
            data = memoryview(pages)[start - around[0] : end - around[0]]
            if sums.agree(pages, around[0]):
                return data
        else:
            data = memoryview(segment.read(start, end))
    except OSError:
        return None
    starts = list(accumulate(sizes, initial=0))
    places = accumulate(sizes[:-1], initial=first)
    return data if are_vouched_for(data, starts[:-1], starts[1:], places=places) else None


class _Units(NamedTuple):
    """Units of one queue with their log offsets, which may be wrong."""

    queue: QueueKey
    ranks: Sequence[int]
    offsets: Sequence[int]
    sizes: Sequence[int]


def _take(log: CommitLog, units: _Units, result: ReadResult) -> None:
    """Read the records of these units, which need not be adjacent."""
    for part in _by_file(log, units):
        _take_of_file(log, part, result)


def _by_file(log: CommitLog, units: _Units) -> Iterator[_Units]:
    """The units, divided where a file of the log ends."""
    while units.offsets:
        first = units.offsets[0]
        count = bisect_left(units.offsets, first - first % log.file_bytes + log.file_bytes)
        if not 0 < count < len(units.offsets):
            yield units
            return
        queue, *columns = units
        yield _Units(queue, *(column[:count] for column in columns))
        units = _Units(queue, *(column[count:] for column in columns))


def _take_of_file(log: CommitLog, units: _Units, result: ReadResult) -> None:
    data = _read_scattered(log, units.offsets, units.sizes)
    if data is not None and not is_light(units.queue.topic) and _are_sound(data, units):
        result.add(data, len(units.ranks))
        return
    at = 0
    for rank, offset, size in zip(units.ranks, units.offsets, units.sizes, strict=True):
        if data is None:
            record = _read_one(log, offset, size, result)
        else:
            record = data[at : at + size]
            at += size
        if record is not None:
            _judge(record, (units.queue, rank), offset, result)


def _read_scattered(
    log: CommitLog, offsets: Sequence[int], sizes: Sequence[int]
) -> memoryview | None:
    """The concatenated bytes of these records. None if a unit does not lead to a record, the disk
    cannot read one of them, or they span several files: then each must be checked separately."""
    if not sizes or min(sizes) < RECORD_BYTES_MIN or max(sizes) > RECORD_BYTES_MAX:
        return None
    segment = log.segment_at(offsets[0])
    if segment is None or segment is not log.segment_at(offsets[-1]):
        return None
    read, base, pieces = segment.file.pread, segment.start, list[bytes]()
    start = end = offsets[0]
    try:
        for offset, size in zip(offsets, sizes, strict=True):
            if offset != end:
                pieces.append(read(start - base, end - start))
                start = offset
            end = offset + size
        pieces.append(read(start - base, end - start))
    except (OSError, OverflowError):  # the latter from a damaged unit
        return None
    data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
    return memoryview(data) if len(data) == sum(sizes) else None


def _are_sound(data: memoryview, units: _Units) -> bool:
    """Whether these bytes are the intact records of these units. False proves nothing: `_judge`
    also handles records without a checksum."""
    queue, ranks, offsets, sizes = units
    starts = list(accumulate(sizes, initial=0))
    heads = list(map(_CHECK.unpack_from, repeat(data), starts[:-1]))
    magic = heads[0][1]
    wanted = zip(sizes, repeat(magic), repeat(queue.queue_id), ranks, strict=False)
    return (
        magic in (MAGIC_V1, MAGIC_V2)
        and heads == list(wanted)
        and are_vouched_for(data, starts[:-1], starts[1:], places=offsets)
    )


def _read_one(log: CommitLog, offset: int, size: int, result: ReadResult) -> memoryview | None:
    """The bytes that one unit leads to, whatever is in the unit."""
    if size == MISSING_SIZE or 0 < offset + size <= log.min_offset:  # the latter expired
        return None
    segment = log.segment_at(offset)
    if segment is not None and size >= RECORD_BYTES_MIN:
        at = offset - segment.start
        if at + size <= log.file_bytes:
            with contextlib.suppress(OSError):
                return memoryview(segment.read(at, at + size))
    # Report it even if only the queue is damaged and not the log: a message is left out.
    result.damaged.append(offset)
    return None


def _judge(
    record: memoryview, place: tuple[QueueKey, int], offset: int, result: ReadResult
) -> None:
    """Add a record if it is intact. A unit that does not lead to a record of its queue and rank is
    skipped: a wrong message is worse than none."""
    size, (queue, rank) = len(record), place
    belongs = _is_record(record, 0, size, (queue.queue_id, rank))
    if is_light(queue.topic):
        belongs = _is_in_light_queue(record, queue.topic, rank)
    if belongs and is_sound(record, 0, size, base=offset):
        result.add(record, 1)
    else:
        result.damaged.append(offset)


def _is_in_light_queue(record: memoryview, queue: str, rank: int) -> bool:
    """Whether a record has this offset in a light queue: assigned to it as a further queue, or,
    in a log of RocketMQ, as that of its topic."""
    try:
        view = MessageView(record)
    except RecordDamaged:
        return False
    if view.total_size != len(record):
        return False
    direct = view.topic == queue and view.queue_offset == rank
    return direct or offset_in(view.stored_properties, queue) == rank


def _is_record(data: memoryview, at: int, size: int, place: tuple[int, int]) -> bool:
    found_size, magic, found_queue, found_rank = _CHECK.unpack_from(data, at)
    return (
        found_size == size and magic in (MAGIC_V1, MAGIC_V2) and (found_queue, found_rank) == place
    )
