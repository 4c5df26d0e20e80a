"""Builds a broker by concatenating its slices, once the store is open and the port is known."""

from collections.abc import Callable
from dataclasses import dataclass

from tianzhou.base.clock import Clock
from tianzhou.broker.access.cluster_proof import ClusterProof
from tianzhou.broker.alarms import AlarmLog, Alarms
from tianzhou.broker.config import BrokerConfig
from tianzhou.broker.fetch import build as fetch
from tianzhou.broker.fetch.pull import Pull
from tianzhou.broker.groups import build as groups
from tianzhou.broker.groups.consumer_offsets import ConsumerOffsets
from tianzhou.broker.groups.groups import Groups
from tianzhou.broker.groups.heartbeats import Clients
from tianzhou.broker.groups.readers import Readers
from tianzhou.broker.ingest import build as ingest
from tianzhou.broker.observe import build as observe
from tianzhou.broker.observe.metric_sources import MetricSources
from tianzhou.broker.observe.watchdog import Watchdog
from tianzhou.broker.replica import build as replica
from tianzhou.broker.replica.admin import AdminReplication
from tianzhou.broker.replica.admin_raft import AdminRaft
from tianzhou.broker.replica.expiry_floor import ExpiryFloor
from tianzhou.broker.replica.gate import RoleGate
from tianzhou.broker.role import RoleState
from tianzhou.broker.router import FrameRouter
from tianzhou.broker.runtime_config import RuntimeConfig
from tianzhou.broker.scheduled import build as scheduled
from tianzhou.broker.scheduled.delay import Delays
from tianzhou.broker.scheduled.timer import Timers
from tianzhou.broker.slice import Foundation, Service, Slice, Watch, handlers_of
from tianzhou.broker.stats import Stats
from tianzhou.broker.topics import build as topics
from tianzhou.broker.topics.permission import Permission
from tianzhou.broker.topics.removal import TopicRemoval
from tianzhou.broker.topics.topics import Topics
from tianzhou.broker.transactions import build as transactions
from tianzhou.broker.transactions.checks import TransactionChecks
from tianzhou.broker.writing.log_writer import Writer
from tianzhou.net.router import RequestRouter
from tianzhou.replication.durability import Durability
from tianzhou.store.store import MessageStore


@dataclass(slots=True)
class Parts:
    """What the server drives, and replication attaches to. Handlers never see this."""

    requests: FrameRouter
    clients: Clients
    pull: Pull
    writer: Writer
    topics: Topics
    offsets: ConsumerOffsets
    permission: Permission
    delays: Delays
    timers: Timers
    checks: TransactionChecks
    services: tuple[Service, ...]
    """Background work of the master, in the order in which it begins."""
    watches: tuple[Watch, ...]
    """Background work of every broker, whatever its role."""
    stats: Stats
    readers: Readers
    watchdog: Watchdog
    metric_sources: MetricSources
    raft: AdminRaft
    replication: AdminReplication
    groups: Groups
    alarms: Alarms
    """Conditions an operator must see; every part that can raise alarms adds a source."""
    alarm_log: AlarmLog
    gate: RoleGate
    removal: TopicRemoval
    codes: frozenset[int]
    """Requests that have a handler besides sends and pulls, rejected ones included."""
    runtime_config: RuntimeConfig
    floor: ExpiryFloor


def role_name(role_state: RoleState, durability: Durability) -> str:
    """The role as RocketMQ's tools know it."""
    if not role_state.is_master:
        return "SLAVE"
    return "ASYNC_MASTER" if durability.replicas is None else "SYNC_MASTER"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Slices:
    """The slices of a broker, built."""

    tables: groups.GroupTables
    topic: topics.TopicSlice
    group: groups.GroupSlice
    sending: ingest.IngestSlice
    reading: fetch.FetchSlice
    later: scheduled.ScheduledSlice
    transaction: transactions.TransactionSlice
    replicas: replica.ReplicaSlice
    shown: observe.ObserveSlice

    def all(self) -> tuple[Slice, ...]:
        """In the order in which their services begin."""
        return (
            self.topic.slice,
            self.group.slice,
            self.sending.slice,
            self.reading.slice,
            self.later.slice,
            self.transaction.slice,
            self.replicas.slice,
            self.shown.slice,
        )


def _build(base: Foundation, durability: Durability) -> _Slices:
    proof = ClusterProof(base.config.cluster_credentials)
    tables = groups.build_tables(base)
    topic = topics.build(base, tables)
    group = groups.build(base, tables, topic.topics)
    sending = ingest.build(base, topic, tables)
    reading = fetch.build(base, topic, tables)
    later = scheduled.build(base, topic.permission)
    transaction = transactions.build(base, tables, sending.admission)
    sending.admission.timers_are_full = later.timers.is_full
    sending.admission.halves_are_full = transaction.halves.is_full
    replicas = replica.build(
        base,
        durability,
        removal=topic.removal,
        offsets=tables.offsets,
        scheduled=later,
        halves=transaction.halves,
        proof=proof,
    )
    views = observe.ReplicaViews(
        role=lambda: role_name(base.role_state, durability),
        group=lambda: replicas.replication.group,
        replication=replicas.replication.look,
        raft=replicas.raft.told,
    )
    seen = observe.Observed(
        topics=topic,
        tables=tables,
        pull=reading.pull,
        scheduled=later,
        transactions=transaction,
        replica=views,
    )
    shown = observe.build(base, seen, proof=proof, rebalance=group.clients.tell_group)
    return _Slices(
        tables=tables,
        topic=topic,
        group=group,
        sending=sending,
        reading=reading,
        later=later,
        transaction=transaction,
        replicas=replicas,
        shown=shown,
    )


def assemble(
    config: BrokerConfig,
    store: MessageStore,
    clock: Clock,
    *,
    store_host: bytes,
    monotonic_s: Callable[[], float],
    role_state: RoleState,
    durability: Durability,
) -> Parts:
    """Build every slice. Services do not run yet: a broker that becomes the master begins them."""
    writer = Writer(store, store_host, monotonic_s, durability)
    base = Foundation(
        config=config,
        store=store,
        clock=clock,
        writer=writer,
        role_state=role_state,
        stats=Stats(clock.now_ms()),
        alarms=Alarms(),
    )
    writer.arrived.append(base.stats.arrived)
    writer.took = base.stats.put_took
    return _parts(base, _build(base, durability))


def _parts(base: Foundation, built: _Slices) -> Parts:
    """Concatenate the slices."""
    slices, shown = built.all(), built.shown
    shown.runtime_config.adopt += [adopt for part in slices for adopt in part.adopts]
    shown.runtime_config.adopt_store += [base.store.adopt, built.sending.admission.adopt_store]
    handlers = handlers_of(slices)
    router = RequestRouter(handlers, built.replicas.gate, refused=base.stats.refused)
    for part in slices:
        shown.metric_sources.counts |= part.counts
    shown.metric_sources.counts["requests_failed"] = lambda: router.failed_count
    return Parts(
        requests=FrameRouter(built.sending.send, built.reading.pull, router, base.writer.catch_up),
        clients=built.group.clients,
        pull=built.reading.pull,
        writer=base.writer,
        topics=built.topic.topics,
        offsets=built.tables.offsets,
        permission=built.topic.permission,
        delays=built.later.delays,
        timers=built.later.timers,
        checks=built.transaction.checks,
        services=tuple(service for part in slices for service in part.services),
        watches=tuple(watch for part in slices for watch in part.watches),
        stats=base.stats,
        readers=built.tables.readers,
        watchdog=shown.watchdog,
        metric_sources=shown.metric_sources,
        raft=built.replicas.raft,
        replication=built.replicas.replication,
        groups=built.tables.groups,
        alarms=base.alarms,
        alarm_log=shown.alarm_log,
        gate=built.replicas.gate,
        removal=built.topic.removal,
        codes=frozenset(handlers),
        runtime_config=shown.runtime_config,
        floor=built.replicas.floor,
    )
