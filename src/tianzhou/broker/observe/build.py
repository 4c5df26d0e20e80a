"""Builds the slice of observation: everything that operators and monitoring see."""

from collections.abc import Callable
from dataclasses import dataclass

from tianzhou.base.clock import Clock
from tianzhou.broker.access.cluster_proof import ClusterProof
from tianzhou.broker.alarms import AlarmLog, Since
from tianzhou.broker.fetch.pull import Pull
from tianzhou.broker.groups.build import GroupTables
from tianzhou.broker.groups.lags import Lags
from tianzhou.broker.observe.admin import AdminBroker
from tianzhou.broker.observe.group_rows import GroupRows
from tianzhou.broker.observe.messages import AdminMessages
from tianzhou.broker.observe.metric_sources import MetricSources
from tianzhou.broker.observe.port_alarms import PortAlarms
from tianzhou.broker.observe.runtime_info import Runtime
from tianzhou.broker.observe.store_alarms import StoreAlarms
from tianzhou.broker.observe.views import Told, Views, Waiting
from tianzhou.broker.observe.waiting import AdminWaiting
from tianzhou.broker.observe.watchdog import Seen, Watchdog
from tianzhou.broker.rejections import Refusals
from tianzhou.broker.runtime_config import Group, RuntimeConfig
from tianzhou.broker.scheduled.build import ScheduledSlice
from tianzhou.broker.slice import Foundation, Slice
from tianzhou.broker.stats import Stats
from tianzhou.broker.topics.build import TopicSlice
from tianzhou.broker.transactions.build import TransactionSlice
from tianzhou.wire.raft_bodies import RaftView
from tianzhou.wire.replication_bodies import ReplicationView


@dataclass(slots=True)
class StatsTicks:
    """The service that advances the statistics' windows."""

    stats: Stats
    clock: Clock

    def tick(self) -> bool:
        self.stats.tick(self.clock.now_ms())
        return False

    def finish(self) -> None:
        """Statistics are not kept across restarts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaViews:
    """What is shown of the group that this broker belongs to."""

    role: Callable[[], str]
    """The role in RocketMQ's words."""
    group: Callable[[], Group | None]
    """Who manages master and slaves, if there are any."""
    replication: Callable[[], ReplicationView]
    raft: Callable[[], RaftView | None]
    """None: it is not a member of a Raft group."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """The slices that are shown."""

    topics: TopicSlice
    tables: GroupTables
    pull: Pull
    scheduled: ScheduledSlice
    transactions: TransactionSlice
    replica: ReplicaViews


@dataclass(frozen=True, slots=True, kw_only=True)
class ObserveSlice:
    runtime_config: RuntimeConfig
    watchdog: Watchdog
    metric_sources: MetricSources
    alarm_log: AlarmLog
    slice: Slice


def build(
    base: Foundation,
    seen: Observed,
    *,
    proof: ClusterProof,
    rebalance: Callable[[str], None],
) -> ObserveSlice:
    """`rebalance` makes the members of a group rebalance."""
    config, store, clock, stats = base.config, base.store, base.clock, base.stats
    replica = seen.replica
    _add_alarms(base, seen.topics)
    runtime_config = RuntimeConfig(config, store.config, store.root, replica.role, replica.group)
    runtime = Runtime(
        store=store,
        stats=stats,
        held_pulls=seen.pull.waiters.__len__,
        held_pulls_max=config.held_pulls_max,
        waiting_answers=base.writer.acks.__len__,
        delay_table=seen.scheduled.delays.table,
    )
    watchdog = _watchdog(base, seen, rebalance)
    timers, halves, checks = (
        seen.scheduled.timers,
        seen.transactions.halves,
        seen.transactions.checks,
    )
    serves = (
        AdminBroker(runtime_config, runtime, stats, store, clock, timers.progress, proof),
        AdminMessages(store, seen.topics.topics),
        AdminWaiting(config, store, base.writer, timers, halves, checks),
        _views(base, seen, watchdog, runtime_config, runtime),
        Refusals(),
    )
    return ObserveSlice(
        runtime_config=runtime_config,
        watchdog=watchdog,
        metric_sources=_metric_sources(base, seen, watchdog),
        alarm_log=AlarmLog(base.alarms),
        slice=Slice(
            serves=serves, watches=(StatsTicks(stats, clock), watchdog), adopts=(watchdog.adopt,)
        ),
    )


def _add_alarms(base: Foundation, topics: TopicSlice) -> None:
    name = base.config.name
    base.alarms.add(StoreAlarms(name, base.store, topics.permission, Since(base.clock)).current)
    base.alarms.add(PortAlarms(name, Since(base.clock)).current)


def _watchdog(base: Foundation, seen: Observed, rebalance: Callable[[str], None]) -> Watchdog:
    tables = seen.tables
    inputs = Seen(
        base.store,
        seen.topics.topics,
        tables.offsets,
        tables.sessions,
        tables.readers,
        seen.pull.waiters,
        tables.locks,
        base.config.name,
    )
    return Watchdog(inputs, base.clock, base.config.consumer_stuck_after_ms, rebalance)


def _views(
    base: Foundation,
    seen: Observed,
    watchdog: Watchdog,
    runtime_config: RuntimeConfig,
    runtime: Runtime,
) -> Views:
    config, store, clock, stats = base.config, base.store, base.clock, base.stats
    topics, tables, replica = seen.topics.topics, seen.tables, seen.replica
    rows = GroupRows(
        store,
        topics,
        tables.groups,
        tables.offsets,
        tables.sessions,
        tables.readers,
        stats,
        clock,
        lambda group: tables.locks.is_locked(group, int(clock.monotonic_s() * 1000)),
        Lags(store, topics, tables.offsets, tables.sessions),
        watchdog.events,
    )
    waiting = Waiting(
        halves=seen.transactions.halves.pending.__len__,
        held_pulls=seen.pull.waiters.__len__,
        timers=seen.scheduled.timers.__len__,
    )
    told = Told(
        facts=runtime.table,
        config=runtime_config.table,
        raft=replica.raft,
        replication=replica.replication,
        alarms=base.alarms.current,
    )
    permission = seen.topics.permission
    return Views(
        config, store, topics, tables.sessions, permission, stats, rows, waiting, told, clock
    )


def _metric_sources(base: Foundation, seen: Observed, watchdog: Watchdog) -> MetricSources:
    topics, tables = seen.topics.topics, seen.tables
    return MetricSources(
        config=base.config,
        store=base.store,
        clock=base.clock,
        stats=base.stats,
        writer=base.writer,
        lags=Lags(base.store, topics, tables.offsets, tables.sessions),
        topics=topics,
        groups=tables.groups,
        sessions=tables.sessions,
        watchdog=watchdog,
        replication=seen.replica.replication,
        raft=seen.replica.raft,
        alarms=base.alarms.current,
        counts={},
    )
