"""Planning of reads: offsets, limits and partitions, as pure functions.

The offsets of a table are one number per queue. Spark's checkpoints and the options
`startingOffsets` and `endingOffsets` use the same form: topic to broker to queue to offset.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from pyspark.sql.datasource import InputPartition

from tianzhou.client.bulk.reader import QueueRange
from tianzhou.spark.errors import DataLoss, SourceError
from tianzhou.spark.option_values import EARLIEST, LATEST, QueueTable
from tianzhou.wire.queues import MessageQueue

Offsets = dict[MessageQueue, int]
OffsetJson = dict[str, dict[str, dict[str, int]]]

BEGUN: Final = "$begun"
"""Marks the offsets of a stream whose start is recorded. No topic can have such a name."""

FROM_EARLIEST: Final = "$earliest"
"""The start of a stream that begins with the earliest message each queue still has."""


@dataclass(frozen=True, repr=False)
class Ranges(InputPartition):
    """The work of one task. Reading it again returns the same rows."""

    ranges: tuple[QueueRange, ...]


SMALL_ROWS: Final = 2_000
PACKED_ROWS: Final = 8_000
"""A task costs milliseconds however little it reads, so small ranges share one."""


def to_json(offsets: Mapping[MessageQueue, int]) -> OffsetJson:
    """Return offsets in the form of the options and checkpoints, in a fixed order."""
    found: OffsetJson = {}
    for queue in sorted(offsets, key=lambda q: (q.topic, q.broker_name, q.queue_id)):
        brokers = found.setdefault(queue.topic, {})
        brokers.setdefault(queue.broker_name, {})[str(queue.queue_id)] = offsets[queue]
    return found


def from_json(table: Mapping[str, Mapping[str, Mapping[str, int]]]) -> Offsets:
    """Return the offsets of a checkpoint, without its markers."""
    return {
        MessageQueue(topic=topic, broker_name=broker, queue_id=int(queue_id)): offset
        for topic, brokers in table.items()
        if topic not in (BEGUN, FROM_EARLIEST)
        for broker, queues in brokers.items()
        for queue_id, offset in queues.items()
    }


def resolve(
    asked: QueueTable | int,
    *,
    earliest: Mapping[MessageQueue, int],
    latest: Mapping[MessageQueue, int],
    default: int,
    option: str,
) -> Offsets:
    """Return the offsets of an option. Queues that its JSON does not name get the default."""
    if isinstance(asked, int):
        return dict(earliest if asked == EARLIEST else latest)
    given = {
        MessageQueue(topic=topic, broker_name=broker, queue_id=queue_id): offset
        for topic, brokers in asked.items()
        for broker, queues in brokers.items()
        for queue_id, offset in queues.items()
    }
    unknown = [queue for queue in given if queue not in latest]
    if unknown:
        raise SourceError(
            "UNKNOWN_QUEUE",
            f"{option} names {_named(unknown[0])}, which is not one of the {len(latest)} queues "
            f"of the topics to read",
        )
    return {
        queue: _resolved(given.get(queue, default), earliest[queue], end)
        for queue, end in latest.items()
    }


def _resolved(offset: int, earliest: int, latest: int) -> int:
    return {EARLIEST: earliest, LATEST: latest}.get(offset, offset)


def check_inside(
    offsets: Mapping[MessageQueue, int],
    earliest: Mapping[MessageQueue, int],
    latest: Mapping[MessageQueue, int],
    option: str,
) -> None:
    """Check that offsets given by the user exist. Raises SourceError."""
    for queue, offset in offsets.items():
        if not earliest[queue] <= offset <= latest[queue]:
            raise SourceError(
                "OFFSET_OUT_OF_RANGE",
                f"{option} names offset {offset} of {_named(queue)}, which has offsets "
                f"{earliest[queue]} to {latest[queue]}; correct it, or set failOnDataLoss=false "
                "to read the messages that exist",
            )


def check_forward(start: Mapping[MessageQueue, int], end: Mapping[MessageQueue, int]) -> None:
    """Check that no start is after its end, which would silently read nothing."""
    for queue, first in start.items():
        if first > end[queue]:
            raise SourceError(
                "WRONG_OPTION",
                f"startingOffsets for {_named(queue)} is {first}, which is after endingOffsets, "
                f"{end[queue]}; it must not be greater",
            )


def clamped(
    offsets: Mapping[MessageQueue, int],
    earliest: Mapping[MessageQueue, int],
    latest: Mapping[MessageQueue, int],
) -> Offsets:
    """Return offsets moved into the range of messages that each queue has."""
    return {q: min(max(o, earliest[q]), latest[q]) for q, o in offsets.items()}


def check_kept(
    start: Mapping[MessageQueue, int],
    end: Mapping[MessageQueue, int],
    earliest: Mapping[MessageQueue, int],
) -> None:
    """Check that all messages between start and end still exist. Raises DataLoss."""
    for queue, last in end.items():
        first = start[queue]
        kept_from = earliest.get(queue, first)
        if first > last:
            raise DataLoss(
                f"{_named(queue)} ends at offset {last}, before {first}, the position of this "
                "query: was the topic deleted and created again, or the broker restored from an "
                "older copy? With failOnDataLoss=false the query continues with existing messages"
            )
        if first < min(kept_from, last):
            gone = min(kept_from, last)
            raise DataLoss(
                f"{_named(queue)}: {gone - first} messages with offsets {first} to {gone - 1} are "
                f"gone, the broker has the queue from {kept_from} on. With failOnDataLoss=false "
                "the query continues after them"
            )


def kept(
    start: Mapping[MessageQueue, int],
    end: Mapping[MessageQueue, int],
    earliest: Mapping[MessageQueue, int],
) -> Offsets:
    """Return the offsets at which reading can actually start."""
    return {
        queue: earliest.get(queue, 0)
        if start[queue] > last
        else max(start[queue], min(earliest.get(queue, start[queue]), last))
        for queue, last in end.items()
    }


def limited(start: Mapping[MessageQueue, int], latest: Offsets, rows: int) -> Offsets:
    """Return end offsets such that at most `rows` are read, in proportion to each queue's backlog.

    Every queue with a backlog gets at least one row while any are left, so that a large queue never
    starves a small one.
    """
    behind = {queue: max(end - start[queue], 0) for queue, end in latest.items()}
    total = sum(behind.values())
    if total <= rows:
        return dict(latest)
    # Deterministic order; the largest backlog first, in case there are fewer rows than queues.
    order = sorted(behind, key=lambda q: (-behind[q], q.topic, q.broker_name, q.queue_id))
    shares = {queue: int(behind[queue] > 0 and rank < rows) for rank, queue in enumerate(order)}
    left = rows - sum(shares.values())
    more = {queue: behind[queue] - shares[queue] for queue in order}
    spare = sum(more.values())
    for queue in order:
        shares[queue] += more[queue] * left // spare
    left = rows - sum(shares.values())
    for queue in order:
        added = int(left > 0 and shares[queue] < behind[queue])
        shares[queue] += added
        left -= added
    return {
        queue: start[queue] + shares[queue] if behind[queue] else end
        for queue, end in latest.items()
    }


def row_count(start: Mapping[MessageQueue, int], end: Mapping[MessageQueue, int]) -> int:
    """Count the messages between offsets. Queues without a start count as empty."""
    return sum(max(last - start.get(queue, last), 0) for queue, last in end.items())


def ranges_of(
    start: Mapping[MessageQueue, int], end: Mapping[MessageQueue, int]
) -> list[QueueRange]:
    """Return the ranges between the offsets in a fixed order: a retry gets the same list."""
    queues = sorted(end, key=lambda q: (q.topic, q.broker_name, q.queue_id))
    return [
        QueueRange(queue, start[queue], end[queue]) for queue in queues if start[queue] < end[queue]
    ]


def divided(
    ranges: Sequence[QueueRange], *, rows_max: int | None, partitions_min: int
) -> list[tuple[QueueRange, ...]]:
    """Return ranges for each task: large ranges are split, small ones are combined."""
    total = sum(r.end - r.start for r in ranges)
    if not total:
        return []
    limit = min(rows_max or total, max(1, total // partitions_min))
    pieces = [piece for wanted in ranges for piece in _pieces(wanted, limit)]
    packed_rows = min(PACKED_ROWS, limit)
    tasks: list[tuple[QueueRange, ...]] = []
    small: list[QueueRange] = []
    for piece in pieces:
        size = piece.end - piece.start
        if size >= SMALL_ROWS:
            tasks.append((piece,))
            continue
        if small and sum(r.end - r.start for r in small) + size > packed_rows:
            tasks.append(tuple(small))
            small = []
        small.append(piece)
    return [*tasks, tuple(small)] if small else tasks


def _pieces(wanted: QueueRange, limit: int) -> Iterable[QueueRange]:
    """Split a range into equal parts, none longer than the limit."""
    size = wanted.end - wanted.start
    count = -(-size // limit)
    edges = [wanted.start + size * n // count for n in range(count + 1)]
    return (QueueRange(wanted.queue, first, end) for first, end in pairwise(edges))


def _named(queue: MessageQueue) -> str:
    return f"queue {queue.queue_id} of topic {queue.topic} on broker {queue.broker_name}"
