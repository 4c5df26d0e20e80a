"""Raft groups whose members differ: wrong clocks, and an older version in a rolling upgrade."""

import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from differing import HOUR_S, previous_commit, version_before, with_clock
from raft_cluster import GROUP, QUEUES, TOPIC, Cluster, Load, Member, check_all, wait_for

from tianzhou.testing.chaos import looking
from tianzhou.testing.chaos.processes import TIANZHOU

pytestmark = pytest.mark.slow


def transfer_leadership(cluster: Cluster, member: Member) -> None:
    """Transfer the leadership to a member that may lag for a while."""

    def is_leading() -> bool:
        if cluster.leader() is member:
            return True
        subprocess.run(
            [TIANZHOU, "raft", "transfer", GROUP, member.name, "-n", cluster.nameserver],
            capture_output=True,
            timeout=300,
            check=False,
        )
        return cluster.leader() is member

    wait_for(f"{member.name} leads", is_leading)


def kill_leader(cluster: Cluster, load: Load) -> None:
    """Kill the leader; another takes over, and the killed one follows it."""
    leader = cluster.wait_leader()
    leader.server.kill()
    wait_for("another leader", lambda: cluster.leader() not in (None, leader))
    load.wait_progress()
    leader.start()
    leader.server.wait_ready()
    wait_for("the member has caught up", lambda: cluster.is_level(leader))


@pytest.mark.timeout(300)
@pytest.mark.parametrize("older", [version_before, previous_commit])
def test_group_with_an_older_member_fails_over_and_is_upgraded_without_loss(
    older: Callable[[Path], list[str]], tmp_path: Path
) -> None:
    """The older member follows, leads, is killed in both roles, and is then upgraded."""
    before = older(tmp_path / "before")
    with Cluster(tmp_path / "group", within=[before]) as cluster:
        cluster.start()
        cluster.create_topic()
        old, new = cluster.members[:2]
        with Load(cluster) as load:
            for leader in (new, old):
                transfer_leadership(cluster, leader)
                load.wait_progress()
                kill_leader(cluster, load)
            transfer_leadership(cluster, new)
            old.server.kill()
            load.wait_progress()
            old.within.clear()
            old.start()
            old.server.wait_ready()
            wait_for("the upgraded member has caught up", lambda: cluster.is_level(old))
            transfer_leadership(cluster, old)
            load.wait_progress()
        check_all(cluster, load)


@pytest.mark.timeout(300)
def test_group_whose_clocks_differ_by_hours_fails_over_without_loss(tmp_path: Path) -> None:
    """Store times jump by an hour or two, forwards and backwards, at each change of the leader."""
    skews = [with_clock(HOUR_S), with_clock(-HOUR_S)]
    with Cluster(tmp_path / "group", within=skews) as cluster:
        cluster.start()
        cluster.create_topic()
        with Load(cluster) as load:
            for leader in cluster.members:
                transfer_leadership(cluster, leader)
                load.wait_progress()
                kill_leader(cluster, load)
        stored = looking.shown(cluster.wait_leader().address, TOPIC, QUEUES)
        ahead = {round((view.store_timestamp / 1000 - time.time()) / HOUR_S) for view in stored}
        assert ahead == {-1, 0, 1}, "each clock stored some of the messages"
        check_all(cluster, load)
