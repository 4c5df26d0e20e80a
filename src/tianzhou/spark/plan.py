"""What is read by whom: offsets, limits and partitions as pure functions.

Offsets of a table are a number for each queue. In Spark's checkpoints, and in the options
`startingOffsets` and `endingOffsets`, they have one form: topic to broker to queue to offset.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from pyspark.sql.datasource import InputPartition

from tianzhou.client.sync.queue_reader import QueueRange
from tianzhou.spark.errors import DataLoss, SourceError
from tianzhou.spark.option_values import EARLIEST, LATEST, QueueTable
from tianzhou.wire.queues import MessageQueue

Offsets = dict[MessageQueue, int]
OffsetJson = dict[str, dict[str, dict[str, int]]]

BEGUN: Final = "$begun"
"""In the offsets of a stream whose beginning is written down; no topic has such a name."""

FROM_EARLIEST: Final = "$earliest"
"""The beginning of a stream that begins with whatever each queue still has, as a name alone."""


@dataclass(frozen=True, repr=False)
class Ranges(InputPartition):
    """The work of one task. Read again, it gives the same rows."""

    ranges: tuple[QueueRange, ...]


SMALL_ROWS: Final = 2_000
PACKED_ROWS: Final = 8_000
"""A task costs milliseconds whatever it reads, so small ranges share one."""


def to_json(offsets: Mapping[MessageQueue, int]) -> OffsetJson:
    found: OffsetJson = {}
    for queue in sorted(offsets, key=lambda q: (q.topic, q.broker_name, q.queue_id)):
        brokers = found.setdefault(queue.topic, {})
        brokers.setdefault(queue.broker_name, {})[str(queue.queue_id)] = offsets[queue]
    return found


def from_json(table: Mapping[str, Mapping[str, Mapping[str, int]]]) -> Offsets:
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
    """Offsets that an option means. Queues that JSON does not name get the default."""
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
            f"{option} names {_named(unknown[0])}, which is none of the {len(latest)} queues "
            f"of the topics that are read",
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
    """Offsets that a person wrote must be there. Raises SourceError."""
    for queue, offset in offsets.items():
        if not earliest[queue] <= offset <= latest[queue]:
            raise SourceError(
                "OFFSET_OUT_OF_RANGE",
                f"{option} asks for offset {offset} of {_named(queue)}, which has offsets "
                f"{earliest[queue]} to {latest[queue]}; correct it, or set failOnDataLoss=false "
                "to read what is there",
            )


def check_forward(start: Mapping[MessageQueue, int], end: Mapping[MessageQueue, int]) -> None:
    """Whoever exchanged two offsets would get nothing, and not know why. Raises SourceError."""
    for queue, first in start.items():
        if first > end[queue]:
            raise SourceError(
                "WRONG_OPTION",
                f"startingOffsets asks for {_named(queue)} from offset {first} on, which is behind "
                f"endingOffsets, {end[queue]}: exchange them",
            )


def clamped(
    offsets: Mapping[MessageQueue, int],
    earliest: Mapping[MessageQueue, int],
    latest: Mapping[MessageQueue, int],
) -> Offsets:
    return {q: min(max(o, earliest[q]), latest[q]) for q, o in offsets.items()}


def check_kept(
    start: Mapping[MessageQueue, int], end: Mapping[MessageQueue, int],
    earliest: Mapping[MessageQueue, int],
) -> None:  # fmt: skip
    """Everything between start and end must still be there. Raises DataLoss."""
    for queue, last in end.items():
        first = start[queue]
        kept_from = earliest.get(queue, first)
        if first > last:
            raise DataLoss(
                f"{_named(queue)} ends at offset {last}, before {first}, where this query stands: "
                "was the topic deleted and made again, or the broker restored from an older copy? "
                "With failOnDataLoss=false the query reads on from what is there"
            )
        if first < min(kept_from, last):
            gone = min(kept_from, last)
            raise DataLoss(
                f"{_named(queue)}: {gone - first} messages with offsets {first} to {gone - 1} are "
                f"gone, the broker keeps the queue from {kept_from} on. With failOnDataLoss=false "
                "the query goes on behind them"
            )


def kept(
    start: Mapping[MessageQueue, int], end: Mapping[MessageQueue, int],
    earliest: Mapping[MessageQueue, int],
) -> Offsets:  # fmt: skip
    """Where reading can really begin."""
    return {
        queue: earliest.get(queue, 0)
        if start[queue] > last
        else max(start[queue], min(earliest.get(queue, start[queue]), last))
        for queue, last in end.items()
    }


def limited(start: Mapping[MessageQueue, int], latest: Offsets, rows: int) -> Offsets:
    """Ends so that at most `rows` are read, shared out by how much each queue has.

    Every queue that has something gets at least one row while there are any, so that none waits
    for ever behind a larger one.
    """
    behind = {queue: max(end - start[queue], 0) for queue, end in latest.items()}
    total = sum(behind.values())
    if total <= rows:
        return dict(latest)
    # Always the same ones for the same input; those with most first, should not all get a row.
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
    return sum(max(last - start.get(queue, last), 0) for queue, last in end.items())


def ranges_of(
    start: Mapping[MessageQueue, int], end: Mapping[MessageQueue, int]
) -> list[QueueRange]:
    """What lies between, queue by queue in a fixed order: a replay gets the same list."""
    queues = sorted(end, key=lambda q: (q.topic, q.broker_name, q.queue_id))
    return [
        QueueRange(queue, start[queue], end[queue]) for queue in queues if start[queue] < end[queue]
    ]


def divided(
    ranges: Sequence[QueueRange], *, rows_max: int | None, partitions_min: int
) -> list[tuple[QueueRange, ...]]:
    """Ranges for each task: large ones in pieces, small ones together."""
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
    """Equal parts of a range, none longer than the limit."""
    size = wanted.end - wanted.start
    count = -(-size // limit)
    edges = [wanted.start + size * n // count for n in range(count + 1)]
    return (QueueRange(wanted.queue, first, end) for first, end in pairwise(edges))


def _named(queue: MessageQueue) -> str:
    return f"queue {queue.queue_id} of topic {queue.topic} on broker {queue.broker_name}"
