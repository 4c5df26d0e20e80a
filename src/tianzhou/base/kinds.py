"""Distinct types for integers that must not be mixed up, and for bytes-like input."""

from collections.abc import Callable
from typing import Final, NamedTuple, NewType, TypeAlias, cast

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


queue_key: Final = cast("Callable[[str, int], QueueKey]", QueueKey)
"""The key of a queue whose number comes from the wire or from a file: no call is spent on the type
of the number."""
