"""Builds a broker by concatenating its slices, once the store is open and the port is known."""

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
from tianzhou.broker.groups.sessions import Readers
from tianzhou.broker.ingest import build as ingest
from tianzhou.broker.metrics import Metric, counter
from tianzhou.broker.observe import build as observe
from tianzhou.broker.observe.watchdog import Watchdog
from tianzhou.broker.replica import build as replica
from tianzhou.broker.replica.admin import AdminReplication
from tianzhou.broker.replica.admin_raft import AdminRaft
from tianzhou.broker.replica.mode import Mode
from tianzhou.broker.role import Permission
from tianzhou.broker.router import FrameRouter
from tianzhou.broker.runtime_config import RuntimeConfig
from tianzhou.broker.scheduled import build as scheduled
from tianzhou.broker.scheduled.delay import Delays
from tianzhou.broker.scheduled.timer import Timers
from tianzhou.broker.slice import Foundation, Service, Slice, Watch, handlers_of
from tianzhou.broker.stats import Stats
from tianzhou.broker.topics import build as topics
from tianzhou.broker.topics.removal import TopicRemoval
from tianzhou.broker.topics.topics import Topics
from tianzhou.broker.transactions import build as transactions
from tianzhou.broker.transactions.checks import TransactionChecks
from tianzhou.broker.transactions.half_queue import HalfQueue
from tianzhou.broker.writing.log_writer import Writer
from tianzhou.net.router import RequestRouter, RunLater
from tianzhou.store.store import MessageStore


@dataclass(slots=True)
class Parts:
    """The components that the server runs and replication attaches to. Handlers never see it."""

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
    """Background work of the master, in the order in which it starts."""
    watches: tuple[Watch, ...]
    """Background work of every broker, whatever its role."""
    stats: Stats
    readers: Readers
    watchdog: Watchdog
    metrics: list[Metric]
    raft: AdminRaft
    replication: AdminReplication
    groups: Groups
    alarms: Alarms
    """Conditions an operator must see; every part that can raise alarms adds a source."""
    alarm_log: AlarmLog
    removal: TopicRemoval
    codes: frozenset[int]
    """Requests that have a handler besides sends and pulls, rejected ones included."""
    runtime_config: RuntimeConfig


def role_name(mode: Mode) -> str:
    """The role in the words of RocketMQ's tools."""
    if not mode.role_state.is_master:
        return "SLAVE"
    return "ASYNC_MASTER" if mode.durability.replicas is None else "SYNC_MASTER"


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
        """In the order in which their services start."""
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


def _build(base: Foundation, mode: Mode) -> _Slices:
    proof = ClusterProof(base.config.cluster_credentials)
    tables = groups.build_tables(base)
    topic = topics.build(base, tables)
    group = groups.build(base, tables, topic.topics)
    later = scheduled.build(base, topic.permission)
    halves = HalfQueue(base.store, tables.offsets)
    sending = ingest.build(
        base,
        topic,
        tables,
        timers_are_full=later.timers.is_full,
        halves_are_full=halves.is_full,
    )
    reading = fetch.build(base, topic, tables)
    transaction = transactions.build(base, tables, sending.admission, halves)
    replicas = replica.build(
        base,
        mode,
        removal=topic.removal,
        offsets=tables.offsets,
        scheduled=later,
        halves=halves,
        proof=proof,
    )
    views = observe.ReplicaViews(
        role=lambda: role_name(mode),
        group=lambda: mode.shared_settings,
        replication=replicas.replication.view,
        raft=mode.raft_view,
    )
    seen = observe.Observed(
        topics=topic,
        tables=tables,
        pull=reading.pull,
        scheduled=later,
        transactions=transaction,
        replica=views,
    )
    shown = observe.build(base, seen, proof=proof, rebalance=group.clients.notify_members)
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
    mode: Mode,
    *,
    store_host: bytes,
    run_later: RunLater | None = None,
) -> Parts:
    """Build every slice. Services do not run yet: the mode starts them in the master's role.
    `run_later` schedules a call in a later round of the loop; without it, the router runs all steps
    of a request at once."""
    stats = Stats(clock.now_ms())
    writer = Writer(
        store,
        store_host,
        clock.monotonic_s,
        mode.durability,
        append=mode.append,
        took=stats.put_took,
    )
    base = Foundation(
        config=config,
        store=store,
        clock=clock,
        writer=writer,
        role_state=mode.role_state,
        mode=mode,
        stats=stats,
        alarms=Alarms(),
    )
    writer.arrived.append(stats.arrived)
    return _parts(base, _build(base, mode), run_later)


def _parts(base: Foundation, built: _Slices, run_later: RunLater | None) -> Parts:
    """Concatenate the slices."""
    slices, shown = built.all(), built.shown
    shown.runtime_config.adopt.extend(adopt for part in slices for adopt in part.adopts)
    shown.runtime_config.adopt_store.extend((base.store.adopt, built.sending.admission.adopt_store))
    handlers = handlers_of(slices)
    router = RequestRouter(
        handlers, built.replicas.gate, refused=base.stats.refused, run_later=run_later
    )
    failed = counter(
        "requests_failed",
        "Requests that ended in an internal error of the broker",
        lambda: router.failed_count,
    )
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
        metrics=[*(metric for part in slices for metric in part.metrics), failed],
        raft=built.replicas.raft,
        replication=built.replicas.replication,
        groups=built.tables.groups,
        alarms=base.alarms,
        alarm_log=shown.alarm_log,
        removal=built.topic.removal,
        codes=frozenset(handlers),
        runtime_config=shown.runtime_config,
    )
