"""Replicas of a broker's log: how far each one is, and what that means.

A group is a master with slaves, or members of Raft. The master or leader knows all other replicas;
a replica without one knows only itself.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

from tianzhou.client.core.admin_results import BrokerPlace
from tianzhou.client.core.routing import MASTER
from tianzhou.wire.raft_bodies import RaftPeer, RaftView
from tianzhou.wire.replication_bodies import ReplicationView, SlaveView
from tianzhou.wire.view_bodies import BrokerView

Mark = Literal["", "good", "warn", "bad"]

AWAY: Final = "away"
LOST: Final = "does not follow"
LATE_MS: Final = 3_000
"""An in-sync slave that has not caught up for this long may hang."""
UNKNOWN: Final = -1


@dataclass(frozen=True, slots=True)
class Replica:
    """One replica of the log."""

    name: str
    address: str
    role: str
    state: str
    mark: Mark
    """How serious `state` is."""
    reached: int
    """End of its log on disk, in bytes or Raft entries; -1: not known."""
    lag: int = 0
    lag_ms: int = UNKNOWN
    """Age of the first missing record; -1: not known."""
    broker_id: int = UNKNOWN
    is_in_sync: bool = False
    """Whether it counts towards the acknowledgement of sends."""


@dataclass(frozen=True, slots=True)
class ReplicaSet:
    rows: tuple[Replica, ...]
    is_raft: bool
    end: int
    """End of the log of the replica that responded, in the unit of `reached`."""

    @property
    def in_sync(self) -> int:
        return sum(row.is_in_sync for row in self.rows)

    @property
    def is_alone(self) -> bool:
        """Whether the master is the only replica, and none is missing."""
        return not self.is_raft and [row.role for row in self.rows] == ["master"]


def replica_set(view: BrokerView, place: BrokerPlace | None = None) -> ReplicaSet:
    """Return the replicas of a broker. `place` lists the group at the name server, including
    replicas that do not follow."""
    if view.raft is not None:
        return ReplicaSet(tuple(_members(view.raft)), True, view.raft.last)
    report = view.replication
    if report is None:
        return ReplicaSet((), False, 0)
    addresses = dict(place.addresses) if place is not None else {}
    rows = (
        _of_master(report, addresses) if report.role == "MASTER" else _of_slave(report, addresses)
    )
    return ReplicaSet(tuple(rows), False, max(report.end, report.master_end))


# Master and slaves


def _of_master(report: ReplicationView, addresses: dict[int, str]) -> Iterator[Replica]:
    address = addresses.pop(MASTER, "")
    yield Replica(
        "master",
        address,
        "master",
        "accepts messages",
        "good",
        report.end,
        broker_id=MASTER,
        is_in_sync=True,
    )
    for slave in sorted(report.slaves, key=lambda one: one.broker_id):
        known = addresses.pop(slave.broker_id, "")
        yield _slave(slave, known or slave.address)
    for lost in sorted(report.lost, key=lambda one: one.broker_id):
        known = addresses.pop(lost.broker_id, "") or lost.address
        yield Replica(
            f"slave {lost.broker_id}",
            known,
            "slave",
            LOST,
            "bad",
            lost.acked,
            max(report.end - lost.acked, 0),
            lost.gone_ms,
            lost.broker_id,
        )
    for broker_id, known in sorted(addresses.items()):
        yield Replica(
            f"slave {broker_id}", known, "slave", LOST, "bad", UNKNOWN, broker_id=broker_id
        )


def _slave(slave: SlaveView, address: str) -> Replica:
    name = f"slave {slave.broker_id}" if slave.broker_id > 0 else "slave"
    state, mark = "in sync", "good"
    if not slave.is_in_sync:
        state, mark = "behind", "warn"
    elif slave.lag_bytes and slave.lag_ms > LATE_MS:
        state, mark = "late", "warn"
    return Replica(
        name,
        address,
        "slave",
        state,
        mark,
        slave.acked,
        slave.lag_bytes,
        slave.lag_ms,
        slave.broker_id,
        slave.is_in_sync,
    )


def _of_slave(report: ReplicationView, addresses: dict[int, str]) -> Iterator[Replica]:
    """Return the replicas as a slave knows them, if there is no master."""
    for broker_id, address in sorted(addresses.items()):
        name = "master" if broker_id == MASTER else f"slave {broker_id}"
        if broker_id != report.broker_id:
            yield Replica(name, address, name.partition(" ")[0], "not asked", "", UNKNOWN)
            continue
        state = "follows" if report.is_connected else report.last_error or "follows no master"
        lag = max(report.master_end - report.end, 0)
        mark: Mark = "warn" if report.is_connected else "bad"
        yield Replica(name, address, "slave", state, mark, report.end, lag, broker_id=broker_id)


# Raft


def _members(report: RaftView) -> Iterator[Replica]:
    for peer in report.peers:
        state, mark = _member_state(report, peer)
        reached = report.last if peer.name == report.member else peer.match
        if peer.is_witness:
            reached = UNKNOWN  # it has no messages, so it is never behind
        lag = max(report.last - reached, 0) if reached >= 0 else 0
        is_near = mark == "good"
        role = _member_role(report, peer)
        yield Replica(peer.name, peer.address, role, state, mark, reached, lag, is_in_sync=is_near)


def _member_role(report: RaftView, peer: RaftPeer) -> str:
    if peer.is_witness:
        return "witness"
    return "leader" if peer.name == report.leader else "follower" if peer.is_voter else "learner"


def _member_state(report: RaftView, peer: RaftPeer) -> tuple[str, Mark]:
    if not peer.is_connected:
        return AWAY, "bad"
    if peer.is_in_doubt:
        return "in doubt: it is being repaired", "bad"
    if peer.name == report.leader:
        return "accepts messages", "good"
    if not report.leader:
        return "knows no leader", "bad"
    if peer.is_witness:
        return "votes", "good"
    # Only the leader knows the progress of the others.
    if not report.is_leading or peer.match >= report.commit:
        return "in sync", "good"
    return "behind", "warn"


# Findings


class ReplicaFinding(NamedTuple):
    said: str
    remedy: str
    is_problem: bool = False
    """Whether something does not work now; otherwise it may soon fail."""


def replica_findings(
    view: BrokerView, place: BrokerPlace | None = None
) -> Iterator[ReplicaFinding]:
    if view.raft is not None:
        yield from _raft_findings(view.name, view.raft)
    elif view.replication is not None and view.replication.role == "MASTER":
        yield from _slave_findings(
            view.name, view.replication.copies_needed, replica_set(view, place)
        )


def _slave_findings(name: str, needed: int, known: ReplicaSet) -> Iterator[ReplicaFinding]:
    if needed > known.in_sync:
        said = f"producers wait for {needed} replicas of a message, but {known.in_sync} are in sync"
        change = f"tianzhou broker config {name} --set inSyncReplicas={max(known.in_sync, 1)}"
        yield ReplicaFinding(
            said, f"start its slaves, or require fewer replicas: {change}", is_problem=True
        )
    for row in known.rows:
        where = f"{row.name} at {row.address}"
        if row.mark == "bad":
            since = f", for {row.lag_ms / 1000:.0f} s now" if row.lag_ms >= 0 else ""
            yield ReplicaFinding(
                f"{where} does not follow it{since}", "is it running? its own log says why"
            )
        elif row.mark == "warn":
            remedy = "it catches up when less is sent; is its disk or network slow?"
            late = f"{row.lag:,} bytes and {row.lag_ms / 1000:.0f} s behind"
            yield ReplicaFinding(f"{where} is {late}", remedy)


def _raft_findings(name: str, report: RaftView) -> Iterator[ReplicaFinding]:
    voters = [peer for peer in report.peers if peer.is_voter]
    there = sum(peer.is_connected and not peer.is_in_doubt for peer in voters)
    if not report.leader:
        said = f"it has no leader: {there} of {len(voters)} members are connected"
        yield ReplicaFinding(said, f"tianzhou raft status {name}", is_problem=True)
        return
    spare = there - (len(voters) // 2 + 1)
    left = f"{spare} more may fail" if spare > 0 else "if one more fails, it accepts no messages"
    if report.needs_witness:
        said = "it commits with its witness, because too few copies keep up: new messages are on "
        said += "one disk less than usual, and only members that have them can be elected"
        yield ReplicaFinding(said, "start the other copies again, or check their disks and network")
    for peer in report.peers:
        if not peer.is_connected:
            yield ReplicaFinding(
                f"member {peer.name} at {peer.address} is away; {left}", "start it again"
            )
        elif peer.is_in_doubt:
            said = f"member {peer.name} may have lost records, and is being repaired; {left}"
            yield ReplicaFinding(said, "it recovers by itself while the others are up")
