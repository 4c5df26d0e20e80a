"""Builds the slice of replication: administration of replicas, the gate for changes, and metrics.

The metrics show which broker is the master, and how far the replicas are behind. A broker without
replicas is its own master; the families that have one series per replica are then empty.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from tianzhou.broker.access.cluster_proof import ClusterProof
from tianzhou.broker.groups.consumer_offsets import ConsumerOffsets
from tianzhou.broker.metrics import Metric, Series, gauge, gauges
from tianzhou.broker.rejections import REFUSED
from tianzhou.broker.replica.admin import AdminReplication
from tianzhou.broker.replica.admin_raft import AdminRaft
from tianzhou.broker.replica.expiry_floor import ExpiryFloor
from tianzhou.broker.replica.gate import RoleGate
from tianzhou.broker.replica.mode import Mode
from tianzhou.broker.scheduled.build import ScheduledSlice
from tianzhou.broker.slice import Foundation, Slice
from tianzhou.broker.topics.admin import TopicRemoval
from tianzhou.broker.transactions.half_queue import HalfQueue
from tianzhou.wire.raft_bodies import RaftView
from tianzhou.wire.replication_bodies import ReplicationView, SlaveView


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaSlice:
    raft: AdminRaft
    replication: AdminReplication
    gate: RoleGate
    slice: Slice


def build(
    base: Foundation,
    mode: Mode,
    *,
    removal: TopicRemoval,
    offsets: ConsumerOffsets,
    scheduled: ScheduledSlice,
    halves: HalfQueue,
    proof: ClusterProof,
) -> ReplicaSlice:
    raft = AdminRaft(mode, base.clock.monotonic_s)
    replication = AdminReplication(base.config.name, base.store, mode)
    gate = RoleGate(mode, rejected=REFUSED.keys(), proof=proof, hold_deletion=removal.holds)
    ExpiryFloor(
        base.store,
        base.role_state,
        offsets,
        delays=scheduled.delays,
        timers=scheduled.timers,
        halves=halves,
        kept_progress=mode.kept_progress,
    )
    return ReplicaSlice(
        raft=raft,
        replication=replication,
        gate=gate,
        slice=Slice(
            serves=(raft, replication), metrics=replica_metrics(replication.view, mode.raft_view)
        ),
    )


_UNNAMED: Final = "unnamed"
"""RocketMQ's slaves do not report their ids. They share one series, of the slave with the largest
lag."""


def replica_metrics(
    replication: Callable[[], ReplicationView], raft: Callable[[], RaftView | None]
) -> tuple[Metric, ...]:
    """`raft` returns None unless this broker is a member of a Raft group."""

    def unconfirmed() -> int:
        view = replication()
        return max(0, view.end - view.confirmed)

    def in_sync() -> int:
        view = raft()
        if view is not None:
            return _in_sync_members(view)
        return sum(slave.is_in_sync for slave in replication().slaves)

    def by_slave(value: Callable[[SlaveView], float]) -> Callable[[], Iterator[Series]]:
        return lambda: ((labels, value(slave)) for labels, slave in _slaves(replication()))

    replica = ("replica",)
    return (
        gauge(
            "is_master",
            "1 while this broker accepts the messages of its group",
            lambda: int(replication().role == "MASTER"),
        ),
        gauge("epoch", "Counts the masters of the group", lambda: replication().epoch),
        gauge("log_end_offset", "Where the log ends", lambda: replication().end),
        gauge(
            "unconfirmed_bytes",
            "Appended, and not held by as many replicas as responses wait for",
            unconfirmed,
        ),
        gauge(
            "replicas_in_sync", "Other brokers that have all, or nearly all, of the log", in_sync
        ),
        gauges(
            "replica_lag_bytes",
            "Log that a slave has not confirmed",
            replica,
            by_slave(lambda slave: slave.lag_bytes),
        ),
        gauges(
            "replica_lag_seconds",
            "How long ago the first of it was written, approximately",
            replica,
            by_slave(lambda slave: slave.lag_ms / 1000),
        ),
        gauges(
            "replica_acked_offset",
            "Up to where a slave has the log",
            replica,
            by_slave(lambda slave: slave.acked),
        ),
        gauges(
            "replica_in_sync",
            "1 while a slave has all, or nearly all, of the log",
            replica,
            by_slave(lambda slave: int(slave.is_in_sync)),
        ),
        *_raft_metrics(raft),
    )


def _raft_metrics(raft: Callable[[], RaftView | None]) -> tuple[Metric, ...]:
    def needs_witness() -> int:
        view = raft()
        return int(view is not None and view.needs_witness)

    return (
        gauges(
            "replica_lag_entries",
            "Entries that a member of a Raft group lacks",
            ("replica",),
            lambda: _member_lags(raft()),
        ),
        gauge(
            "needs_witness",
            "1 while the leader of a Raft group commits with its witness",
            needs_witness,
        ),
    )


def _slaves(view: ReplicationView) -> Iterator[tuple[tuple[str], SlaveView]]:
    by_name: dict[str, SlaveView] = {}
    for slave in sorted(view.slaves, key=lambda slave: (slave.lag_bytes, slave.lag_ms)):
        by_name[_UNNAMED if slave.broker_id < 0 else str(slave.broker_id)] = slave
    for name, slave in sorted(by_name.items()):
        yield (name,), slave


def _member_lags(raft: RaftView | None) -> Iterator[Series]:
    """Only the leader knows how far the members are."""
    if raft is not None and raft.is_leading:
        for peer in raft.peers:
            if peer.name != raft.member and not peer.is_witness:
                yield (peer.name,), max(0, raft.last - max(0, peer.match))


def _in_sync_members(raft: RaftView) -> int:
    """Count the members besides the leader that have everything that is committed."""
    return sum(
        raft.is_leading and peer.name != raft.member and peer.match >= raft.commit
        for peer in raft.peers
        if not peer.is_witness
    )
