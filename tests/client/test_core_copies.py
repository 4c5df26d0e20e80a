"""Copies of a log: who has how much of it, and what is to worry about."""

import msgspec
from test_core_looks import BROKER

from tianzhou.client.core.admin_results import BrokerPlace
from tianzhou.client.core.copies import Copies, copies, worries
from tianzhou.wire.look_bodies import BrokerLook
from tianzhou.wire.raft_bodies import RaftLook, RaftPeer
from tianzhou.wire.replication_bodies import LostSlave, ReplicationLook, SlaveLook

ALONE = ReplicationLook(
    broker_id=0, broker_name="a", confirmed=1000, end=1000, epoch=2, flushed=1000, min=0,
    role="MASTER",
)  # fmt: skip
SLAVE = SlaveLook(acked=1000, address="h:9", broker_id=1, is_in_sync=True, lag_bytes=0, lag_ms=0)
LATE = SlaveLook(acked=400, address="h:8", broker_id=2, is_in_sync=False, lag_bytes=600, lag_ms=70)


def with_slaves(*slaves: SlaveLook, needed: int = 1) -> BrokerLook:
    told = msgspec.structs.replace(ALONE, slaves=slaves, copies_needed=needed)
    return msgspec.structs.replace(BROKER, replication=told)


def place(*ids: int) -> BrokerPlace:
    return BrokerPlace("c", "a", {number: f"10.0.0.{number}:1" for number in ids})


def seen(known: Copies) -> list[tuple[str, str, str, int, int]]:
    return [(row.name, row.state, row.mark, row.reached, row.lag) for row in known.rows]


def test_a_broker_may_be_alone() -> None:
    known = copies(with_slaves(), place(0))
    assert (known.is_alone, known.in_sync, known.end) == (True, 1, 1000)
    assert copies(BROKER).rows == ()
    assert not list(worries(with_slaves(), place(0)))


def test_slaves_are_in_sync_or_behind_or_do_not_follow() -> None:
    look, known = with_slaves(LATE, SLAVE), copies(with_slaves(LATE, SLAVE), place(0, 1, 2, 3))
    assert seen(known) == [
        ("master", "takes messages", "good", 1000, 0),
        ("slave 1", "in sync", "good", 1000, 0),
        ("slave 2", "behind", "warn", 400, 600),
        ("slave 3", "does not follow", "bad", -1, 0),
    ]
    assert [row.address for row in known.rows] == [f"10.0.0.{n}:1" for n in range(4)]
    assert [row.lag_ms for row in known.rows] == [-1, 0, 70, -1]
    said = [(worry.is_problem, worry.said) for worry in worries(look, place(0, 1, 2, 3))]
    assert said == [
        (False, "slave 2 at 10.0.0.2:1 is 600 bytes and 0 s behind"),
        (False, "slave 3 at 10.0.0.3:1 does not follow it"),
    ]


def test_a_slave_that_died_is_missed() -> None:
    gone = LostSlave(acked=700, address="h:7", broker_id=4, gone_ms=12_000)
    told = msgspec.structs.replace(ALONE, slaves=(SLAVE,), lost=(gone,))
    look = msgspec.structs.replace(BROKER, replication=told)
    known = copies(look, place(0, 1))
    assert (known.in_sync, len(known.rows)) == (2, 3)
    assert seen(known)[2] == ("slave 4", "does not follow", "bad", 700, 300)
    (worry,) = worries(look, place(0, 1))
    assert worry.said == "slave 4 at h:7 does not follow it, for 12 s now"


def test_a_slave_that_hangs_is_late_before_it_is_far_behind() -> None:
    hangs = msgspec.structs.replace(SLAVE, acked=990, lag_bytes=10, lag_ms=5_000)
    known = copies(with_slaves(hangs), place(0, 1))
    assert (known.rows[1].state, known.rows[1].mark, known.in_sync) == ("late", "warn", 2)
    (worry,) = worries(with_slaves(hangs, needed=2), place(0, 1))
    assert worry.said == "slave 1 at 10.0.0.1:1 is 10 bytes and 5 s behind"


def test_fewer_copies_than_producers_wait_for_are_a_problem() -> None:
    (worry,) = worries(with_slaves(SLAVE, needed=3), place(0, 1))
    assert worry.is_problem
    assert "wait for 3 copies" in worry.said
    assert "inSyncReplicas=2" in worry.mend


def test_a_slave_without_a_master_tells_of_itself() -> None:
    told = msgspec.structs.replace(
        ALONE, broker_id=1, role="SLAVE", end=900, master_end=1000, last_error="refused"
    )
    look = msgspec.structs.replace(BROKER, replication=told)
    assert seen(copies(look, place(1, 2))) == [
        ("slave 1", "refused", "bad", 900, 100), ("slave 2", "not asked", "", -1, 0),
    ]  # fmt: skip
    assert not list(worries(look, place(1, 2)))
    assert not copies(look, place(1)).is_alone


# Raft


def peer(name: str, match: int, *, away: bool = False, doubt: bool = False) -> RaftPeer:
    return RaftPeer(
        address=f"{name}:1", is_connected=not away, is_in_doubt=doubt, is_voter=True, match=match,
        name=name,
    )  # fmt: skip


def group(*peers: RaftPeer, leader: str = "n0") -> BrokerLook:
    told = RaftLook(
        applied=49, commit=50, first=1, group="g", is_changing=False, is_in_doubt=False,
        is_leading=leader == "n0", last=52, leader=leader, leader_broker="h:1", member="n0",
        peers=peers, role="leader" if leader == "n0" else "follower", term=7,
    )  # fmt: skip
    return msgspec.structs.replace(BROKER, raft=told, replication=ALONE)


def test_members_of_a_group_are_counted_in_entries() -> None:
    look = group(peer("n0", 51), peer("n1", 50), peer("n2", 20, away=True))
    known = copies(look)
    assert (known.is_raft, known.end, known.in_sync) == (True, 52, 2)
    assert seen(known) == [
        ("n0", "takes messages", "good", 52, 0), ("n1", "in sync", "good", 50, 2),
        ("n2", "away", "bad", 20, 32),
    ]  # fmt: skip
    (worry,) = worries(look)
    assert worry.said == "member n2 at n2:1 is away; if one more fails, it takes no messages"


def test_a_member_may_be_late_or_in_doubt() -> None:
    look = group(peer("n0", 52), peer("n1", 10), peer("n2", 52, doubt=True))
    assert [row.state for row in copies(look).rows][1:] == [
        "behind", "in doubt: it is being repaired",
    ]  # fmt: skip
    (worry,) = worries(look)
    assert "n2 may have forgotten" in worry.said
    five = group(*(peer(f"n{n}", 52, away=n == 4) for n in range(5)))
    assert "1 more may fail" in next(worries(five)).said


def test_a_group_that_nobody_leads_is_a_problem() -> None:
    look = group(peer("n0", -1), peer("n1", -1, away=True), peer("n2", -1, away=True), leader="")
    (worry,) = worries(look)
    assert (worry.is_problem, worry.said) == (True, "nobody leads it: 1 of 3 members are there")
    assert copies(look).rows[0].state == "knows no leader"
