"""Real processes: leaders and followers die, hang and return; nothing acknowledged is lost, and
clients continue."""

import time
from collections.abc import Iterable
from typing import NamedTuple

import pytest
from raft_cluster import Cluster, Load, Member, check_all, wait_for

from tianzhou.raft.roles import Role
from tianzhou.testing.kit.stopwatch import Stopwatch

KILLS = 3
WITHOUT_LEADER_S_MAX = 0.5
"""For each step of a rolling restart, from the logs of the members."""
FAILOVER_S_MAX = 8
GAP_S_MAX = 2
"""Limits do not count the time in which no core was free: see `Stopwatch`."""


def watch(members: Iterable[Member]) -> Stopwatch:
    return Stopwatch(*(member.server.pid for member in members))


@pytest.mark.slow
def test_members_that_die_or_hang_lose_nothing(cluster: Cluster) -> None:
    with Load(cluster) as load:
        kill_leaders(cluster, load)
        pause_a_leader(cluster, load)
        kill_a_follower(cluster, load)
        lose_and_restore_the_quorum(cluster, load)
    check_all(cluster, load)


def kill_leaders(cluster: Cluster, load: Load) -> None:
    times: list[float] = []
    for _ in range(KILLS):
        leader = cluster.wait_leader()
        stopwatch = watch(cluster.followers())
        leader.server.kill()
        load.wait_progress()
        times.append(stopwatch.seconds())
        leader.start()
        leader.server.wait_ready()
    assert max(times) < FAILOVER_S_MAX, times


def pause_a_leader(cluster: Cluster, load: Load) -> None:
    leader = cluster.wait_leader()
    stopwatch = watch(cluster.followers())
    leader.server.pause()
    wait_for("another leader", lambda: cluster.leader() not in (None, leader))
    assert stopwatch.seconds() < FAILOVER_S_MAX
    load.wait_progress()
    leader.server.resume()
    # It believed to be the leader, and must not acknowledge anything any more.
    wait_for("the old leader follows", lambda: leader.raft()["isLeading"] is False)
    load.wait_progress()


def kill_a_follower(cluster: Cluster, load: Load) -> None:
    follower = cluster.followers()[0]
    stopwatch = watch(one for one in cluster.members if one is not follower)
    follower.server.kill()
    load.wait_progress()
    assert stopwatch.seconds() < GAP_S_MAX, "a dead follower must not delay sends"
    follower.start()
    follower.server.wait_ready()
    wait_for("the member has caught up", lambda: cluster.is_level(follower))


def lose_and_restore_the_quorum(cluster: Cluster, load: Load) -> None:
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
def test_rolling_restart_is_invisible_to_producers(cluster: Cluster) -> None:
    """Each member stops cleanly: a leader hands over first, so the others need not detect that it
    is gone."""
    steps: list[Step] = []
    left = set(cluster.members)
    start_s, stopwatch = time.monotonic(), Stopwatch()
    with Load(cluster) as load:
        while left:
            leader = cluster.wait_leader()
            member = leader if leader in left else left.copy().pop()
            left.remove(member)
            steps.append(restart(cluster, load, member))
    assert sum(step.was_leader for step in steps) >= 2, steps
    assert max(step.without_leader_s - step.crowded_s for step in steps) <= WITHOUT_LEADER_S_MAX
    crowded_s = sum(step.crowded_s for step in steps)
    crowded_s += time.monotonic() - start_s - stopwatch.seconds()
    # A send fails after a second, which on a crowded machine may pass without a core.
    assert load.failed <= int(crowded_s), "a producer noticed a planned hand-over"
    assert max(load.gaps_s) < GAP_S_MAX + max(step.crowded_s for step in steps)
    check_all(cluster, load)


class Step(NamedTuple):
    """One step of a rolling restart."""

    was_leader: bool
    without_leader_s: float
    """How long there was no leader, from the logs of the members."""
    crowded_s: float
    """How long the processes waited for a core."""


def restart(cluster: Cluster, load: Load, member: Member) -> Step:
    was_leader, began_s, start_s = member is cluster.leader(), time.time(), time.monotonic()
    stopwatch = watch(one for one in cluster.members if one is not member)
    member.server.stop()
    load.wait_progress()
    crowded_s = time.monotonic() - start_s - stopwatch.seconds()
    member.start()
    member.server.wait_ready()
    wait_for("the member has caught up", lambda: cluster.is_level(member))
    events = cluster.events(began_s)
    served = [event.at_s for event in events if event.what == "raft.serves"]
    handed_over = [event.at_s for event in events if event.what == "raft.hands_over"]
    assert len(served) == len(handed_over) == was_leader, events
    if not was_leader:
        return Step(was_leader, 0.0, crowded_s)
    # By a transfer only: a member whose election timeout expires asks for pre-votes first.
    between = [event for event in events if handed_over[0] <= event.at_s <= served[0]]
    assert Role.PRE_CANDIDATE.value not in {event.facts.get("role") for event in between}, events
    return Step(was_leader, served[0] - handed_over[0], crowded_s)
