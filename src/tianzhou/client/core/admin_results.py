"""What administration tells: plain values, the same for the asyncio and the blocking client.

Settings of topics and groups, and connections, are told as they travel: `TopicConfig`,
`SubscriptionGroupConfig` and `ClientConnection` of `wire`.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from tianzhou.wire.queues import MessageQueue
from tianzhou.wire.tables import SubscriptionGroupConfig, TopicConfig

LATEST: Final = -1
"""The moment behind the last message, where a group can be moved to."""

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
        """The address of the master, or else of the first slave, which knows what it has
        replicated."""
        return self.addresses[min(self.addresses)]


@dataclass(frozen=True, slots=True)
class BrokerStatus:
    """A broker as it knows itself."""

    name: str
    address: str
    version: str
    is_active: bool
    started_ms: int
    put_per_second: float
    get_per_second: float
    put_today: int
    disk_used_ratio: float
    """-1 when the broker does not know."""
    refusal: str
    """Why it takes no messages; empty when it does."""
    facts: Mapping[str, str]
    """Everything it said, by RocketMQ's names."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """What still happens on a broker that is being drained."""

    put_per_second: float
    lags: Mapping[str, int]
    """Messages that each group has not read yet, where there are any."""

    @property
    def is_safe(self) -> bool:
        """Whether it can be stopped without anybody waiting for its messages."""
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
    """That have consumed it, or do now."""

    @cached_property
    def count(self) -> int:
        """Messages that are still there."""
        return sum(queue.count for queue in self.queues)


@dataclass(frozen=True, slots=True)
class Shrinking:
    """How far a topic has come on its way to fewer queues."""

    topic: str
    queues: int
    unread: Mapping[str, int]
    """By group: messages in the queues that are to go."""

    @property
    def is_done(self) -> bool:
        return not self.unread


# Groups and offsets


@dataclass(frozen=True, slots=True)
class QueueProgress:
    queue: MessageQueue
    committed: int
    end: int
    consumed_ms: int
    """When the last message that was confirmed had been stored; 0 if there is none."""
    behind_s: float
    """Age of the next message to be confirmed; 0 if there is none."""

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
        """Messages that are not confirmed yet."""
        return sum(queue.lag for queue in self.queues)

    @cached_property
    def behind_s(self) -> float:
        """Age of the oldest of them."""
        return max((queue.behind_s for queue in self.queues), default=0.0)


@dataclass(frozen=True, slots=True)
class GroupState:
    name: str
    configs: Mapping[str, SubscriptionGroupConfig]
    """By broker name."""
    topics: tuple[str, ...]
    """That it has consumed."""
    client_ids: tuple[str, ...]
    """Members that are connected now."""


@dataclass(frozen=True, slots=True)
class OffsetMove:
    """One queue of a group that is moved, or would be."""

    queue: MessageQueue
    committed: int | None
    """None: the group never confirmed anything of it."""
    target: int

    @property
    def skipped(self) -> int:
        """How many messages the group will not see; below 0: how many it will see again."""
        return self.target - (self.committed or 0)


def effect_of(moves: Iterable[OffsetMove]) -> tuple[int, int]:
    """Messages that a group will never see, and those that it will see again."""
    skips = [move.skipped for move in moves]
    return sum(max(skip, 0) for skip in skips), -sum(min(skip, 0) for skip in skips)


# Dead letters


@dataclass(frozen=True, slots=True)
class DeadLetters:
    """What a group has given up."""

    group: str
    count: int
    not_replayed: int
    """Those behind the last one that was replayed."""
    last_ms: int


@dataclass(frozen=True, slots=True)
class Replay:
    """What became of dead letters that were sent again."""

    group: str
    topic: str
    """Where they were sent to."""
    count: int
    left: int
    """Dead letters that are still behind the last one."""
