"""Becoming the master: from copies of messages to a broker that takes them."""

from tianzhou.broker.parts import Parts
from tianzhou.store.store import MessageStore


def begin_as_master(parts: Parts, store: MessageStore) -> None:
    """Make everything visible that the log holds, go on with its queue offsets, and let the
    services read what they keep. What `visible_bound` still holds back must be confirmed before."""
    store.flush()
    parts.writer.settle()
    if not store.is_writing:
        store.begin_writing()
    parts.offsets.clamp(store.max_offset)
    for service in parts.services:
        service.begin()
    parts.writer.settle()


def end_as_master(parts: Parts, store: MessageStore) -> None:
    """Take no more messages, and tell whoever waits that we do not know."""
    store.stop_writing()
    parts.writer.give_up()
