"""Lag of groups, by queue: in messages and in time.

The age of a lag is that of the oldest waiting message. Finding it requires a read of the log, so
the result is cached until the group commits, and only rows that are shown are read.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Final, NamedTuple

from tianzhou.base.clock import Clock
from tianzhou.base.kinds import QueueKey, queue_key
from tianzhou.base.steps import Steps
from tianzhou.broker import metrics, names
from tianzhou.broker.groups.consumer_offsets import ConsumerOffsets
from tianzhou.broker.groups.groups import Sessions
from tianzhou.broker.metrics import Metric, MetricKind, Samples
from tianzhou.broker.topics.store_times import store_time
from tianzhou.broker.topics.topics import Topics
from tianzhou.store.protocols import QueueReader

ROWS_PER_STEP: Final = 500
"""Queues whose bounds are read in one step: about 3 ms."""
LOOKUPS_PER_STEP: Final = 100
"""Messages that are read in one step, for their store time: about 5 ms."""


class Lag(NamedTuple):
    """The messages of one queue that wait for one group."""

    messages: int
    group: str
    queue: QueueKey
    offset: int
    """Of the oldest waiting message."""


@dataclass(slots=True)
class Lags:
    """Owner: the broker loop."""

    store: QueueReader
    topics: Topics
    offsets: ConsumerOffsets
    sessions: Sessions
    _times: dict[tuple[QueueKey, int], int] = field(default_factory=dict[tuple[QueueKey, int], int])
    """Store times of the waiting messages of the last `ages_ms`."""

    def all(self) -> Iterator[Lag]:
        """Every queue of every topic in which a group has committed an offset. Internal groups,
        dead letters, and topics that an active group no longer subscribes to are left out. The
        caller may pause between two queues; groups may be created and deleted meanwhile."""
        bounds: dict[str, list[tuple[QueueKey, int, int]]] = {}
        for group, topic, committed in list(self.offsets.rows()):
            if names.is_system_group(group) or topic.startswith(names.DEAD_PREFIX):
                continue
            if not self.reads(group, topic):
                continue
            queues = bounds.get(topic)
            if queues is None:  # once for all groups of the topic
                queues = bounds[topic] = self._bounds(topic)
            for key, first, end in queues:
                # Expired messages do not wait any more.
                offset = max(committed.get(key.queue_id, 0), first)
                yield Lag(max(0, end - offset), group, key, offset)

    def _bounds(self, topic: str) -> list[tuple[QueueKey, int, int]]:
        """The queues of a topic, each with the offsets of its first and its next message."""
        config = self.topics.get(topic)
        count = config.read_queue_nums if config is not None else 0
        keys = [queue_key(topic, queue_id) for queue_id in range(count)]
        return [(key, self.store.min_offset(key), self.store.max_offset(key)) for key in keys]

    def reads(self, group: str, topic: str) -> bool:
        """Whether a group may still consume a topic: not if it is online and has unsubscribed."""
        members = self.sessions.consumers.get(group)
        return members is None or not members.subscriptions or topic in members.subscriptions

    def largest(self, lags: list[Lag], count: int) -> list[Lag]:
        """The `count` largest lags, largest first."""
        # A sort is faster than a heap here, because most of the list is sorted already.
        return lags if len(lags) <= count else sorted(lags, reverse=True)[:count]

    def ages_ms(self, lags: list[Lag], now_ms: int) -> Steps[list[int]]:
        """How long the oldest message has waited; 0 if none waits."""
        ages, times = list[int](), dict[tuple[QueueKey, int], int]()
        for number, lag in enumerate(lags, 1):
            ages.append(self._age_ms(lag, times, now_ms))
            if number % LOOKUPS_PER_STEP == 0:
                yield
        self._times = times
        return ages

    def _age_ms(self, lag: Lag, times: dict[tuple[QueueKey, int], int], now_ms: int) -> int:
        if not lag.messages:
            return 0
        place = (lag.queue, lag.offset)
        time = self._times.get(place) or store_time(self.store, lag.queue, lag.offset)
        if time is None:  # damaged, just expired, or not readable yet
            return 0
        times[place] = time
        return max(0, now_ms - time)


class LagMetrics:
    """Lags as metrics: sums by group and topic, and the queues with the largest lags. Owner: the
    broker loop."""

    def __init__(self, lags: Lags, clock: Clock) -> None:
        self._lags = lags
        self._clock = clock
        self._totals: dict[tuple[str, str], int] = {}
        self._queues = Samples([], left_out=0)
        self._ages = Samples([], left_out=0)

    def declare(self) -> tuple[Metric, ...]:
        by_queue = ("group", "topic", "queue")
        return (
            self._gauge(
                "group_lag_messages",
                "Messages that a group has not confirmed, over all queues",
                ("group", "topic"),
                lambda: metrics.largest(self._totals.items()),
            ),
            self._gauge(
                "queue_lag_messages",
                "Messages of a queue that a group has not confirmed",
                by_queue,
                lambda: self._queues,
            ),
            self._gauge(
                "queue_lag_age_seconds",
                "How long the oldest of these messages has been stored",
                by_queue,
                lambda: self._ages,
            ),
        )

    def _gauge(
        self, name: str, help_text: str, labels: tuple[str, ...], read: Callable[[], Samples]
    ) -> Metric:
        return Metric(
            name=name,
            help=help_text,
            kind=MetricKind.GAUGE,
            labels=labels,
            read=read,
            refresh=self.refresh,
        )

    def refresh(self) -> Steps[None]:
        """Compute the lag of every group in every queue."""
        totals, shown, count = dict[tuple[str, str], int](), list[Lag](), 0
        every = self._lags.all()
        while rows := list(islice(every, ROWS_PER_STEP)):
            for lag in rows:
                place = (lag.group, lag.queue.topic)
                totals[place] = totals.get(place, 0) + lag.messages
            shown = self._lags.largest([*shown, *rows], metrics.SERIES_MAX)
            count += len(rows)
            if len(rows) == ROWS_PER_STEP:
                yield
        ages_ms = yield from self._lags.ages_ms(shown, self._clock.now_ms())
        labels = [(lag.group, lag.queue.topic, str(lag.queue.queue_id)) for lag in shown]
        left_out = count - len(shown)
        self._totals = totals
        messages = [lag.messages for lag in shown]
        self._queues = Samples(list(zip(labels, messages, strict=True)), left_out)
        ages_s = [age_ms / 1000 for age_ms in ages_ms]
        self._ages = Samples(list(zip(labels, ages_s, strict=True)), left_out)
