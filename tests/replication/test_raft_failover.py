"""Real processes: leaders and followers die, stand still and come back; nothing acknowledged is
lost, and clients go on."""

import time

import pytest
from raft_cluster import Cluster, Load, Member, check_all, wait_for

from tianzhou.raft.roles import Role

KILLS = 3
WITHOUT_LEADER_S_MAX = 0.5
"""For each step of a rolling restart, as members note it."""


@pytest.mark.slow
def test_members_die_and_stand_still(cluster: Cluster) -> None:
    with Load(cluster) as load:
        leaders_are_killed(cluster, load)
        a_leader_stands_still(cluster, load)
        a_follower_is_killed(cluster, load)
        a_quorum_is_lost_and_found(cluster, load)
    check_all(cluster, load)


def leaders_are_killed(cluster: Cluster, load: Load) -> None:
    times: list[float] = []
    for _ in range(KILLS):
        leader = cluster.wait_leader()
        leader.server.kill()
        times.append(load.wait_progress())
        leader.start()
        leader.server.wait_ready()
    assert max(times) < 8, times


def a_leader_stands_still(cluster: Cluster, load: Load) -> None:
    leader = cluster.wait_leader()
    leader.server.pause()
    took_s = wait_for("another leader", lambda: cluster.leader() not in (None, leader))
    assert took_s < 8
    load.wait_progress()
    leader.server.resume()
    # It believed to lead, and must not acknowledge anything any more.
    wait_for("it follows", lambda: leader.raft()["isLeading"] is False)
    load.wait_progress()


def a_follower_is_killed(cluster: Cluster, load: Load) -> None:
    follower = cluster.followers()[0]
    follower.server.kill()
    assert load.wait_progress() < 2, "a follower is missed"
    follower.start()
    follower.server.wait_ready()
    wait_for("it has caught up", lambda: cluster.is_level(follower))


def a_quorum_is_lost_and_found(cluster: Cluster, load: Load) -> None:
    followers = cluster.followers()
    for follower in followers:
        follower.server.kill()
    count = len(load.acked)
    leader = next(one for one in cluster.members if one not in followers)
    wait_for("the leader steps down", lambda: leader.raft()["isLeading"] is False)
    assert len(load.acked) <= count + 1, "acknowledged without a majority"
    for follower in followers:
        follower.start()
    for follower in followers:
        follower.server.wait_ready()
    load.wait_progress()


@pytest.mark.slow
def test_a_rolling_restart(cluster: Cluster) -> None:
    """Each member stops in order: a leader hands over before it goes, and nobody has to notice that
    it is gone."""
    without_s: list[float] = []
    left = set(cluster.members)
    with Load(cluster) as load:
        while left:
            leader = cluster.wait_leader()
            member = leader if leader in left else left.copy().pop()
            left.remove(member)
            without_s.append(restart(cluster, load, member))
    assert sum(wait > 0 for wait in without_s) >= 2, without_s
    assert max(without_s) <= WITHOUT_LEADER_S_MAX, without_s
    assert not load.failed, "a producer was told of a planned hand-over"
    assert max(load.gaps_s) < 2
    check_all(cluster, load)


def restart(cluster: Cluster, load: Load, member: Member) -> float:
    """How long nobody took messages, by what the members say."""
    was_leader, began_s = member is cluster.leader(), time.time()
    member.server.stop()
    load.wait_progress()
    member.start()
    member.server.wait_ready()
    wait_for("it has caught up", lambda: cluster.is_level(member))
    events = cluster.events(began_s)
    served = [event.at_s for event in events if event.what == "raft.serves"]
    handed_over = [event.at_s for event in events if event.what == "raft.hands_over"]
    assert len(served) == len(handed_over) == was_leader, events
    if not was_leader:
        return 0.0
    # By a transfer, and by nothing else: whoever waits for an election asks for votes first.
    between = [event for event in events if handed_over[0] <= event.at_s <= served[0]]
    assert Role.PRE_CANDIDATE.value not in {event.facts.get("role") for event in between}, events
    return served[0] - handed_over[0]
