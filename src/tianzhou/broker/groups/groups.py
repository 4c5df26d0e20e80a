"""Consumer groups: their settings, the connected clients, and what these subscribe to and read.

A client is identified by its connection and the id that it chose. It is alive while its connection
is open and it sends heartbeats. Its subscriptions are compiled to filters, which pulls use.

Clients assign queues among themselves without informing the broker, so `Readers` infers from the
last pull of each group which client reads which queue. The owner of a queue pulls it, and repeats
that within the half minute that a pull may wait; a client that does not has lost the queue or
hangs.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from tianzhou.base.clock import Clock
from tianzhou.base.errors import UsageError
from tianzhou.base.kinds import QueueKey
from tianzhou.broker import names
from tianzhou.broker.config import BrokerConfig
from tianzhou.filter.errors import FilterError
from tianzhou.filter.sql92 import Expression, compile_sql
from tianzhou.filter.tags import parse_tags
from tianzhou.net.rpc import Peer, RequestRejected
from tianzhou.store.errors import StoreError
from tianzhou.store.tables import Table
from tianzhou.wire._generated_codes import ResponseCode
from tianzhou.wire.codec import Language
from tianzhou.wire.heartbeat import ConsumerData, SubscriptionData
from tianzhou.wire.tables import DataVersion, SubscriptionGroupConfig, SubscriptionGroupTable

_FORBIDDEN_READ: Final = 1 << 2
"""Bit of a row of the forbidden table, as RocketMQ numbers it."""


class Groups:
    """Owner: the broker loop."""

    def __init__(
        self,
        table: Table[SubscriptionGroupTable],
        config: BrokerConfig,
        clock: Clock,
        *,
        is_replica: Callable[[], bool] = lambda: False,
    ) -> None:
        """`is_replica` returns whether only another broker currently may create groups."""
        self._table = table
        self._is_replica = is_replica
        self._config = config
        self._clock = clock
        stored = table.load()
        self._groups = dict(stored.subscription_group_table)
        self._forbidden = dict(stored.forbidden_table)
        self.version: DataVersion = stored.data_version
        self.deleted: list[Callable[[str], None]] = []
        """Called after a group was removed, so that other parts drop their state of it."""
        for name in names.SYSTEM_GROUPS:
            self._groups.setdefault(name, SubscriptionGroupConfig(group_name=name))
        for name in self._groups:
            names.checked_group(name)  # the table may have been edited by hand

    def adopt(self, config: BrokerConfig) -> None:
        """Apply settings that changed while the broker runs."""
        self._config = config

    def get(self, name: str) -> SubscriptionGroupConfig | None:
        return self._groups.get(name)

    def all(self) -> dict[str, SubscriptionGroupConfig]:
        return self._groups

    def table(self) -> SubscriptionGroupTable:
        return SubscriptionGroupTable(
            data_version=self.version,
            forbidden_table=self._forbidden,
            subscription_group_table=self._groups,
        )

    def obtain(self, name: str) -> SubscriptionGroupConfig | None:
        """The group, created now if automatic creation is on. A replica creates nothing: it serves
        the group with default settings until its master replicates the group. The flush thread
        saves it; if a crash loses the group, the next request for it creates it again."""
        found = self._groups.get(name)
        if found is None and (self._config.auto_create_groups or names.is_system_group(name)):
            found = SubscriptionGroupConfig(group_name=checked(name))
            if not self._is_replica():
                self.put(found, wait=False)
        return found

    def obtain_all(self, wanted: list[str]) -> list[SubscriptionGroupConfig]:
        """Return the groups with these names; missing ones are created if automatic creation is on.
        Saved like those of `obtain`: members recreate them with their next heartbeat."""
        if self._config.auto_create_groups and not self._is_replica():
            fresh = [name for name in wanted if name not in self._groups]
            self.put(*(SubscriptionGroupConfig(group_name=name) for name in fresh), wait=False)
        return [self._groups[name] for name in wanted if name in self._groups]

    def put(self, *groups: SubscriptionGroupConfig, wait: bool = True) -> None:
        """Create or update groups, all or none. Without `wait` the flush thread saves
        them."""
        wanted = {checked(group.group_name): group for group in groups}
        fresh = len(wanted.keys() - self._groups.keys())
        if fresh and len(self._groups) + fresh > self._config.groups_max:
            raise RequestRejected(
                ResponseCode.SYSTEM_BUSY,
                f"there are {len(self._groups)} groups already; groups_max allows "
                f"{self._config.groups_max}: delete some, or raise it",
            )
        if any(self._groups.get(name) != group for name, group in wanted.items()):
            before, self._groups = self._groups, self._groups | wanted
            try:
                self._save(wait=wait)
            except StoreError:
                self._groups = before
                raise

    def follow(self, master: SubscriptionGroupTable) -> None:
        """Adopt the master's table on a slave."""
        if master.data_version == self.version:
            return
        self._groups = dict(master.subscription_group_table)
        self._forbidden = dict(master.forbidden_table)
        self.version = master.data_version
        self._table.save(self.table())

    def remove(self, name: str) -> bool:
        was_there = self._groups.pop(name, None) is not None
        if self._forbidden.pop(name, None) is not None or was_there:
            self._save()
        for notify in self.deleted:
            notify(name)
        return was_there

    @property
    def forbidden(self) -> Mapping[str, Mapping[str, int]]:
        """Topics that a group may not read."""
        return self._forbidden

    def forbid(self, rows: Mapping[str, dict[str, int]], removed: Iterable[str]) -> None:
        """Adopt forbidden topics from another broker; `removed` are groups without any."""
        wanted = {name: row for name, row in self._forbidden.items() if name not in set(removed)}
        wanted |= rows
        if wanted != self._forbidden:
            self._forbidden = wanted
            self._save()

    def may_read(self, group: str, topic: str) -> bool:
        return not self._forbidden.get(group, {}).get(topic, 0) & _FORBIDDEN_READ

    def allow_read(self, group: str, topic: str, *, allowed: bool) -> None:
        """Allow a group to read a topic, or forbid it."""
        if self.may_read(group, topic) == allowed:
            return
        row = dict(self._forbidden.get(group, {}))
        if len(row) >= self._config.topics_max and topic not in row:
            raise RequestRejected(
                ResponseCode.SYSTEM_BUSY,
                f"group {group} is forbidden to read {len(row)} topics already, as many as "
                "topics_max allows; allow some of them first",
            )
        row[topic] = row.get(topic, 0) ^ _FORBIDDEN_READ
        row = {name: bits for name, bits in row.items() if bits}
        self._forbidden[group] = row
        if not row:
            del self._forbidden[group]
        self._save()

    def _save(self, *, wait: bool = True) -> None:
        self.version = DataVersion(
            counter=self.version.counter + 1,
            state_version=self.version.state_version,
            timestamp=self._clock.now_ms(),
        )
        save = self._table.save if wait else self._table.save_later
        save(self.table())


def check_commit(name: str) -> None:
    """Raises RequestRejected for a group whose offsets no client may set: half messages below the
    progress of transactions count as decided, so an offset from a client would lose them."""
    if name.startswith(names.SYSTEM_GROUP_PREFIX):
        raise RequestRejected(
            ResponseCode.NO_PERMISSION,
            f"the offsets of group {name[:128]} are progress of the broker itself; "
            "use a group of your own",
        )


def checked(name: str) -> str:
    """The name, if a group may have it. Raises RequestRejected."""
    try:
        return names.checked_group(name)
    except UsageError as error:
        raise RequestRejected(ResponseCode.INVALID_PARAMETER, str(error)) from error


TAG: Final = "TAG"
SQL92: Final = "SQL92"
CACHED_MAX: Final = 1_000
CACHED_CHARS_MAX: Final = 4 * 1024 * 1024
"""Of all texts together; a compiled filter takes a few times as much memory."""
TEXT_CHARS_MAX: Final = 32 * 1024
"""Room for a thousand tags. A thousand pulls of one connection may wait, each with its text."""
READERS_MAX: Final = 200_000
"""Pairs of group and queue that are recorded, about 200 bytes each. When the limit is reached, new
ones are recorded only after those with closed connections are dropped."""


@dataclass(slots=True)
class Client:
    client_id: str
    peer: Peer
    language: Language
    version: int
    heartbeat_ms: int
    """Time of its last heartbeat, monotonic."""


@dataclass(slots=True)
class ConsumerGroup:
    """The connected members of a group."""

    clients: dict[Peer, Client] = field(default_factory=dict[Peer, Client])
    subscriptions: dict[str, SubscriptionData] = field(default_factory=dict[str, SubscriptionData])
    """By topic: the newest subscription that any member sent."""
    described: ConsumerData | None = None
    subscribed_by: dict[Peer, frozenset[tuple[str, str, str]]] = field(
        default_factory=dict[Peer, frozenset[tuple[str, str, str]]]
    )
    """Topic, kind and expression of each member; they must be the same for all."""

    @property
    def is_consistent(self) -> bool:
        return len(set(self.subscribed_by.values())) <= 1


class Sessions:
    """Owner: the broker loop."""

    def __init__(self) -> None:
        self.producers: dict[str, dict[Peer, Client]] = {}
        self.consumers: dict[str, ConsumerGroup] = {}
        self.abandoned: set[str] = set()
        """Consumer groups whose last member has left."""

    def record_producer(self, group: str, client: Client) -> None:
        """Record a heartbeat of a producer."""
        _record(self.producers.setdefault(group, {}), client)

    def record_consumer(self, data: ConsumerData, client: Client) -> bool:
        """Record a heartbeat of a consumer and its subscriptions; returns whether the other members
        must be notified."""
        group = self.consumers.setdefault(data.group_name, ConsumerGroup())
        self.abandoned.discard(data.group_name)
        is_new = _record(group.clients, client)
        group.described = data
        group.subscribed_by[client.peer] = frozenset(
            (s.topic, s.expression_type, s.sub_string) for s in data.subscription_data_set
        )
        return self._subscribe(group, data) or is_new

    def _subscribe(self, group: ConsumerGroup, data: ConsumerData) -> bool:
        changed = False
        wanted = {s.topic: s for s in data.subscription_data_set}
        for topic, subscription in wanted.items():
            known = group.subscriptions.get(topic)
            if known is None or subscription.sub_version > known.sub_version:
                changed |= known is None
                group.subscriptions[topic] = subscription
        for topic in [topic for topic in group.subscriptions if topic not in wanted]:
            del group.subscriptions[topic]
            changed = True
        return changed

    def remove_producer(self, group: str, peer: Peer) -> None:
        clients = self.producers.get(group)
        if clients is not None:
            clients.pop(peer, None)
            if not clients:
                del self.producers[group]

    def remove_consumer(self, group: str, peer: Peer) -> bool:
        """Remove a member; returns whether it was one, and the others must be notified."""
        found = self.consumers.get(group)
        if found is None or found.clients.pop(peer, None) is None:
            return False
        found.subscribed_by.pop(peer, None)
        if not found.clients:
            del self.consumers[group]
            self.abandoned.add(group)
        return True

    def remove(self, peer: Peer) -> list[str]:
        """Remove a closed connection; returns the consumer groups that lost a member."""
        for group in [g for g, clients in self.producers.items() if peer in clients]:
            self.remove_producer(group, peer)
        groups = [g for g, found in self.consumers.items() if peer in found.clients]
        for group in groups:
            self.remove_consumer(group, peer)
        return groups

    def expired(self, before_ms: int) -> list[Peer]:
        """Clients whose last heartbeat is older than this."""
        return [c.peer for c in self._all() if c.heartbeat_ms < before_ms]

    def _all(self) -> Iterator[Client]:
        for clients in self.producers.values():
            yield from clients.values()
        for group in self.consumers.values():
            yield from group.clients.values()


def _record(clients: dict[Peer, Client], client: Client) -> bool:
    """Record a heartbeat; returns whether the client is new on this connection."""
    known = clients.get(client.peer)
    if known is not None and known.client_id == client.client_id:
        known.heartbeat_ms = client.heartbeat_ms
        return False
    # A client that reconnects sends heartbeats on its new connection before the old one is closed.
    for old in [peer for peer, other in clients.items() if other.client_id == client.client_id]:
        del clients[old]
    clients[client.peer] = replace(client)  # each group has its own time of the last heartbeat
    return True


class Filter(NamedTuple):
    """At most one of the two is set; if neither is, everything matches."""

    codes: frozenset[int] | None = None
    expression: Expression | None = None


EVERYTHING: Final = Filter()


class Filters:
    """A cache of filters by their text. Pulls repeat the same few subscriptions."""

    def __init__(self, *, sql_enabled: bool) -> None:
        self._sql_enabled = sql_enabled
        self._chars = 0
        self._cache: OrderedDict[tuple[str, str], Filter] = OrderedDict()

    def adopt(self, config: BrokerConfig) -> None:
        """Apply settings that changed while the broker runs."""
        if self._sql_enabled != config.sql_filters:
            self._sql_enabled = config.sql_filters
            self._cache.clear()  # it may hold filters that are no longer served
            self._chars = 0

    def get(self, kind: str | None, text: str | None) -> Filter:
        """Return the filter for a subscription. Raises RequestRejected if the text is invalid."""
        key = (kind or TAG, text or "")
        found = self._cache.get(key)
        if found is None:
            found = self._cache[key] = self._make(*key)
            self._chars += len(key[1])
            while len(self._cache) > CACHED_MAX or self._chars > CACHED_CHARS_MAX:
                (_, old), _ = self._cache.popitem(last=False)
                self._chars -= len(old)
        return found

    def _make(self, kind: str, text: str) -> Filter:
        if len(text) > TEXT_CHARS_MAX:
            raise RequestRejected(
                ResponseCode.SUBSCRIPTION_PARSE_FAILED,
                f"a subscription has at most {TEXT_CHARS_MAX} characters, got {len(text)}",
            )
        try:
            if kind == TAG:
                tags = parse_tags(text)
                return EVERYTHING if tags.is_all else Filter(codes=tags.codes)
            if kind == SQL92 and self._sql_enabled:
                return Filter(expression=compile_sql(text))
        except FilterError as error:
            raise RequestRejected(ResponseCode.SUBSCRIPTION_PARSE_FAILED, str(error)) from error
        raise RequestRejected(
            ResponseCode.SYSTEM_ERROR, f"the broker does not support subscriptions by {kind[:32]}"
        )


class Pulled(NamedTuple):
    """The last pull of one queue for one group."""

    peer: Peer
    at_s: float
    """In monotonic time."""


class Readers:
    """Owner: the broker loop. Time is an argument."""

    def __init__(self) -> None:
        self._pulled: dict[str, dict[QueueKey, Pulled]] = {}
        self._count_at_most = 0

    def pulled(self, group: str, queue: QueueKey, peer: Peer, now_s: float) -> None:
        queues = self._pulled.get(group)
        if queues is None or queue not in queues:
            if not self._has_room():
                return
            queues = self._pulled.setdefault(group, {})
            self._count_at_most += 1
        queues[queue] = Pulled(peer, now_s)

    def of(self, group: str) -> dict[QueueKey, Pulled]:
        """The last pulls by queue, without those whose connection is closed."""
        held = self._pulled.get(group, {})
        return {queue: pulled for queue, pulled in held.items() if pulled.peer.is_open}

    def last(self, group: str, queue: QueueKey) -> Pulled | None:
        """The last pull, even if its connection is closed."""
        return self._pulled.get(group, {}).get(queue)

    def group_deleted(self, group: str) -> None:
        self._count_at_most -= len(self._pulled.pop(group, {}))

    def _has_room(self) -> bool:
        if self._count_at_most >= READERS_MAX:
            living = {group: self.of(group) for group in self._pulled}
            self._pulled = {group: queues for group, queues in living.items() if queues}
            self._count_at_most = sum(map(len, self._pulled.values()))
        return self._count_at_most < READERS_MAX
