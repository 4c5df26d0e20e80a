"""The options `--queue` and `--broker`, and reading at an offset of one queue."""

from typing import TYPE_CHECKING, Final

import click

from tianzhou.admin.commands.failures import not_found
from tianzhou.admin.commands.session import Session
from tianzhou.wire.names import TOOLS_GROUP

if TYPE_CHECKING:
    from tianzhou.record.message import MessageView
    from tianzhou.wire.queues import MessageQueue

READER: Final = TOOLS_GROUP
"""The group that tools read with: it exists on every broker and commits no offsets."""

queue_id = click.option(
    "--queue", "queue_id", type=click.IntRange(0), metavar="ID", help="Use only queue ID."
)
broker = click.option(
    "--broker", help="Choose the broker of --queue if several brokers serve the topic."
)


def one(session: Session, topic: str, queue_id: int, broker: str | None) -> "MessageQueue":
    """Find the queue with this id. Raises if no broker has it, or several do."""
    found = [
        queue
        for queue in all_of(session, topic)
        if queue.queue_id == queue_id and broker in (None, queue.broker_name)
    ]
    if not found:
        where = f" on broker {broker}" if broker is not None else ""
        raise not_found(
            f"topic {topic} has no queue {queue_id}{where}; `tianzhou topic show {topic}` lists "
            "its queues"
        )
    if len(found) > 1:
        places = ", ".join(sorted(queue.broker_name for queue in found))
        raise click.UsageError(f"brokers {places} have queue {queue_id} of {topic}; add --broker")
    return found[0]


def all_of(session: Session, topic: str) -> "list[MessageQueue]":
    from tianzhou.client.sync.pull_consumer import PullConsumer

    with PullConsumer(READER, nameserver=session.nameserver) as consumer:
        return list(consumer.queues(topic))


def message_at(session: Session, queue: "MessageQueue", offset: int) -> "MessageView":
    """Read the message at this offset. The error names the offsets that exist."""
    from tianzhou.client.sync.pull_consumer import PullConsumer

    with PullConsumer(READER, nameserver=session.nameserver) as consumer:
        first, end = consumer.first(queue), consumer.end(queue)
        found = consumer.pull(queue, offset, count_max=1) if first <= offset < end else None
    if found is not None and found.messages and found.messages[0].queue_offset == offset:
        return found.messages[0]
    held = f"it has {first} to {end - 1}" if end > first else "it is empty"
    raise not_found(
        f"queue {queue.queue_id} of topic {queue.topic} on broker {queue.broker_name} has no "
        f"message with offset {offset}; {held}"
    )
