"""Distinct types for integers that must not be mixed up, and for bytes-like input."""

from typing import NamedTuple, NewType, TypeAlias

PhysicalOffset = NewType("PhysicalOffset", int)
"""Byte position in the commit log, counted over all its files."""

QueueOffset = NewType("QueueOffset", int)
"""Rank of a message in one queue."""

QueueId = NewType("QueueId", int)

Bytes: TypeAlias = bytes | bytearray | memoryview
"""Any bytes-like input."""


class QueueKey(NamedTuple):
    """Identifies one queue of one topic on this broker."""

    topic: str
    queue_id: QueueId


def queue_key(topic: str, queue_id: int) -> QueueKey:
    return QueueKey(topic, QueueId(queue_id))
