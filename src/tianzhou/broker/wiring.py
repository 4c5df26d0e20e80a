"""Builds a broker by concatenating its slices, once the store is open and the port is known."""

from dataclasses import dataclass

from tianzhou.base.clock import Clock
from tianzhou.broker.access.cluster_proof import ClusterProof
from tianzhou.broker.access.gate import OpenAccess
from tianzhou.broker.alarms import Alarms
from tianzhou.broker.config import BrokerConfig
from tianzhou.broker.fetch import build as fetch
from tianzhou.broker.groups import build as groups
from tianzhou.broker.ingest import build as ingest
from tianzhou.broker.metrics import Metric
from tianzhou.broker.observe import build as observe
from tianzhou.broker.replica import build as replica
from tianzhou.broker.replica.mode import Host, Mode, NameServers
from tianzhou.broker.router import FrameRouter
from tianzhou.broker.scheduled import build as scheduled
from tianzhou.broker.slice import Foundation, Service, Slice, Watch, handlers_of
from tianzhou.broker.stats import Stats
from tianzhou.broker.topics import build as topics
from tianzhou.broker.transactions import build as transactions
from tianzhou.broker.transactions.half_queue import HalfQueue
from tianzhou.broker.writing.light_queues import LightQueues
from tianzhou.broker.writing.log_writer import Writer
from tianzhou.net.router import RequestRouter, RunLater
from tianzhou.store.store import MessageStore


def role_name(mode: Mode) -> str:
    """The role in the words of RocketMQ's tools."""
    if not mode.role_state.is_master:
        return "SLAVE"
    return "ASYNC_MASTER" if mode.durability.replicas is None else "SYNC_MASTER"


@dataclass(frozen=True, slots=True, kw_only=True)
class Slices:
    """The slices of a broker. Each has its own parts, and the contribution that is concatenated
    here with those of the others."""

    base: Foundation
    topics: topics.TopicSlice
    groups: groups.GroupSlice
    ingest: ingest.IngestSlice
    fetch: fetch.FetchSlice
    scheduled: scheduled.ScheduledSlice
    transactions: transactions.TransactionSlice
    replica: replica.ReplicaSlice
    observe: observe.ObserveSlice

    @property
    def contributions(self) -> tuple[Slice, ...]:
        """In the order in which their services start."""
        return (
            self.topics.slice,
            self.groups.slice,
            self.ingest.slice,
            self.fetch.slice,
            self.scheduled.slice,
            self.transactions.slice,
            self.replica.slice,
            self.observe.slice,
        )

    @property
    def services(self) -> tuple[Service, ...]:
        """Background work of the master, in the order in which it starts."""
        return tuple(service for part in self.contributions for service in part.services)

    @property
    def watches(self) -> tuple[Watch, ...]:
        """Background work of every broker, whatever its role."""
        return tuple(watch for part in self.contributions for watch in part.watches)

    @property
    def metrics(self) -> tuple[Metric, ...]:
        return tuple(metric for part in self.contributions for metric in part.metrics)


def build(
    config: BrokerConfig, store: MessageStore, clock: Clock, mode: Mode, *, store_host: bytes
) -> Slices:
    """Build every slice. Services do not run yet: the mode starts them in the master's role."""
    base = _foundation(config, store, clock, mode, store_host=store_host)
    proof = ClusterProof(config.cluster_credentials)
    tables = groups.build_tables(base)
    topic = topics.build(base, tables)
    group = groups.build(base, tables, topic.topics)
    later = scheduled.build(base, topic.permission)
    halves = HalfQueue(store, tables.offsets)
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
        hold=mode.hold,
        may_administer=mode.may_administer,
    )
    seen = observe.Observed(
        topics=topic,
        tables=tables,
        pull=reading.pull,
        scheduled=later,
        transactions=transaction,
        replica=views,
    )
    slices = Slices(
        base=base,
        topics=topic,
        groups=group,
        ingest=sending,
        fetch=reading,
        scheduled=later,
        transactions=transaction,
        replica=replicas,
        observe=observe.build(base, seen, proof=proof, rebalance=group.notices.members_changed),
    )
    _adopt_settings(slices)
    return slices


def _foundation(
    config: BrokerConfig, store: MessageStore, clock: Clock, mode: Mode, *, store_host: bytes
) -> Foundation:
    stats = Stats(clock.now_ms())
    light_queues = LightQueues(config, store)
    writer = Writer(
        store,
        store_host,
        clock.monotonic_s,
        mode.durability,
        append=mode.append,
        prepare=light_queues.prepare,
        took=stats.put_took,
    )
    writer.arrived.append(stats.arrived)
    return Foundation(
        config=config,
        store=store,
        clock=clock,
        writer=writer,
        role_state=mode.role_state,
        mode=mode,
        stats=stats,
        alarms=Alarms(),
        light_queues=light_queues,
    )


def _adopt_settings(slices: Slices) -> None:
    """Pass settings that change while the broker runs to the slices."""
    runtime_config = slices.observe.runtime_config
    runtime_config.adopt.extend(adopt for part in slices.contributions for adopt in part.adopts)
    runtime_config.adopt_store.extend(
        (slices.base.store.adopt, slices.ingest.admission.adopt_store)
    )


def route(slices: Slices, *, run_later: RunLater | None = None) -> FrameRouter:
    """The router of all requests. `run_later` schedules a call in a later round of the loop;
    without it, all steps of a request run at once, and the caller settles the writer."""
    base = slices.base
    router = RequestRouter(
        handlers_of(slices.contributions),
        slices.replica.gate,
        refused=base.stats.refused,
        run_later=run_later,
    )
    return FrameRouter(
        slices.ingest.send,
        slices.fetch.pull,
        router,
        writer=base.writer,
        clients=slices.groups.clients,
        access=OpenAccess(),
        run_later=run_later,
    )


def attach(mode: Mode, slices: Slices, *, nameservers: NameServers, address: str) -> None:
    """Give the mode the parts that it acts on."""
    tables, later = slices.groups.tables, slices.scheduled
    mode.attach(
        Host(
            writer=slices.base.writer,
            topics=slices.topics.topics,
            groups=tables.groups,
            offsets=tables.offsets,
            delays=later.delays,
            timers=later.timers,
            removal=slices.topics.removal,
            services=slices.services,
            alarms=slices.base.alarms,
            nameservers=nameservers,
            on_raft_progress=slices.replica.raft.progressed,
            address=address,
        )
    )
