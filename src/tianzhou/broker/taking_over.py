"""Becoming the master: from copies of messages to a broker that takes them."""

import logging
from typing import Final

from tianzhou.broker.parts import Parts
from tianzhou.broker.services import Service
from tianzhou.store.store import MessageStore

log: Final = logging.getLogger("tianzhou.replication")


def begin_as_master(parts: Parts, store: MessageStore) -> None:
    """Make everything visible that the log holds, go on with its queue offsets, and let the
    services read what they keep. What `visible_bound` still holds back must be confirmed before."""
    store.flush()
    parts.writer.settle()
    if not store.is_writing:
        store.begin_writing()
    parts.offsets.clamp(store.max_offset)
    services: tuple[Service, ...] = parts.services
    for service in services:
        service.begin()
    parts.writer.settle()


def name_topics_of_queues(parts: Parts, store: MessageStore) -> None:
    """The old master may have died before it told us of a topic whose messages we have: without a
    name nobody could read them."""
    unknown: dict[str, int] = {}
    for queue in store.queues:
        topic, queue_id = queue.key
        if parts.topics.get(topic) is None:
            unknown[topic] = max(unknown.get(topic, 0), queue_id + 1)
    if unknown:
        log.warning("topics.named_after_queues", extra={"topics": sorted(unknown)})
        parts.topics.ensure_all(unknown)


def end_as_master(parts: Parts, store: MessageStore) -> None:
    """Take no more messages, and tell whoever waits that we do not know."""
    store.stop_writing()
    parts.writer.give_up()
