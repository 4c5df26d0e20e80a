"""The contents of dashboard pages, each in one response. With the requests of RocketMQ a page would
take dozens, so these are our own.

Times are milliseconds since 1970 by the broker's clock, and every response contains the current
time of that clock. 0 means never, -1 means unknown.
"""

from typing import Final

import msgspec

from tianzhou.base.kinds import Bytes
from tianzhou.wire.fastjson import BodyReader
from tianzhou.wire.raft_bodies import RaftView
from tianzhou.wire.replication_bodies import ReplicationView
from tianzhou.wire.tables import SubscriptionGroupConfig, TopicConfig


class Event(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Something that the broker's watchdog found."""

    ended_ms: int
    """0: it still is so."""
    group: str
    kind: str
    remedy: str = msgspec.field(name="mend")
    """What to do about it."""
    queue_id: int
    """-1: it is about the whole group."""
    said: str
    since_ms: int
    topic: str


class AlarmRow(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A condition of the broker that holds now and that an operator must see."""

    is_problem: bool
    """False for a warning: everything still works, but may soon fail."""
    kind: str
    """A stable identifier, such as `store_broken`."""
    remedy: str
    since_ms: int
    text: str


class TopicRow(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One topic among many."""

    count: int
    """Messages that are still there."""
    get_per_second: float
    groups: int
    """That have consumed it, or do now."""
    is_system: bool
    name: str
    order: bool
    perm: int
    put_per_second: float
    put_size_per_second: float
    read_queues: int
    write_queues: int


class LightQueueRow(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One light queue of a broker."""

    max_offset: int
    min_offset: int
    name: str

    @property
    def count(self) -> int:
        """Messages that are still there."""
        return self.max_offset - self.min_offset


class LightQueuesView(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Response to VIEW_LIGHT_QUEUES."""

    queues: tuple[LightQueueRow, ...]
    """The first ones by name that were asked for."""
    total: int
    """All light queues of the broker."""


class GroupRow(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One consumer group among many."""

    dead: int
    """Dead letters."""
    dead_ms: int
    """When the last one was stored."""
    dead_not_replayed: int
    enabled: bool
    get_per_second: float
    held: int = 0
    """Messages that are there for it, read or not; those that are tried again do not count."""
    is_abandoned: bool
    """Whether it had members since the broker began, and has none now."""
    is_consistent: bool
    """Whether all members subscribe to the same."""
    is_system: bool
    lag: int
    members: int
    moved_ms: int
    """When its offset in any queue last changed since the broker began."""
    name: str
    oldest_ms: int
    """Store time of the oldest message that it has not confirmed; -1: not looked up yet."""
    retrying: int
    """Messages of `lag` that are tried again."""
    stuck: int
    """Queues that the watchdog found stuck."""
    stuck_ms: int
    """Since when the first of them has been stuck."""
    topics: tuple[str, ...]


class Disk(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    clean_ratio: float
    """Over this use expired files go at any hour."""
    free: int
    log_size: int
    put_size_per_hour: float
    """Bytes a second, over the last hour."""
    put_size_per_minute: float
    refuse_ratio: float
    """Over this use writes are refused."""
    retention_hours: int
    total: int
    """0: not known."""


class History(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Messages a second, the oldest first, as far as the broker remembers."""

    gets: tuple[float, ...] = ()
    puts: tuple[float, ...] = ()
    step_s: int


class Totals(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    consumers: int
    dead: int
    groups: int
    halves: int
    """Transactions that are not decided."""
    held_pulls: int
    lag: int
    producers: int
    timers: int
    topics: int


class BrokerView(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Response to VIEW_BROKER."""

    alarms: tuple[AlarmRow, ...] = ()
    """Problems first, then the oldest first."""
    busiest: tuple[TopicRow, ...]
    """Topics with the most traffic."""
    cluster: str
    config: dict[str, str] = msgspec.field(default_factory=dict[str, str])
    """Settings; like the next field by RocketMQ's names, and only if everything was requested."""
    damaged: int
    disk: Disk
    dispatch_behind: int
    """Bytes that are stored and not visible yet."""
    events: tuple[Event, ...]
    """Current conditions, the oldest first; then those that ended."""
    facts: dict[str, str] = msgspec.field(default_factory=dict[str, str])
    flush_behind: int
    """Bytes that are stored and not on the medium yet."""
    get_per_second: float
    history: History
    is_broken: bool
    name: str
    now_ms: int
    permission: int
    put_longest_ms: float
    put_p99_ms: float
    put_per_second: float
    put_today: int
    raft: RaftView | None = None
    """Of a member of a Raft group."""
    refusal: str
    """Why it takes no messages."""
    replication: ReplicationView | None = None
    """Its role, its log and its slaves."""
    started_ms: int
    totals: Totals
    troubled: tuple[GroupRow, ...]
    """Groups with lag or problems, the worst first; no internal ones."""
    troubled_count: int = 0
    """How many there are; `troubled` may have fewer."""
    version: str


class TopicsView(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Response to VIEW_TOPICS."""

    now_ms: int
    topics: tuple[TopicRow, ...]


class GroupsView(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Response to VIEW_GROUPS."""

    groups: tuple[GroupRow, ...]
    now_ms: int


class QueueView(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A queue by itself."""

    last_ms: int
    max_offset: int
    min_offset: int
    queue_id: int


class ProducerSeen(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The producer of one of the last messages of a topic."""

    address: str
    client_id: str
    """Empty if the client has disconnected or never sent it."""
    group: str
    language: str
    last_ms: int


class ReaderView(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A group that reads a topic."""

    get_per_second: float
    group: str
    lag: int
    members: int
    oldest_ms: int


class TopicView(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Response to VIEW_TOPIC."""

    config: TopicConfig
    hours: tuple[int, ...]
    """Messages that came in each of the last hours, the oldest first."""
    is_system: bool
    now_ms: int
    producers: tuple[ProducerSeen, ...]
    put_per_second: float
    put_size_per_second: float
    queues: tuple[QueueView, ...]
    readers: tuple[ReaderView, ...]


class Wanted(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What a member subscribes to."""

    expression: str
    kind: str
    topic: str


class Member(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    address: str
    client_id: str
    heard_ms: int
    language: str
    wants: tuple[Wanted, ...]


class HeldQueue(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A queue as a group sees it."""

    committed: int
    """-1: the group never confirmed anything of it."""
    end: int
    first: int
    """The oldest offset that is still there."""
    moved_ms: int
    oldest_ms: int
    """Store time of the next message to be confirmed."""
    owner: str
    """Client id of the consumer that pulls it, or its address if that is unknown; empty: none."""
    pulled_ms: int
    queue_id: int
    topic: str

    @property
    def lag(self) -> int:
        return max(self.end - max(self.committed, self.first), 0)


class PlannedMove(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Where a group would resume in one queue."""

    committed: int
    """-1: the group never confirmed anything of it."""
    queue_id: int
    target: int


class GroupView(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Response to VIEW_GROUP."""

    config: SubscriptionGroupConfig
    consume_type: str
    events: tuple[Event, ...]
    """That still are so."""
    is_ordered: bool
    members: tuple[Member, ...]
    message_model: str
    """Empty when no member is online."""
    moves: tuple[PlannedMove, ...] = ()
    """The effect of a requested offset reset on the queues of its topic."""
    now_ms: int
    owned: dict[str, int] = {}
    """How many queues each owner has, of all queues of the group."""
    queue_count: int = -1
    """Queues that match the request, also those above its limit; -1: from a broker that knows no
    limit, so all are in `queues`."""
    queues: tuple[HeldQueue, ...]
    row: GroupRow
    started_ms: int


_BROKER: Final = BodyReader(BrokerView)
_TOPICS: Final = BodyReader(TopicsView)
_LIGHT_QUEUES: Final = BodyReader(LightQueuesView)
_TOPIC: Final = BodyReader(TopicView)
_GROUPS: Final = BodyReader(GroupsView)
_GROUP: Final = BodyReader(GroupView)


def decode_broker_view(data: Bytes) -> BrokerView:
    return _BROKER.read(data)


def decode_topics_view(data: Bytes) -> TopicsView:
    return _TOPICS.read(data)


def decode_light_queues_view(data: Bytes) -> LightQueuesView:
    return _LIGHT_QUEUES.read(data)


def decode_topic_view(data: Bytes) -> TopicView:
    return _TOPIC.read(data)


def decode_groups_view(data: Bytes) -> GroupsView:
    return _GROUPS.read(data)


def decode_group_view(data: Bytes) -> GroupView:
    return _GROUP.read(data)
