"""ReplicaSet of a log: who has how much of it, and what is to finding about."""

import msgspec
from test_core_views import BROKER

from tianzhou.client.core.admin_results import BrokerPlace
from tianzhou.client.core.replicas import ReplicaSet, replica_findings, replica_set
from tianzhou.wire.raft_bodies import RaftPeer, RaftView
from tianzhou.wire.replication_bodies import LostSlave, ReplicationView, SlaveView
from tianzhou.wire.view_bodies import BrokerView

ALONE = ReplicationView(
    broker_id=0,
    broker_name="a",
    confirmed=1000,
    end=1000,
    epoch=2,
    flushed=1000,
    min=0,
    role="MASTER",
)
SLAVE = SlaveView(acked=1000, address="h:9", broker_id=1, is_in_sync=True, lag_bytes=0, lag_ms=0)
LATE = SlaveView(acked=400, address="h:8", broker_id=2, is_in_sync=False, lag_bytes=600, lag_ms=70)


def with_slaves(*slaves: SlaveView, needed: int = 1) -> BrokerView:
    told = msgspec.structs.replace(ALONE, slaves=slaves, copies_needed=needed)
    return msgspec.structs.replace(BROKER, replication=told)


def place(*ids: int) -> BrokerPlace:
    return BrokerPlace("c", "a", {number: f"10.0.0.{number}:1" for number in ids})


def seen(known: ReplicaSet) -> list[tuple[str, str, str, int, int]]:
    return [(row.name, row.state, row.mark, row.reached, row.lag) for row in known.rows]


def test_replicas_of_a_single_broker_are_itself_alone() -> None:
    known = replica_set(with_slaves(), place(0))
    assert (known.is_alone, known.in_sync, known.end) == (True, 1, 1000)
    assert replica_set(BROKER).rows == ()
    assert not list(replica_findings(with_slaves(), place(0)))


def test_replicas_are_in_sync_behind_or_not_following() -> None:
    look, known = with_slaves(LATE, SLAVE), replica_set(with_slaves(LATE, SLAVE), place(0, 1, 2, 3))
    assert seen(known) == [
        ("master", "accepts messages", "good", 1000, 0),
        ("slave 1", "in sync", "good", 1000, 0),
        ("slave 2", "behind", "warn", 400, 600),
        ("slave 3", "does not follow", "bad", -1, 0),
    ]
    assert [row.address for row in known.rows] == [f"10.0.0.{n}:1" for n in range(4)]
    assert [row.lag_ms for row in known.rows] == [-1, 0, 70, -1]
    said = [
        (finding.is_problem, finding.said) for finding in replica_findings(look, place(0, 1, 2, 3))
    ]
    assert said == [
        (False, "slave 2 at 10.0.0.2:1 is 600 bytes and 0 s behind"),
        (False, "slave 3 at 10.0.0.3:1 does not follow it"),
    ]


def test_replicas_include_a_registered_slave_that_is_missing() -> None:
    gone = LostSlave(acked=700, address="h:7", broker_id=4, gone_ms=12_000)
    told = msgspec.structs.replace(ALONE, slaves=(SLAVE,), lost=(gone,))
    look = msgspec.structs.replace(BROKER, replication=told)
    known = replica_set(look, place(0, 1))
    assert (known.in_sync, len(known.rows)) == (2, 3)
    assert seen(known)[2] == ("slave 4", "does not follow", "bad", 700, 300)
    (finding,) = replica_findings(look, place(0, 1))
    assert finding.said == "slave 4 at h:7 does not follow it, for 12 s now"


def test_replicas_report_a_slave_that_hangs_as_late() -> None:
    hangs = msgspec.structs.replace(SLAVE, acked=990, lag_bytes=10, lag_ms=5_000)
    known = replica_set(with_slaves(hangs), place(0, 1))
    assert (known.rows[1].state, known.rows[1].mark, known.in_sync) == ("late", "warn", 2)
    (finding,) = replica_findings(with_slaves(hangs, needed=2), place(0, 1))
    assert finding.said == "slave 1 at 10.0.0.1:1 is 10 bytes and 5 s behind"


def test_replicas_below_the_ack_requirement_are_a_problem() -> None:
    (finding,) = replica_findings(with_slaves(SLAVE, needed=3), place(0, 1))
    assert finding.is_problem
    assert "wait for 3 replicas" in finding.said
    assert "inSyncReplicas=2" in finding.remedy


def test_replicas_without_a_master_show_the_slave_itself() -> None:
    told = msgspec.structs.replace(
        ALONE, broker_id=1, role="SLAVE", end=900, master_end=1000, last_error="refused"
    )
    look = msgspec.structs.replace(BROKER, replication=told)
    assert seen(replica_set(look, place(1, 2))) == [
        ("slave 1", "refused", "bad", 900, 100),
        ("slave 2", "not asked", "", -1, 0),
    ]
    assert not list(replica_findings(look, place(1, 2)))
    assert not replica_set(look, place(1)).is_alone


# Raft


def peer(name: str, match: int, *, away: bool = False, doubt: bool = False) -> RaftPeer:
    return RaftPeer(
        address=f"{name}:1",
        is_connected=not away,
        is_in_doubt=doubt,
        is_voter=True,
        match=match,
        name=name,
    )


def group(*peers: RaftPeer, leader: str = "n0") -> BrokerView:
    told = RaftView(
        applied=49,
        commit=50,
        first=1,
        group="g",
        is_changing=False,
        is_in_doubt=False,
        is_leading=leader == "n0",
        last=52,
        leader=leader,
        leader_broker="h:1",
        member="n0",
        peers=peers,
        role="leader" if leader == "n0" else "follower",
        term=7,
    )
    return msgspec.structs.replace(BROKER, raft=told, replication=ALONE)


def test_replicas_of_a_raft_group_lag_in_entries() -> None:
    look = group(peer("n0", 51), peer("n1", 50), peer("n2", 20, away=True))
    known = replica_set(look)
    assert (known.is_raft, known.end, known.in_sync) == (True, 52, 2)
    assert seen(known) == [
        ("n0", "accepts messages", "good", 52, 0),
        ("n1", "in sync", "good", 50, 2),
        ("n2", "away", "bad", 20, 32),
    ]
    (finding,) = replica_findings(look)
    assert finding.said == "member n2 at n2:1 is away; if one more fails, it accepts no messages"


def test_replicas_of_a_raft_group_may_be_late_or_in_doubt() -> None:
    look = group(peer("n0", 52), peer("n1", 10), peer("n2", 52, doubt=True))
    assert [row.state for row in replica_set(look).rows][1:] == [
        "behind",
        "in doubt: it is being repaired",
    ]
    (finding,) = replica_findings(look)
    assert "n2 may have lost records" in finding.said
    five = group(*(peer(f"n{n}", 52, away=n == 4) for n in range(5)))
    assert "1 more may fail" in next(replica_findings(five)).said


def test_replicas_of_a_raft_group_without_a_leader_are_a_problem() -> None:
    look = group(peer("n0", -1), peer("n1", -1, away=True), peer("n2", -1, away=True), leader="")
    (finding,) = replica_findings(look)
    assert (finding.is_problem, finding.said) == (
        True,
        "it has no leader: 1 of 3 members are connected",
    )
    assert replica_set(look).rows[0].state == "knows no leader"


def test_witness_of_a_raft_group_votes_and_has_no_messages() -> None:
    witness = msgspec.structs.replace(peer("w", 40), is_witness=True)
    look = group(peer("n0", 52), peer("n1", 50), witness)
    known = replica_set(look)
    assert seen(known)[2] == ("w", "votes", "good", -1, 0)
    assert (known.rows[2].role, known.in_sync) == ("witness", 3)
    assert not list(replica_findings(look))


def test_raft_group_that_needs_its_witness_is_reported() -> None:
    witness = msgspec.structs.replace(peer("w", 52), is_witness=True)
    look = group(peer("n0", 52), peer("n1", 20, away=True), witness)
    assert look.raft is not None
    told = msgspec.structs.replace(look.raft, needs_witness=True)
    needs, away = replica_findings(msgspec.structs.replace(look, raft=told))
    assert "new messages are on one disk less than usual" in needs.said
    assert away.said.startswith("member n1 at n1:1 is away")
