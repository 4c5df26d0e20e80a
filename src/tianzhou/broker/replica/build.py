"""Builds the slice of replication: administration of replicas, and the gate for changes."""

from dataclasses import dataclass

from tianzhou.broker.access.cluster_proof import ClusterProof
from tianzhou.broker.groups.consumer_offsets import ConsumerOffsets
from tianzhou.broker.rejections import REFUSED
from tianzhou.broker.replica.admin import AdminReplication
from tianzhou.broker.replica.admin_raft import AdminRaft
from tianzhou.broker.replica.expiry_floor import ExpiryFloor
from tianzhou.broker.replica.gate import RoleGate
from tianzhou.broker.scheduled.build import ScheduledSlice
from tianzhou.broker.slice import Foundation, Slice
from tianzhou.broker.topics.removal import TopicRemoval
from tianzhou.broker.transactions.half_queue import HalfQueue
from tianzhou.replication.durability import Durability


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaSlice:
    raft: AdminRaft
    replication: AdminReplication
    gate: RoleGate
    floor: ExpiryFloor
    slice: Slice


def build(
    base: Foundation,
    durability: Durability,
    *,
    removal: TopicRemoval,
    offsets: ConsumerOffsets,
    scheduled: ScheduledSlice,
    halves: HalfQueue,
    proof: ClusterProof,
) -> ReplicaSlice:
    raft = AdminRaft(base.clock.monotonic_s)
    replication = AdminReplication(base.config.name, base.store, base.role_state, durability)
    gate = RoleGate(base.role_state, rejected=REFUSED.keys(), proof=proof)
    gate.hold_deletion = removal.holds
    floor = ExpiryFloor(
        base.store,
        base.role_state,
        offsets,
        delays=scheduled.delays,
        timers=scheduled.timers,
        halves=halves,
    )
    return ReplicaSlice(
        raft=raft,
        replication=replication,
        gate=gate,
        floor=floor,
        slice=Slice(serves=(raft, replication)),
    )
