"""Builds the slice of observation: views, alarms, metrics and administration of the broker."""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

import tianzhou
from tianzhou.base.clock import Clock
from tianzhou.broker.access.cluster_proof import ClusterProof
from tianzhou.broker.alarms import AlarmLog, Since
from tianzhou.broker.fetch.pull import Pull
from tianzhou.broker.groups.build import GroupTables
from tianzhou.broker.groups.lags import Lags
from tianzhou.broker.metrics import Metric, Series, counters, gauges
from tianzhou.broker.observe.admin import AdminBroker, AdminCleaning, Runtime
from tianzhou.broker.observe.group_rows import GroupRows
from tianzhou.broker.observe.health import PortAlarms, StoreAlarms, part_metrics, store_metrics
from tianzhou.broker.observe.views import BrokerFacts, QueueDepths, Views
from tianzhou.broker.observe.watchdog import Kind, Watchdog, WatchdogInputs
from tianzhou.broker.rejections import Refusals
from tianzhou.broker.runtime_config import Group, RuntimeConfig
from tianzhou.broker.scheduled.build import ScheduledSlice
from tianzhou.broker.slice import Foundation, Slice
from tianzhou.broker.stats import Stats
from tianzhou.broker.topics.build import TopicSlice
from tianzhou.broker.transactions.build import TransactionSlice
from tianzhou.store.retention import Hold
from tianzhou.wire._generated_codes import ResponseCode
from tianzhou.wire.raft_bodies import RaftView
from tianzhou.wire.replication_bodies import ReplicationView

_RESPONSE_CODES: Final = {code.value: code.name.lower() for code in ResponseCode}


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
    """Views of the group of replicas that this broker belongs to."""

    role: Callable[[], str]
    """The role in RocketMQ's words."""
    group: Callable[[], Group | None]
    """The manager of master and slaves; None if there are none."""
    replication: Callable[[], ReplicationView]
    raft: Callable[[], RaftView | None]
    """None: it is not a member of a Raft group."""
    hold: Callable[[], Hold | None]
    """What another replica still needs of the log."""
    may_administer: Callable[[str], None]
    """Raises RequestRejected unless this broker is the master or leader."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """The slices that views and metrics read."""

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
    runtime_config = RuntimeConfig(
        config, store.config, store.root, role=replica.role, group=replica.group
    )
    writer = base.writer

    def waiting_ms() -> int:
        waiting = writer.stall(0.0)
        return 0 if waiting is None else round(waiting[0] * 1000)

    runtime = Runtime(
        store=store,
        stats=stats,
        held_pulls=seen.pull.waiters.__len__,
        held_pulls_max=config.held_pulls_max,
        waiting_answers=writer.acks.__len__,
        waiting_ms=waiting_ms,
        delay_table=seen.scheduled.delays.table,
    )
    watchdog = _watchdog(base, seen, rebalance)
    serves = (
        AdminBroker(
            runtime_config=runtime_config,
            runtime=runtime,
            stats=stats,
            store=store,
            clock=clock,
            timers=seen.scheduled.timers.progress,
            proof=proof,
        ),
        AdminCleaning(
            store=store,
            clock=clock,
            proof=proof,
            hold=replica.hold,
            may_administer=replica.may_administer,
            unused_topics=lambda: seen.topics.removal.unused(seen.topics.topics),
        ),
        _views(base, seen, watchdog=watchdog, runtime_config=runtime_config, runtime=runtime),
        Refusals(),
    )
    return ObserveSlice(
        runtime_config=runtime_config,
        watchdog=watchdog,
        alarm_log=AlarmLog(base.alarms),
        slice=Slice(
            serves=serves,
            watches=(StatsTicks(stats, clock), watchdog),
            metrics=_metrics(base, watchdog),
            adopts=(watchdog.adopt,),
        ),
    )


def _add_alarms(base: Foundation, topics: TopicSlice) -> None:
    name = base.config.name
    base.alarms.add(StoreAlarms(name, base.store, topics.permission, Since(base.clock)).current)
    base.alarms.add(PortAlarms(name, Since(base.clock)).current)


def _watchdog(base: Foundation, seen: Observed, rebalance: Callable[[str], None]) -> Watchdog:
    tables = seen.tables
    inputs = WatchdogInputs(
        store=base.store,
        topics=seen.topics.topics,
        offsets=tables.offsets,
        sessions=tables.sessions,
        readers=tables.readers,
        waiters=seen.pull.waiters,
        locks=tables.locks,
        broker_name=base.config.name,
    )
    return Watchdog(inputs, base.clock, base.config.consumer_stuck_after_ms, rebalance)


def _views(
    base: Foundation,
    seen: Observed,
    *,
    watchdog: Watchdog,
    runtime_config: RuntimeConfig,
    runtime: Runtime,
) -> Views:
    config, store, clock, stats = base.config, base.store, base.clock, base.stats
    topics, tables, replica = seen.topics.topics, seen.tables, seen.replica
    rows = GroupRows(
        store=store,
        topics=topics,
        groups=tables.groups,
        offsets=tables.offsets,
        sessions=tables.sessions,
        readers_seen=tables.readers,
        stats=stats,
        clock=clock,
        is_ordered=lambda group: tables.locks.is_locked(group, int(clock.monotonic_s() * 1000)),
        lags=Lags(store, topics, tables.offsets, tables.sessions),
        events=watchdog.events,
    )
    depths = QueueDepths(
        halves=seen.transactions.halves.pending.__len__,
        held_pulls=seen.pull.waiters.__len__,
        timers=seen.scheduled.timers.__len__,
    )
    facts = BrokerFacts(
        facts=runtime.table,
        config=runtime_config.table,
        raft=replica.raft,
        replication=replica.replication,
        alarms=base.alarms.current,
    )
    permission = seen.topics.permission
    return Views(
        config=config,
        store=store,
        topics=topics,
        sessions=tables.sessions,
        permission=permission,
        stats=stats,
        rows=rows,
        depths=depths,
        facts=facts,
        clock=clock,
    )


def _metrics(base: Foundation, watchdog: Watchdog) -> tuple[Metric, ...]:
    config, stats = base.config, base.stats
    about = (tianzhou.__version__, config.cluster, config.name)

    def rejections() -> Iterator[Series]:
        for code, count in sorted(stats.refusals.by_code.items()):
            yield (_RESPONSE_CODES.get(code, str(code)),), count

    def findings(counts: Callable[[], Counter[Kind]]) -> Callable[[], list[Series]]:
        return lambda: [((kind.value,), counts()[kind]) for kind in Kind]

    return (
        gauges(
            "broker_info",
            "Always 1; its labels say which broker this is",
            ("version", "cluster", "broker"),
            lambda: [(about, 1)],
        ),
        counters(
            "requests_refused",
            "Requests that got an error response, by its code",
            ("cause",),
            rejections,
        ),
        gauges(
            "watchdog_findings",
            "Queues and groups without progress now, by kind",
            ("kind",),
            findings(watchdog.counts),
        ),
        counters(
            "watchdog_found",
            "Findings of the watchdog since the start, by kind",
            ("kind",),
            findings(lambda: watchdog.found_counts),
        ),
        gauges(
            "alarms",
            "1 while an alarm of this kind holds",
            ("kind",),
            lambda: [((kind,), 1) for kind in sorted({a.kind for a in base.alarms.current()})],
        ),
        *store_metrics(base.store),
        *part_metrics(base.store),
    )
