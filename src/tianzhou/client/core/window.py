"""What was pulled from one queue and is still in work.

Messages finish in any order, but a group's progress is one number: everything below it is done. So
the number a consumer may commit is the smallest offset still in work, or, when nothing is, the
offset up to which the broker was asked. A message that takes long holds the number back, and a
crash then repeats what was finished behind it: repeated, never skipped.

What is in work is bounded by number, by bytes and by span, so that a slow consumer neither fills
its memory nor has much to repeat.
"""

import enum
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from tianzhou.base.errors import UsageError

UNLIMITED: Final = -1


class Room(enum.Enum):
    """Whether more may be pulled, and if not, why."""

    FREE = enum.auto()
    TOO_MANY = enum.auto()
    TOO_LARGE = enum.auto()
    TOO_WIDE = enum.auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowLimits:
    """Limits on pulled messages that are not finished. When one is reached, pulling pauses.

    Raises UsageError for limits below 1.

        ConsumerOptions(flow=FlowLimits(queue_count=100))
    """

    queue_count: int = 1000
    queue_bytes: int = 100 * 1024 * 1024
    queue_span: int = 2000
    """Distance between the first and the last offset in work. Not for ordered consumption, where
    messages finish in order."""
    topic_count: int = UNLIMITED
    topic_bytes: int = UNLIMITED
    """For all assigned queues of a topic; divided among them."""

    def __post_init__(self) -> None:
        for name in ("queue_count", "queue_bytes", "queue_span"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name} is {getattr(self, name)}; at least 1 must be allowed")
        for name in ("topic_count", "topic_bytes"):
            value: int = getattr(self, name)
            if value < 1 and value != UNLIMITED:
                raise UsageError(f"{name} is {value}; at least 1, or {UNLIMITED} for no limit")

    def shared_by(self, queues: int) -> "FlowLimits":
        """The same for one of several queues: the limit of the topic in equal parts."""
        assert queues > 0
        count, size = self.queue_count, self.queue_bytes
        if self.topic_count != UNLIMITED:
            count = max(1, self.topic_count // queues)
        if self.topic_bytes != UNLIMITED:
            size = max(1, self.topic_bytes // queues)
        return FlowLimits(queue_count=count, queue_bytes=size, queue_span=self.queue_span)


class Window:
    """Owner: the event loop of the consumer.

    Invariant: committable <= every offset in work < next_offset
    """

    __slots__ = ("_order", "_sizes", "bytes", "next_offset")

    def __init__(self, next_offset: int) -> None:
        self.next_offset = next_offset
        """Where the next pull begins: everything below was pulled, or is not for us."""
        self.bytes = 0
        self._sizes: dict[int, int] = {}
        # Every offset that came, in order; those that are done leave when they are the first.
        self._order: deque[int] = deque()

    @property
    def count(self) -> int:
        return len(self._sizes)

    def add(self, offsets: Sequence[int], sizes: Sequence[int], next_offset: int) -> None:
        """Messages of one pull, ascending, and where it ended."""
        assert next_offset >= self.next_offset
        if offsets:
            assert self.next_offset <= offsets[0]
            assert offsets[-1] < next_offset
            self._sizes.update(zip(offsets, sizes, strict=True))
            self._order.extend(offsets)
            self.bytes += sum(sizes)
        self.next_offset = next_offset

    def __contains__(self, offset: int) -> bool:
        """Whether the message is in work."""
        return offset in self._sizes

    def finish(self, offset: int) -> bool:
        """The message is done, or given to somebody else. False when it was not in work."""
        size = self._sizes.pop(offset, None)
        if size is None:
            return False
        self.bytes -= size
        return True

    @property
    def committable(self) -> int:
        """Everything below this is done."""
        order, sizes = self._order, self._sizes
        while order:
            if order[0] in sizes:
                return order[0]
            order.popleft()
        return self.next_offset

    @property
    def last(self) -> int | None:
        """The highest offset in work, as far as it is known without a search."""
        return self._order[-1] if self._sizes else None

    def room(self, limits: FlowLimits, *, orderly: bool = False) -> Room:
        if len(self._sizes) >= limits.queue_count:
            return Room.TOO_MANY
        if self.bytes >= limits.queue_bytes:
            return Room.TOO_LARGE
        if not orderly and self._sizes and self.next_offset - self.committable > limits.queue_span:
            return Room.TOO_WIDE
        return Room.FREE
