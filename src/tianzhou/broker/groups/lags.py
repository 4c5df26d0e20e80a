"""How far groups are behind, queue by queue: in messages, and in time.

The age of a lag is that of the oldest message that waits. Finding it means a look into the log, so
what was found is kept until the group moves on, and only rows that are shown are looked up.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from tianzhou.base.kinds import QueueKey, queue_key
from tianzhou.base.steps import Steps
from tianzhou.broker import names
from tianzhou.broker.groups.consumer_offsets import ConsumerOffsets
from tianzhou.broker.groups.sessions import Sessions
from tianzhou.broker.topics.store_times import store_time
from tianzhou.broker.topics.topics import Topics
from tianzhou.store.store import MessageStore

ROWS_PER_STEP: Final = 500
"""Queues whose bounds are read in one step: about 3 ms."""
LOOKUPS_PER_STEP: Final = 100
"""Messages that are read in one step, for their store time: about 5 ms."""


class Lag(NamedTuple):
    """What waits for one group in one queue."""

    messages: int
    group: str
    queue: QueueKey
    offset: int
    """Of the oldest message that waits."""


@dataclass(slots=True)
class Lags:
    """Owner: the broker loop."""

    store: MessageStore
    topics: Topics
    offsets: ConsumerOffsets
    sessions: Sessions
    _times: dict[tuple[QueueKey, int], int] = field(default_factory=dict[tuple[QueueKey, int], int])
    """Store times of messages that waited when somebody last looked."""

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
                # What has expired waits no longer.
                offset = max(committed.get(key.queue_id, 0), first)
                yield Lag(max(0, end - offset), group, key, offset)

    def _bounds(self, topic: str) -> list[tuple[QueueKey, int, int]]:
        """The queues of a topic, each with the ranks of its first message and of its next."""
        config = self.topics.get(topic)
        count = config.read_queue_nums if config is not None else 0
        keys = [queue_key(topic, queue_id) for queue_id in range(count)]
        return [(key, self.store.min_offset(key), self.store.max_offset(key)) for key in keys]

    def reads(self, group: str, topic: str) -> bool:
        """Whether a group that was there may come back: not if it lives and has given it up."""
        members = self.sessions.consumers.get(group)
        return members is None or not members.subscriptions or topic in members.subscriptions

    def largest(self, lags: list[Lag], count: int) -> list[Lag]:
        """So many of them, those with most messages first."""
        # A sort, because what was the largest so far is sorted already.
        return lags if len(lags) <= count else sorted(lags, reverse=True)[:count]

    def ages_ms(self, lags: list[Lag], now_ms: int) -> Steps[list[int]]:
        """How long the oldest message has waited; 0 where nothing waits."""
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
        if time is None:  # damaged, or it expired a moment ago
            return 0
        times[place] = time
        return max(0, now_ms - time)
