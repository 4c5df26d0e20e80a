"""The route table: the live brokers, and the queues of each topic.

It is soft state. Brokers register every 30 seconds with every NameServer, so that one that lost its
table recovers it, and a broker that is silent too long is removed. Time is an argument (monotonic
seconds); connections are compared by identity.

The rules are those of Java 5 (RouteInfoManager), with two differences. The state of a process is
kept by broker name, not by address, so the old entry of a broker that restarted under another name
does not live as long as the new one. And a broker cannot take the name and id of another live one,
unless it was promoted: two brokers with the same name, each with its own messages, would alternate
in the routes, and clients would lose the topics of the other.
"""

import enum
from collections.abc import Iterator
from typing import Final

from msgspec import UNSET
from msgspec.structs import replace

from tianzhou.nameserver.brokers import BrokerGroup, Lost, Member, Registration
from tianzhou.nameserver.epochs import Epochs
from tianzhou.nameserver.topics import TableFull, TopicTable
from tianzhou.wire.names import MASTER_ID, PERM_WRITE, SYSTEM_PREFIX
from tianzhou.wire.routes import BrokerData, ClusterTable, QueueData, TopicRouteData
from tianzhou.wire.tables import DataVersion

MEMBERS_MAX: Final = 10_000
"""Brokers alive at a time; the largest clusters known have some hundred."""

# Brokers of one group discover each other through this topic, so they need the real ids.
_SYNC_PREFIX: Final = SYSTEM_PREFIX + "SYNC_BROKER_MEMBER_"


class Verdict(enum.Enum):
    """The outcome of a registration."""

    FIRST = "the broker is new here"
    AGAIN = "the broker was known"
    OUTDATED = "another process holds this id and knows more"
    NOT_ALONE = "a broker that is not known can't register a single topic"
    TAKEN = "another live broker has this name and id"


class RouteTable:
    """Owner: the event loop of the name server.

    Invariant: no group is empty; rows of topics are of groups; _of_link is members by connection
    """

    def __init__(self, topics: TopicTable | None = None, *, members_max: int = MEMBERS_MAX) -> None:
        self.topics = topics if topics is not None else TopicTable()
        self.epochs = Epochs()
        self._groups: dict[str, BrokerGroup] = {}
        self._of_link: dict[object, set[tuple[str, int]]] = {}
        self._members_max = members_max
        self.changes = 0
        """Incremented when a process joins or leaves."""

    # Requests of brokers

    def register(
        self, wanted: Registration, *, connection: object, now_s: float, drops_omitted: bool = False
    ) -> Verdict:
        """Apply a registration. TAKEN, NOT_ALONE and TableFull mean that nothing has changed."""
        group = self._groups.get(wanted.broker_name)
        old = group.members.get(wanted.broker_id) if group else None
        if old is None and len(wanted.topics) == 1:
            # A single topic is a change to a table that the NameServer must already know.
            return Verdict.NOT_ALONE
        # A replaced master must learn its successor, so epochs decide where both brokers have one.
        if _is_taken(old, wanted, connection, now_s) and self.epochs.admits(wanted):
            return Verdict.TAKEN
        self._check_room(wanted, is_new=old is None)
        if group is None:
            group = self._groups[wanted.broker_name] = BrokerGroup(
                wanted.broker_name, wanted.cluster
            )
        self._leave_other_id(group, wanted)
        if _knows_more(old, wanted) or not self.epochs.admits(wanted):
            self._after_leaving(group)
            return Verdict.OUTDATED
        self.epochs.take(wanted)
        self.changes += old is None or old.address != wanted.address
        group.cluster, group.zone = wanted.cluster, wanted.zone
        group.acting_master = bool(wanted.acting_master)
        self._join(group, wanted, connection=connection, now_s=now_s)
        self._take_topics(group, wanted, old, drops_omitted=drops_omitted)
        return Verdict.FIRST if old is None else Verdict.AGAIN

    def unregister(self, broker_name: str, address: str) -> bool:
        """Remove a broker by address, so that a replaced process cannot remove its successor."""
        group = self._groups.get(broker_name)
        broker_id = group.id_of(address) if group else None
        if group is None or broker_id is None:
            return False
        self._leave(group, broker_id)
        self._after_leaving(group)
        self.changes += 1
        return True

    def heard(self, broker_name: str, address: str, now_s: float) -> None:
        member = self._member(broker_name, address)
        if member is not None:
            member.heard_s = now_s

    def data_version_of(self, broker_name: str, address: str) -> DataVersion | None:
        member = self._member(broker_name, address)
        return member.data_version if member else None

    # Timeouts and lost connections

    def evict(self, now_s: float) -> list[Lost]:
        """Remove brokers that were silent for too long."""
        late = [
            (group, broker_id)
            for group in self._groups.values()
            for broker_id, member in group.members.items()
            if now_s - member.heard_s > member.timeout_s
        ]
        return [self._lose(group, broker_id) for group, broker_id in late]

    def closed(self, connection: object) -> list[Lost]:
        """Remove the brokers whose last request came through this connection."""
        keys = sorted(self._of_link.get(connection, ()))
        return [self._lose(self._groups[name], broker_id) for name, broker_id in keys]

    def has_link(self, connection: object) -> bool:
        """Whether a live broker registered through this connection."""
        return connection in self._of_link

    # Requests of clients. `dialled` is the local address of their connection.

    def route_of(
        self, topic: str, *, dialled: str | None = None, acting_master: bool = False
    ) -> TopicRouteData | None:
        rows = self.topics.rows_of(topic)
        if not rows:
            return None
        brokers = tuple(self._broker_data(self._groups[name], dialled) for name in rows)
        if acting_master and not topic.startswith(_SYNC_PREFIX):
            brokers = tuple(_with_acting_master(b, rows[b.broker_name]) for b in brokers)
        return TopicRouteData(broker_datas=brokers, queue_datas=tuple(rows.values()))

    def cluster_table(self, dialled: str | None = None) -> ClusterTable:
        clusters: dict[str, list[str]] = {}
        for group in self._groups.values():
            clusters.setdefault(group.cluster, []).append(group.name)
        return ClusterTable(
            broker_addr_table={
                group.name: self._broker_data(group, dialled) for group in self._groups.values()
            },
            cluster_addr_table=clusters,
        )

    def addresses_of(self, broker_name: str, dialled: str | None = None) -> dict[int, str]:
        """Return the addresses of a broker by id; empty for an unknown name."""
        group = self._groups.get(broker_name)
        return group.addresses_for(dialled) if group else {}

    def master_of(self, broker_name: str) -> Member | None:
        group = self._groups.get(broker_name)
        return group.members.get(MASTER_ID) if group else None

    def names_in(self, cluster: str) -> tuple[str, ...]:
        """Return the broker names of a cluster."""
        return tuple(group.name for group in self._groups.values() if group.cluster == cluster)

    def members(self) -> Iterator[tuple[BrokerGroup, int, Member]]:
        """Yield every live process: its group, its id and its registration."""
        for group in self._groups.values():
            for broker_id, member in group.members.items():
                yield group, broker_id, member

    @property
    def broker_count(self) -> int:
        """The number of broker names."""
        return len(self._groups)

    def has_broker(self, broker_name: str) -> bool:
        return broker_name in self._groups

    # Details

    def _member(self, broker_name: str, address: str) -> Member | None:
        group = self._groups.get(broker_name)
        broker_id = group.id_of(address) if group else None
        return group.members[broker_id] if group and broker_id is not None else None

    def _check_room(self, wanted: Registration, *, is_new: bool) -> None:
        count = sum(len(group.members) for group in self._groups.values())
        if is_new and count >= self._members_max:
            raise TableFull(f"{count} brokers are registered, which is the limit")
        self.topics.check_room(wanted.broker_name, [topic.topic_name for topic in wanted.topics])

    def _leave_other_id(self, group: BrokerGroup, wanted: Registration) -> None:
        """Remove the old id of a slave that became master."""
        broker_id = group.id_of(wanted.address)
        if broker_id is not None and broker_id != wanted.broker_id:
            self._leave(group, broker_id)

    def _join(
        self, group: BrokerGroup, wanted: Registration, *, connection: object, now_s: float
    ) -> None:
        if wanted.broker_id in group.members:
            self._leave(group, wanted.broker_id)
        group.members[wanted.broker_id] = Member(
            address=wanted.address,
            ha_address=wanted.ha_address,
            by_dial=wanted.by_dial,
            data_version=wanted.data_version,
            timeout_s=wanted.timeout_s,
            heard_s=now_s,
            connection=connection,
            greets=wanted.greets,
        )
        self._of_link.setdefault(connection, set()).add((group.name, wanted.broker_id))

    def _leave(self, group: BrokerGroup, broker_id: int) -> Member:
        member = group.members.pop(broker_id)
        keys = self._of_link[member.connection]
        keys.discard((group.name, broker_id))
        if not keys:
            del self._of_link[member.connection]
        return member

    def _after_leaving(self, group: BrokerGroup) -> None:
        if not group.members:
            del self._groups[group.name]
            self.topics.drop_broker(group.name)
        elif group.acting_master and MASTER_ID not in group.members:
            # A slave that acts for the master can be read but not written.
            self.topics.wipe_write(group.name)

    def _lose(self, group: BrokerGroup, broker_id: int) -> Lost:
        rows = self.topics.rows_of_broker(group.name)
        member = self._leave(group, broker_id)
        self._after_leaving(group)
        self.changes += 1
        return Lost(group.name, broker_id, group.cluster, member, rows)

    def _take_topics(
        self, group: BrokerGroup, wanted: Registration, old: Member | None, *, drops_omitted: bool
    ) -> None:
        is_master = wanted.broker_id == MASTER_ID
        # Java 4 does not report whether a slave acts for its master; its slaves do not describe
        # topics.
        acts = wanted.acting_master is not None and wanted.broker_id == min(group.members)
        if not is_master and not acts:
            return
        if drops_omitted:
            self.topics.keep_only(group.name, {topic.topic_name for topic in wanted.topics})
        changed = old is None or old.address != wanted.address
        changed = changed or old is None or old.data_version != wanted.data_version
        # Known topics stay unchanged: an administrator may have removed the write permission.
        fresh = (
            topic
            for topic in wanted.topics
            if changed or not self.topics.has(topic.topic_name, group.name)
        )
        writable = is_master or not group.acting_master
        self.topics.take_over(group.name, fresh, writable=writable)

    def _broker_data(self, group: BrokerGroup, dialled: str | None) -> BrokerData:
        return BrokerData(
            broker_addrs=group.addresses_for(dialled),
            broker_name=group.name,
            cluster=group.cluster,
            enable_acting_master=group.acting_master,
            zone_name=group.zone if group.zone is not None else UNSET,
        )


def _is_taken(old: Member | None, wanted: Registration, connection: object, now_s: float) -> bool:
    """Whether another live broker has the name and id. A member whose connection closed is no
    longer in the table."""
    if old is None or old.address == wanted.address or old.connection is connection:
        return False
    if now_s - old.heard_s > old.timeout_s:
        return False
    ours, theirs = wanted.data_version.state_version, old.data_version.state_version
    # In a group with promotions, epochs start at 1: the broker with the later epoch is the master,
    # and the earlier one must learn of it. A broker without an epoch is not in such a group.
    return ours == theirs or not ours or not theirs


def _knows_more(old: Member | None, wanted: Registration) -> bool:
    return (
        old is not None
        and old.address != wanted.address
        and old.data_version.state_version > wanted.data_version.state_version
    )


def _with_acting_master(broker: BrokerData, row: QueueData) -> BrokerData:
    """Return the slave with the lowest id under the id of the master, if it acts for the master."""
    addresses = broker.broker_addrs
    if MASTER_ID in addresses or not broker.enable_acting_master or row.perm & PERM_WRITE:
        return broker
    lowest = min(addresses)
    others = {broker_id: a for broker_id, a in addresses.items() if broker_id != lowest}
    return replace(broker, broker_addrs={MASTER_ID: addresses[lowest], **others})


def in_zone(route: TopicRouteData, zone: str) -> TopicRouteData:
    """Keep only brokers near the client, if there are any.

    Brokers without a master stay: their slaves are read wherever they are.
    """
    near = {
        broker.broker_name
        for broker in route.broker_datas
        if MASTER_ID not in broker.broker_addrs
        or (broker.zone_name is not UNSET and broker.zone_name.lower() == zone.lower())
    }
    if not near:
        return route
    return replace(
        route,
        broker_datas=tuple(b for b in route.broker_datas if b.broker_name in near),
        queue_datas=tuple(q for q in route.queue_datas if q.broker_name in near),
    )
