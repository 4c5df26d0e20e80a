"""Which messages of each queue a table has: all of them between two offsets.

The table may also have rows before the first offset: if its pipeline restarted at a later offset,
or if retention deleted a day while older messages are in the next day, because the broker's clock
was set back.
"""

from collections.abc import Callable, Iterator

from tianzhou.spark.tables.errors import TableError

QueueOffsets = dict[str, dict[str, dict[str, int]]]
"""Topic to broker to queue to an offset."""


def fold(known: QueueOffsets, more: QueueOffsets, choose: Callable[[int, int], int]) -> None:
    """Merge `more` into `known`; if both have a queue, `choose` selects the offset."""
    for topic, broker, queue, offset in each(more):
        here = known.setdefault(topic, {}).setdefault(broker, {})
        here[queue] = choose(here.get(queue, offset), offset)


def each(offsets: QueueOffsets) -> Iterator[tuple[str, str, str, int]]:
    for topic, brokers in offsets.items():
        for broker, queues in brokers.items():
            for queue, offset in queues.items():
                yield topic, broker, queue, offset


def beginnings(starts: QueueOffsets, ends: QueueOffsets) -> QueueOffsets:
    """Return the starts that do not continue existing rows: new queues, and those after a gap."""
    found: QueueOffsets = {}
    for topic, broker, queue, start in each(starts):
        if start > end_of(ends, topic, broker, queue, otherwise=-1):
            fold(found, {topic: {broker: {queue: start}}}, max)
    return found


def reject_duplicates(starts: QueueOffsets, ends: QueueOffsets, where: str) -> None:
    """Check that new rows start after existing ones. Raises TableError for duplicates."""
    for topic, broker, queue, start in each(starts):
        end = end_of(ends, topic, broker, queue, otherwise=0)
        if start < end:
            raise TableError(
                f"{where} has the messages of queue {queue} of {topic} on {broker} up to offset "
                f"{end - 1}; the new ones start at {start} and would be duplicates. Omit "
                "startingOffsets to continue after the last row; write to another table if the "
                "topic was deleted and created again"
            )


def end_of(ends: QueueOffsets, topic: str, broker: str, queue: str, *, otherwise: int) -> int:
    return ends.get(topic, {}).get(broker, {}).get(queue, otherwise)
