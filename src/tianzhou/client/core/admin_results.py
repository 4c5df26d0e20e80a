"""Results of admin methods: plain values, the same for the asyncio and the blocking client.

Settings of topics and groups, and connections, have the types of the wire: `TopicConfig`,
`SubscriptionGroupConfig` and `ClientConnection` of `wire`.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from tianzhou.wire.queues import MessageQueue
from tianzhou.wire.tables import SubscriptionGroupConfig, TopicConfig

LATEST: Final = -1
"""The time after the last message, to which a group can be moved."""

# Brokers


@dataclass(frozen=True, slots=True)
class BrokerPlace:
    """A broker as name servers know it."""

    cluster: str
    name: str
    addresses: Mapping[int, str]
    """By broker id; 0 is the master."""

    @property
    def nearest(self) -> str:
        """The address of the master, or else of the first slave, which knows its own
        replica."""
        return self.addresses[min(self.addresses)]


@dataclass(frozen=True, slots=True)
class BrokerStatus:
    """The state of a broker, as it reports it."""

    name: str
    address: str
    version: str
    is_active: bool
    started_ms: int
    put_per_second: float
    get_per_second: float
    put_today: int
    disk_used_ratio: float
    """-1 if the broker does not know it."""
    refusal: str
    """Why it rejects messages; empty if it accepts them."""
    facts: Mapping[str, str]
    """All reported values, by RocketMQ's names."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """The remaining traffic of a broker that is being drained."""

    put_per_second: float
    lags: Mapping[str, int]
    """Unread messages by group, without groups that have none."""

    @property
    def is_safe(self) -> bool:
        """Whether it can be stopped: there are no writes, and no group has unread messages."""
        return self.put_per_second == 0 and not self.lags


# Topics


@dataclass(frozen=True, slots=True)
class TopicQueue:
    queue: MessageQueue
    min_offset: int
    max_offset: int
    last_ms: int
    """When the last message was stored; 0 if there is none."""

    @property
    def count(self) -> int:
        return self.max_offset - self.min_offset


@dataclass(frozen=True)
class TopicState:
    name: str
    configs: Mapping[str, TopicConfig]
    """By broker name."""
    queues: tuple[TopicQueue, ...]
    put_per_second: float
    groups: tuple[str, ...]
    """Groups that have consumed the topic."""

    @cached_property
    def count(self) -> int:
        """Number of stored messages."""
        return sum(queue.count for queue in self.queues)


@dataclass(frozen=True, slots=True)
class Shrinking:
    """Progress of a topic that is being reduced to fewer queues."""

    topic: str
    queues: int
    unread: Mapping[str, int]
    """By group: unread messages in the queues to be removed."""

    @property
    def is_done(self) -> bool:
        return not self.unread


@dataclass(frozen=True, slots=True)
class Placement:
    """A topic on one broker, before and after it is spread."""

    broker: str
    now: TopicConfig | None
    """None: the broker does not have the topic."""
    then: TopicConfig | None
    """None: the broker has no master now, so it cannot get the topic."""

    @property
    def is_new(self) -> bool:
        return self.now is None and self.then is not None


@dataclass(frozen=True, slots=True)
class Spread:
    """Spreading a topic over the brokers of its cluster: the plan, and afterwards what was done."""

    topic: str
    placements: tuple[Placement, ...]
    """One for each broker of the cluster, by name."""
    groups: tuple[str, ...] = ()
    """Groups of the topic that new brokers lack. They are created there with the same settings."""
    is_ordered: bool = False
    """Whether more queues may change the order in which messages of one key are consumed."""
    unlisted: tuple[str, ...] = ()
    """Brokers that are missing in the order configuration of the NameServers, so that producers of
    ordered messages do not use them."""

    @property
    def added(self) -> tuple[str, ...]:
        """The brokers that get the topic."""
        return tuple(place.broker for place in self.placements if place.is_new)

    @property
    def is_complete(self) -> bool:
        """Whether nothing is left to do."""
        return not self.added and not self.unlisted


# Groups and offsets


@dataclass(frozen=True, slots=True)
class QueueProgress:
    queue: MessageQueue
    committed: int
    end: int
    consumed_ms: int
    """Store time of the last acknowledged message; 0 if there is none."""
    behind_s: float
    """Age of the oldest message that is not acknowledged; 0 if there is none."""

    @property
    def lag(self) -> int:
        return max(self.end - self.committed, 0)


@dataclass(frozen=True)
class GroupProgress:
    group: str
    queues: tuple[QueueProgress, ...]
    get_per_second: float

    @cached_property
    def lag(self) -> int:
        """Messages that are not acknowledged yet."""
        return sum(queue.lag for queue in self.queues)

    @cached_property
    def behind_s(self) -> float:
        """Age of the oldest message that is not acknowledged."""
        return max((queue.behind_s for queue in self.queues), default=0.0)


@dataclass(frozen=True, slots=True)
class GroupState:
    name: str
    configs: Mapping[str, SubscriptionGroupConfig]
    """By broker name."""
    topics: tuple[str, ...]
    """Topics that it has consumed."""
    client_ids: tuple[str, ...]
    """Members that are connected now."""


@dataclass(frozen=True, slots=True)
class OffsetMove:
    """The reset of a group in one queue, planned or done."""

    queue: MessageQueue
    committed: int | None
    """The offset before; None if the group never committed one."""
    target: int

    @property
    def skipped(self) -> int:
        """Number of messages that the group skips; negative: that it consumes again."""
        return self.target - (self.committed or 0)


def effect_of(moves: Iterable[OffsetMove]) -> tuple[int, int]:
    """Return how many messages the group skips, and how many it consumes again."""
    skips = [move.skipped for move in moves]
    return sum(max(skip, 0) for skip in skips), -sum(min(skip, 0) for skip in skips)


# Dead letters


@dataclass(frozen=True, slots=True)
class DeadLetters:
    """The dead letters of a group, in numbers."""

    group: str
    count: int
    not_replayed: int
    last_ms: int
    """When the latest one was stored."""


@dataclass(frozen=True, slots=True)
class Replay:
    """The result of a replay."""

    group: str
    topic: str
    """Where the dead letters were sent."""
    count: int
    left: int
    """Dead letters that were not replayed yet."""
    skipped: int = 0
    """Selected dead letters that were replayed before, and not sent again."""
