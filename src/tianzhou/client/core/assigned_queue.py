"""A queue assigned to this member: its state, its messages in work, and its limits.

    ACQUIRING ──▶ PULLING ◀──▶ PAUSED
        │            │            │
        └────────────┴─────┬──────┘
                           ▼
                       DRAINING ──▶ RELEASED

A queue is acquired when its offset is known and, in ordered consumption, its lock is granted. It
pauses while its window is full, or while the user has paused it. A revoked queue drains: no further
message is started, and those in flight are waited for. Messages are started in order, so afterwards
the committed offset is exactly where the next owner must start. A queue that moves to another
offset, after a reset or a seek, is replaced by a new one and released at once: its messages in
flight no longer count.

`TABLE` has a cell for every state and event. The shells in `consume` report events and perform the
action that `handle` returns.

The `Window` has the messages in work: pulled and not finished. They finish in any order, but a
group's progress is one number: everything below it is done. So the offset a consumer may commit is
the smallest one still in work or, if there is none, the offset of the next pull. A slow message
holds the offset back, and after a crash the messages finished behind it are redelivered: repeated,
never skipped. `FlowLimits` bound them by number, bytes and span, so that a slow consumer neither
fills its memory nor has much to repeat.

`ConsumeRates` counts what happens to the messages of all assigned queues of a topic.
"""

import enum
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from tianzhou.base.errors import UsageError
from tianzhou.client.core.pulling import PullPlan
from tianzhou.wire.queues import MessageQueue

UNLIMITED: Final = -1
_SPAN_UNLIMITED: Final = 1 << 63

# The messages in work


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


# The states of a queue


class State(enum.IntEnum):
    """In the order of a queue's life: from DRAINING on, it is no longer ours to consume."""

    ACQUIRING = 0
    PULLING = 1
    PAUSED = 2
    DRAINING = 3
    RELEASED = 4


class Event(enum.IntEnum):
    ACQUIRED = 0
    """The queue is registered with its offset, and locked if that is necessary."""
    PAUSE = 1
    """The window is full, or the user paused the queue."""
    RESUME = 2
    """The reason for the pause is gone."""
    REVOKED = 3
    """A rebalance assigned the queue to another member, or the consumer stops."""
    DRAINED = 4
    """No message is in flight any more, or the release timeout passed."""
    MOVED = 5
    """The queue continues at another offset, in a new AssignedQueue."""


class Action(enum.Enum):
    PULL = "pull"
    """Send pull requests."""
    HOLD = "hold"
    """Send no further pull request; deliver pulled messages."""
    DRAIN = "drain"
    """Stop pulling, drop messages that are not started, and wait for those in flight."""
    COMMIT = "commit"
    """Commit the final offset and release the lock."""
    DISCARD = "discard"
    """Stop pulling and drop all messages; the queue that replaces this one commits."""
    NOTHING = "nothing"
    IMPOSSIBLE = "impossible"
    """The event cannot occur in this state: a bug in a shell."""


_A, _E, _S = Action, Event, State
_NOTHING, _NEVER = _A.NOTHING, _A.IMPOSSIBLE

TABLE: Final[dict[State, dict[Event, tuple[State, Action]]]] = {
    _S.ACQUIRING: {
        _E.ACQUIRED: (_S.PULLING, _A.PULL),
        _E.PAUSE: (_S.ACQUIRING, _NEVER),
        _E.RESUME: (_S.ACQUIRING, _NEVER),
        _E.REVOKED: (_S.DRAINING, _A.DRAIN),
        _E.DRAINED: (_S.ACQUIRING, _NEVER),
        _E.MOVED: (_S.RELEASED, _A.DISCARD),
    },
    _S.PULLING: {
        _E.ACQUIRED: (_S.PULLING, _NEVER),
        _E.PAUSE: (_S.PAUSED, _A.HOLD),
        _E.RESUME: (_S.PULLING, _NOTHING),
        _E.REVOKED: (_S.DRAINING, _A.DRAIN),
        _E.DRAINED: (_S.PULLING, _NEVER),
        _E.MOVED: (_S.RELEASED, _A.DISCARD),
    },
    _S.PAUSED: {
        _E.ACQUIRED: (_S.PAUSED, _NEVER),
        _E.PAUSE: (_S.PAUSED, _NOTHING),
        _E.RESUME: (_S.PULLING, _A.PULL),
        _E.REVOKED: (_S.DRAINING, _A.DRAIN),
        _E.DRAINED: (_S.PAUSED, _NEVER),
        _E.MOVED: (_S.RELEASED, _A.DISCARD),
    },
    # A revoked queue is no longer in the assignment, so it cannot be acquired, revoked or moved;
    # its puller may still notice a full window or room.
    _S.DRAINING: {
        _E.ACQUIRED: (_S.DRAINING, _NEVER),
        _E.PAUSE: (_S.DRAINING, _NOTHING),
        _E.RESUME: (_S.DRAINING, _NOTHING),
        _E.REVOKED: (_S.DRAINING, _NEVER),
        _E.DRAINED: (_S.RELEASED, _A.COMMIT),
        _E.MOVED: (_S.DRAINING, _NEVER),
    },
    _S.RELEASED: {
        _E.ACQUIRED: (_S.RELEASED, _NEVER),
        _E.PAUSE: (_S.RELEASED, _NOTHING),
        _E.RESUME: (_S.RELEASED, _NOTHING),
        _E.REVOKED: (_S.RELEASED, _NEVER),
        _E.DRAINED: (_S.RELEASED, _NOTHING),
        _E.MOVED: (_S.RELEASED, _NEVER),
    },
}


class AssignedQueue:
    """The state of one assigned queue, its messages in work and its limits.

    Owner: the event loop, except `in_flight`, which the lock of `deliveries.Ready` protects.
    """

    __slots__ = (
        "finished_at",
        "in_flight",
        "limits",
        "locked_until",
        "on_idle",
        "on_room",
        "plan",
        "pulled_at",
        "queue",
        "state",
        "waiting",
        "window",
    )

    def __init__(self, plan: PullPlan, offset: int, limits: FlowLimits) -> None:
        self.plan = plan
        self.queue: MessageQueue = plan.queue
        self.window = Window(offset)
        self.limits = limits
        self.state = State.ACQUIRING
        self.in_flight = 0
        """Messages that a listener or the user is processing."""
        self.waiting: deque[Any] = deque()
        """In ordered consumption: `PulledRecords` that are not started yet."""
        self.locked_until = 0.0
        """In ordered consumption: when the broker's lock expires."""
        self.pulled_at = self.finished_at = 0.0
        """Times of the last response and of the last finished message; monotonic seconds."""
        self.on_room: Callable[[], None] | None = None
        """Called once when the window is no longer full."""
        self.on_idle: Callable[[], None] | None = None
        """Called once when no message is in flight."""

    def handle(self, event: Event) -> Action:
        """Enter the next state; return what the shell must do."""
        self.state, action = TABLE[self.state][event]
        assert action is not Action.IMPOSSIBLE, f"{event.name} in state {self.state.name}"
        return action

    @property
    def is_revoked(self) -> bool:
        """No message of the queue is started any more."""
        return self.state >= State.DRAINING

    @property
    def is_released(self) -> bool:
        """The final offset is decided: messages still in flight no longer count."""
        return self.state is State.RELEASED

    @property
    def has_room(self) -> bool:
        return self.window.room(self.limits) is Room.FREE

    def finish(self, offsets: Iterable[int], now_s: float) -> int:
        """Mark messages as finished; return how many of them were in work."""
        finish, count = self.window.finish, 0
        for offset in offsets:
            count += finish(offset)
        self.finished_at = now_s
        if self.on_room is not None and self.has_room:
            on_room, self.on_room = self.on_room, None
            on_room()
        return count

    def report_idle(self) -> None:
        """Call `on_idle`, if it is set: no message is in flight any more."""
        if self.on_idle is not None:
            on_idle, self.on_idle = self.on_idle, None
            on_idle()


def queue_text(queue: MessageQueue) -> str:
    """Name a queue in a line of a log."""
    return f"queue {queue.broker_name}:{queue.queue_id} of topic {queue.topic}"


def committable(assigned: AssignedQueue) -> int:
    """Return the offset below which all messages of a queue are done."""
    return assigned.window.committable


# Rates over the last minute, as tools show them

BUCKET_S: Final = 10
BUCKETS: Final = 6
"""Together one minute, the period of a Java consumer's statistics."""


class TopicRates(NamedTuple):
    """Rates in messages per second, times as averages in milliseconds."""

    pulled: float = 0.0
    pull_ms: float = 0.0
    consumed: float = 0.0
    consume_ms: float = 0.0
    """Duration of a listener call; 0 without a listener."""
    failed: float = 0.0
    failures: int = 0


class _Bucket:
    """Counters of one topic for BUCKET_S seconds."""

    __slots__ = (
        "call_s",
        "calls",
        "consumed",
        "failed",
        "number",
        "pull_s",
        "pulled",
        "pulls",
    )

    def __init__(self, number: int) -> None:
        self.number = number
        self.pulls = self.pulled = self.calls = self.consumed = self.failed = 0
        self.pull_s = self.call_s = 0.0


class ConsumeRates:
    """Counters of pulls, calls and failures. Times are arguments, in monotonic seconds.

    Owner: the event loop of the consumer.
    """

    def __init__(self, started_s: float) -> None:
        self._started_s = started_s
        self._topics: dict[str, list[_Bucket]] = {}
        self.finished_count = 0
        self.failed_count = 0

    def pulled(self, topic: str, count: int, took_s: float, now_s: float) -> None:
        bucket = self._bucket(topic, now_s)
        bucket.pulls += 1
        bucket.pulled += count
        bucket.pull_s += took_s

    def called(self, topic: str, took_s: float, finished: int, now_s: float) -> None:
        """Record a listener call that took `took_s` seconds and finished this many messages."""
        bucket = self._bucket(topic, now_s)
        bucket.calls += 1
        bucket.call_s += took_s
        bucket.consumed += finished
        self.finished_count += finished

    def finished(self, topic: str, count: int, now_s: float) -> None:
        """Record messages that were finished without a listener."""
        self._bucket(topic, now_s).consumed += count
        self.finished_count += count

    def failed(self, topic: str, count: int, now_s: float) -> None:
        self._bucket(topic, now_s).failed += count
        self.failed_count += count

    def _bucket(self, topic: str, now_s: float) -> _Bucket:
        number = int(now_s / BUCKET_S)
        buckets = self._topics.get(topic)
        if buckets is None:
            buckets = self._topics[topic] = [_Bucket(number)]
        last = buckets[-1]
        if last.number < number:
            last = _Bucket(number)
            buckets.append(last)
            del buckets[:-BUCKETS]
        return last

    def of(self, topic: str, now_s: float) -> TopicRates:
        oldest = int(now_s / BUCKET_S) - BUCKETS + 1
        rows = [row for row in self._topics.get(topic, ()) if row.number >= oldest]
        since_s = max(oldest * BUCKET_S, self._started_s)
        seconds = max(now_s - since_s, 1.0)
        pulls, calls = sum(row.pulls for row in rows), sum(row.calls for row in rows)
        failures = sum(row.failed for row in rows)
        return TopicRates(
            pulled=sum(row.pulled for row in rows) / seconds,
            pull_ms=sum(row.pull_s for row in rows) * 1000 / max(pulls, 1),
            consumed=sum(row.consumed for row in rows) / seconds,
            consume_ms=sum(row.call_s for row in rows) * 1000 / max(calls, 1),
            failed=failures / seconds,
            failures=failures,
        )
