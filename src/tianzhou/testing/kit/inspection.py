"""Inspection of a test broker: messages, offsets, clients. Everything is read in the broker's loop,
between two of its steps, so the result is consistent."""

from collections.abc import Iterable

from tianzhou.base.errors import TianzhouError
from tianzhou.base.kinds import QueueOffset, queue_key
from tianzhou.broker.server import Broker
from tianzhou.record.message import MessageView, decode_all
from tianzhou.store.read import ReadLimit
from tianzhou.store.store import MessageStore
from tianzhou.testing.kit.faults import connections

_LIMIT = ReadLimit(800, 1 << 26)
_SHOWN_MAX = 5
_BODY_SHOWN_MAX = 60


def messages(store: MessageStore, topic: str, queue_id: int | None = None) -> list[MessageView]:
    """Return all messages that can be consumed, in the order in which they were stored."""
    queues = [q.key.queue_id for q in store.queues.of_topic(topic)]
    found = [
        message
        for number in (queues if queue_id is None else [queue_id])
        for message in _of_queue(store, topic, number)
    ]
    return sorted(found, key=lambda message: message.physical_offset)


def _of_queue(store: MessageStore, topic: str, queue_id: int) -> Iterable[MessageView]:
    key = queue_key(topic, queue_id)
    offset = store.min_offset(key)
    while offset < store.max_offset(key):
        with store.read(key, QueueOffset(offset), _LIMIT) as read:
            # A copy, because the test keeps it longer than the lease lasts.
            for span in read.spans:
                yield from decode_all(bytes(span))
            offset = read.next_offset


def lags(broker: Broker, store: MessageStore, group: str, topic: str) -> dict[int, int]:
    """Return the number of messages that the group has not committed yet, by queue. A queue without
    a committed offset counts from its first message."""
    committed = broker.slices.groups.tables.offsets.of(group, topic)
    return {
        q.key.queue_id: max(0, int(q.end) - committed.get(q.key.queue_id, int(q.min_offset)))
        for q in store.queues.of_topic(topic)
    }


def describe(broker: Broker, store: MessageStore) -> str:
    """Return topics, messages, groups and clients as text, for the message of a failed test."""
    topics = [
        name
        for name in broker.slices.topics.topics.all()
        if not broker.slices.topics.topics.is_system(name)
    ]
    lines: list[str] = []
    for topic in sorted(topics):
        found = messages(store, topic)
        lines.append(f"topic {topic}: {len(found)} messages")
        lines += [f"  {_line(message)}" for message in found[-_SHOWN_MAX:]]
        for group in sorted(broker.slices.groups.tables.offsets.groups_of(topic)):
            committed = dict(sorted(broker.slices.groups.tables.offsets.of(group, topic).items()))
            behind = sum(lags(broker, store, group, topic).values())
            lines.append(f"  group {group} committed {committed}, {behind} to go")
    clients = sorted(connections(broker.slices.groups.tables.sessions))
    lines.append(f"clients: {', '.join(clients) or 'none'}")
    if store.refusal:
        lines.append(f"writes are refused: {store.refusal}")
    return "\n".join(lines)


def _line(message: MessageView) -> str:
    try:
        body = message.body
    except TianzhouError:
        body = message.stored_body  # the test may be about bodies that cannot be decompressed
    text = repr(body[:_BODY_SHOWN_MAX]) + ("…" if len(body) > _BODY_SHOWN_MAX else "")
    tags = f" tags {message.tags}" if message.tags else ""
    keys = f" keys {' '.join(message.keys)}" if message.keys else ""
    return f"queue {message.queue_id} offset {message.queue_offset}:{tags}{keys} {text}"
