"""The broker put together: every part gets what it uses, and nothing holds everything.

`assemble` is called once, when the store is open and the port is known.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from tianzhou.base.clock import Clock
from tianzhou.broker.alarms import AlarmLog, Alarms, Since
from tianzhou.broker.config import BrokerConfig
from tianzhou.broker.fetch.pull import Pull
from tianzhou.broker.groups.consumer_offsets import ConsumerOffsets
from tianzhou.broker.groups.groups import Groups
from tianzhou.broker.groups.heartbeats import Clients
from tianzhou.broker.groups.lags import Lags
from tianzhou.broker.groups.locks import Locks
from tianzhou.broker.groups.offsets import Offsets
from tianzhou.broker.groups.readers import Readers
from tianzhou.broker.groups.sessions import Sessions
from tianzhou.broker.groups.subscriptions import Filters
from tianzhou.broker.ingest.admission import Admission
from tianzhou.broker.ingest.replies import Replies
from tianzhou.broker.ingest.retry import SendBack
from tianzhou.broker.ingest.send import Send
from tianzhou.broker.observe.administration import Administration, StatsTicks
from tianzhou.broker.observe.group_rows import GroupRows
from tianzhou.broker.observe.metric_sources import MetricSources
from tianzhou.broker.observe.port_alarms import PortAlarms
from tianzhou.broker.observe.store_alarms import StoreAlarms
from tianzhou.broker.observe.views import AdminLooks, Told, Waiting
from tianzhou.broker.observe.waiting import AdminWaiting
from tianzhou.broker.observe.watchdog import Seen, Watchdog
from tianzhou.broker.rejections import REFUSED
from tianzhou.broker.replica.admin import AdminReplication
from tianzhou.broker.replica.admin_raft import AdminRaft
from tianzhou.broker.replica.expiry_floor import ExpiryFloor
from tianzhou.broker.replica.gate import RoleGate
from tianzhou.broker.role import RoleState
from tianzhou.broker.router import Requests
from tianzhou.broker.runtime_config import RuntimeConfig
from tianzhou.broker.scheduled.delay import Delays
from tianzhou.broker.scheduled.recall import Recall
from tianzhou.broker.scheduled.timer import Timers
from tianzhou.broker.services import Watch
from tianzhou.broker.stats import Stats
from tianzhou.broker.topics.permission import Permission
from tianzhou.broker.topics.removal import TopicRemoval
from tianzhou.broker.topics.topics import Topics
from tianzhou.broker.transactions.checks import TransactionChecks
from tianzhou.broker.transactions.decisions import Transactions
from tianzhou.broker.transactions.end_transaction import EndTransaction
from tianzhou.broker.transactions.half_queue import HalfQueue
from tianzhou.broker.transactions.parked import ParkedTransactions
from tianzhou.broker.writing.log_writer import Writer
from tianzhou.net.router import RequestRouter
from tianzhou.net.rpc import Handler
from tianzhou.replication.durability import Durability
from tianzhou.store.store import MessageStore


class MasterServices(NamedTuple):
    """What the master does without being asked, in the order in which they begin."""

    delays: Delays
    timers: Timers
    checks: TransactionChecks


@dataclass(slots=True)
class Parts:
    """What the server drives. Handlers never see this."""

    requests: Requests
    clients: Clients
    pull: Pull
    writer: Writer
    topics: Topics
    offsets: ConsumerOffsets
    permission: Permission
    services: MasterServices
    watches: tuple[Watch, ...]
    """What every broker does at each tick, whatever its role."""
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
    """Requests that have a handler besides sends and pulls, refused ones included."""
    runtime_config: RuntimeConfig
    floor: ExpiryFloor


@dataclass(slots=True)
class _Core:
    """What every broker has before anybody administrates it: tables, and the ways of messages."""

    topics: Topics
    groups: Groups
    offsets: ConsumerOffsets
    sessions: Sessions
    locks: Locks
    permission: Permission
    filters: Filters
    writer: Writer
    admission: Admission
    send: Send
    pull: Pull
    stats: Stats
    readers: Readers
    alarms: Alarms
    removal: TopicRemoval


def _core(
    config: BrokerConfig,
    store: MessageStore,
    clock: Clock,
    writer: Writer,
    *,
    role_state: RoleState,
) -> _Core:
    tables, levels = store.tables, store.config.delay_levels_ms

    def is_replica() -> bool:
        return not role_state.is_master

    topics = Topics(tables.topics, config, clock, len(levels), is_replica=is_replica)
    groups = Groups(tables.groups, config, clock, is_replica=is_replica)
    offsets = ConsumerOffsets(tables.consumer_offsets, clock)
    sessions, locks = Sessions(), Locks(config.lock_lease_ms)
    permission = Permission(config.name, config.permission, role_state)
    filters = Filters(sql_enabled=config.sql_filters)
    admission = Admission(
        config, topics, groups, permission, clock,
        body_bytes_max=store.config.message_bytes_max, delay_levels=len(levels),
    )  # fmt: skip
    send = Send(config, topics, admission, writer)
    permission.changed += [send.forget_targets, topics.touch]
    role_state.changed.append(send.forget_targets)
    stats, readers = Stats(clock.now_ms()), Readers()
    groups.deleted += [readers.group_deleted, sessions.abandoned.discard]
    pull = Pull(
        config, store, topics, groups, offsets, sessions, permission, filters, stats,
        readers, writer.catch_up, clock.monotonic_s,
    )  # fmt: skip
    writer.arrived += [stats.arrived, pull.arrived]
    writer.took, send.refused = stats.put_took, stats.refused
    alarms = Alarms()
    alarms.add(StoreAlarms(config.name, store, permission, Since(clock)).current)
    alarms.add(PortAlarms(config.name, Since(clock)).current)
    removal = TopicRemoval(store, offsets, stats, writer.settle)
    topics.being_deleted = removal.pending
    writer.written.append(removal.release)
    return _Core(
        topics, groups, offsets, sessions, locks, permission, filters, writer, admission, send,
        pull, stats, readers, alarms, removal,
    )  # fmt: skip


def role_name(role_state: RoleState, durability: Durability) -> str:
    """As RocketMQ's tools know it."""
    if not role_state.is_master:
        return "SLAVE"
    return "ASYNC_MASTER" if durability.replicas is None else "SYNC_MASTER"


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
    """Services do not run yet: whoever is the master begins them."""
    writer = Writer(store, store_host, monotonic_s, durability)
    core = _core(config, store, clock, writer, role_state=role_state)
    topics, groups, offsets, sessions = core.topics, core.groups, core.offsets, core.sessions
    permission, admission, pull, stats = core.permission, core.admission, core.pull, core.stats
    clients = Clients(config, topics, groups, sessions, core.locks, core.filters, clock)
    delays = Delays(store, writer, clock, save_every_ms=config.delay_save_ms)
    timers = Timers(store, writer, clock, save_every_ms=config.delay_save_ms)
    raft = AdminRaft(monotonic_s)
    replication = AdminReplication(config.name, store, role_state, durability)
    administration = Administration(
        config=config, store=store, clock=clock, topics=topics, groups=groups, offsets=offsets,
        sessions=sessions, permission=permission, clients=clients, pull=pull, writer=writer,
        delays=delays, timers=timers, stats=stats, removal=core.removal,
        group=lambda: replication.group,
        role=lambda: role_name(role_state, durability),
    )  # fmt: skip
    admission.timers_are_full = timers.is_full
    halves, transactions, checks = _transactions(config, store, clock, core)
    watchdog = _watchdog(config, store, clock, core, clients)
    runtime_config = administration.runtime_config
    _let_change(runtime_config, store, core, checks.adopt, watchdog.adopt)
    floor = ExpiryFloor(store, role_state, offsets, delays=delays, timers=timers, halves=halves)
    waiting = Waiting(
        halves=halves.pending.__len__, held_pulls=pull.holds.__len__, timers=timers.__len__
    )
    told = Told(
        facts=administration.runtime.table, config=runtime_config.table,
        raft=raft.told, replication=replication.look, alarms=core.alarms.current,
    )  # fmt: skip
    handlers = _served(
        administration,
        clients,
        Offsets(store, topics, groups, offsets),
        SendBack(store, topics, groups, permission, admission, writer, stats),
        EndTransaction(transactions, writer),
        Recall(config, store, permission, timers, writer, clock),
        AdminWaiting(config, store, writer, timers, halves, checks),
        _looks(config, store, clock, core, watchdog, waiting, told),
        Replies(config, admission, sessions, writer, clock),
        raft,
        replication,
    )
    gate = _gate(role_state, administration, core.removal)
    router = RequestRouter(handlers, gate, refused=stats.refused)
    metric_sources = _metric_sources(
        config, store, clock, core, watchdog=watchdog, raft=raft, replication=replication
    )
    metric_sources.counts |= {
        "pending_timers": timers.__len__,
        "pending_transactions": halves.pending.__len__,
        "parked_transactions": checks.parked.__len__,
        "requests_failed": lambda: router.failed_count,
    }
    return Parts(
        Requests(core.send, pull, router, writer.catch_up), clients, pull, writer, topics, offsets,
        permission, MasterServices(delays, timers, checks), (StatsTicks(stats, clock), watchdog),
        stats, core.readers, watchdog, metric_sources, raft, replication, groups, core.alarms,
        AlarmLog(core.alarms), gate, core.removal, frozenset(handlers), runtime_config, floor,
    )  # fmt: skip


def _gate(role_state: RoleState, administration: Administration, removal: TopicRemoval) -> RoleGate:
    gate = RoleGate(role_state, rejected=REFUSED.keys(), proof=administration.proof)
    gate.hold_deletion = removal.holds
    return gate


def _transactions(
    config: BrokerConfig, store: MessageStore, clock: Clock, core: _Core
) -> tuple[HalfQueue, Transactions, TransactionChecks]:
    halves = HalfQueue(store, core.offsets)
    core.admission.halves_are_full = halves.is_full
    transactions = Transactions(store, core.writer, core.admission, halves, clock)
    parked = ParkedTransactions(store, core.writer, clock)
    core.alarms.add(parked.alarms)
    checks = TransactionChecks(
        config, store, core.writer, core.sessions, core.offsets, halves, transactions, parked, clock
    )
    return halves, transactions, checks


def _let_change(
    runtime_config: RuntimeConfig,
    store: MessageStore,
    core: _Core,
    *more: Callable[[BrokerConfig], None],
) -> None:
    """Notify every owner of a live setting when it changes."""
    admission = core.admission
    runtime_config.adopt += [admission.adopt, core.pull.adopt, core.filters.adopt, *more]
    runtime_config.adopt_store += [store.adopt, admission.adopt_store]


def _watchdog(
    config: BrokerConfig, store: MessageStore, clock: Clock, core: _Core, clients: Clients
) -> Watchdog:
    seen = Seen(
        store, core.topics, core.offsets, core.sessions, core.readers, core.pull.holds, core.locks,
        config.name,
    )  # fmt: skip
    return Watchdog(seen, clock, config.stuck_after_ms, clients.tell_group)


def _looks(
    config: BrokerConfig,
    store: MessageStore,
    clock: Clock,
    core: _Core,
    watchdog: Watchdog,
    waiting: Waiting,
    told: Told,
) -> AdminLooks:
    topics, offsets, sessions, stats = core.topics, core.offsets, core.sessions, core.stats
    rows = GroupRows(
        store, topics, core.groups, offsets, sessions, core.readers, stats, clock,
        lambda group: core.locks.is_locked(group, int(clock.monotonic_s() * 1000)),
        Lags(store, topics, offsets, sessions), watchdog.events,
    )  # fmt: skip
    return AdminLooks(
        config, store, topics, sessions, core.permission, stats, rows, waiting, told, clock
    )


class _Serves(Protocol):
    def handlers(self) -> dict[int, Handler]: ...


def _served(*parts: _Serves) -> dict[int, Handler]:
    handlers: dict[int, Handler] = {}
    for part in parts:
        added = part.handlers()
        assert not handlers.keys() & added.keys(), "a code is served twice, or refused and served"
        handlers |= added
    return handlers


def _metric_sources(
    config: BrokerConfig,
    store: MessageStore,
    clock: Clock,
    core: _Core,
    *,
    watchdog: Watchdog,
    raft: AdminRaft,
    replication: AdminReplication,
) -> MetricSources:
    lags = Lags(store, core.topics, core.offsets, core.sessions)
    return MetricSources(
        config=config, store=store, clock=clock, stats=core.stats, writer=core.writer, lags=lags,
        topics=core.topics, groups=core.groups, sessions=core.sessions, watchdog=watchdog,
        replication=replication.look,
        raft=raft.told,
        alarms=core.alarms.current,
        counts={
            "held_pulls": core.pull.holds.__len__,
            "waiting_sends": core.writer.acks.__len__,
        },
    )  # fmt: skip
