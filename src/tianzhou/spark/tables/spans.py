"""Which messages a table has of each queue: all of them from one offset on up to another.

It may have rows before the first of the two: where its pipeline began anew further on, and where
retention took a day whose messages are not all older than those of the next, because the broker's
clock was set back.
"""

from collections.abc import Callable, Iterator

from tianzhou.spark.tables.errors import TableError

QueueOffsets = dict[str, dict[str, dict[str, int]]]
"""Topic to broker to queue to an offset."""


def fold(known: QueueOffsets, more: QueueOffsets, choose: Callable[[int, int], int]) -> None:
    """Offsets of both, in `known`; where a queue is in both, the chosen one."""
    for topic, broker, queue, offset in each(more):
        here = known.setdefault(topic, {}).setdefault(broker, {})
        here[queue] = choose(here.get(queue, offset), offset)


def each(offsets: QueueOffsets) -> Iterator[tuple[str, str, str, int]]:
    for topic, brokers in offsets.items():
        for broker, queues in brokers.items():
            for queue, offset in queues.items():
                yield topic, broker, queue, offset


def beginnings(starts: QueueOffsets, ends: QueueOffsets) -> QueueOffsets:
    """Those of `starts` that don't go on where rows end: of new queues, and behind a hole."""
    found: QueueOffsets = {}
    for topic, broker, queue, start in each(starts):
        if start > end_of(ends, topic, broker, queue, otherwise=-1):
            fold(found, {topic: {broker: {queue: start}}}, max)
    return found


def reject_duplicates(starts: QueueOffsets, ends: QueueOffsets, where: str) -> None:
    """Messages come in the order of their offsets, or some would be in twice. Raises TableError."""
    for topic, broker, queue, start in each(starts):
        end = end_of(ends, topic, broker, queue, otherwise=0)
        if start < end:
            raise TableError(
                f"{where} has the messages of queue {queue} of {topic} on {broker} up to offset "
                f"{end - 1}; those that come begin at {start}, and would be in it twice. Leave out "
                "startingOffsets to go on where the rows end; write to another table if the topic "
                "was made anew"
            )


def end_of(ends: QueueOffsets, topic: str, broker: str, queue: str, *, otherwise: int) -> int:
    return ends.get(topic, {}).get(broker, {}).get(queue, otherwise)
