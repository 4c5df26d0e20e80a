"""Messages of one queue that were pulled and are not finished.

Messages finish in any order, but a group's progress is one number: everything below it is done. So
the offset a consumer may commit is the smallest one still in work or, if there is none, the
offset of the next pull. A slow message holds the offset back, and after a crash the messages
finished behind it are redelivered: repeated, never skipped.

Messages in work are limited by number, bytes and span, so that a slow consumer neither fills its
memory nor has much to repeat.
"""

import enum
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from tianzhou.base.errors import UsageError

UNLIMITED: Final = -1
_SPAN_UNLIMITED: Final = 1 << 63


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

    def shared_by(self, queues: int, *, orderly: bool = False) -> "FlowLimits":
        """Return the limits of one of several queues: the topic's limits in equal parts. Ordered
        consumption has no limit of the span, because its messages finish in order."""
        assert queues > 0
        count, size = self.queue_count, self.queue_bytes
        if self.topic_count != UNLIMITED:
            count = max(1, self.topic_count // queues)
        if self.topic_bytes != UNLIMITED:
            size = max(1, self.topic_bytes // queues)
        span = _SPAN_UNLIMITED if orderly else self.queue_span
        return FlowLimits(queue_count=count, queue_bytes=size, queue_span=span)


class Window:
    """The messages of one queue in work.

    Owner: the event loop of the consumer.

    Invariant: committable <= every offset in work < next_offset
    """

    __slots__ = ("_order", "_sizes", "bytes", "next_offset")

    def __init__(self, next_offset: int) -> None:
        self.next_offset = next_offset
        """Start of the next pull: everything below was pulled or filtered out."""
        self.bytes = 0
        self._sizes: dict[int, int] = {}
        # All pulled offsets in order; finished ones are removed when they are first.
        self._order: deque[int] = deque()

    @property
    def count(self) -> int:
        return len(self._sizes)

    def add(self, offsets: Sequence[int], sizes: Sequence[int], next_offset: int) -> None:
        """Add the messages of one pull, ascending, and the offset of the next pull."""
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
        """Remove a message that is done. Returns False if it was not in work."""
        size = self._sizes.pop(offset, None)
        if size is None:
            return False
        self.bytes -= size
        return True

    @property
    def committable(self) -> int:
        """The offset below which all messages are done."""
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

    def room(self, limits: FlowLimits) -> Room:
        """Return whether more may be pulled."""
        if len(self._sizes) >= limits.queue_count:
            return Room.TOO_MANY
        if self.bytes >= limits.queue_bytes:
            return Room.TOO_LARGE
        if self._sizes and self.next_offset - self.committable > limits.queue_span:
            return Room.TOO_WIDE
        return Room.FREE
