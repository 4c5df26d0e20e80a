"""Real processes: members are wiped and repaired, added and removed; leadership is handed over."""

import json
import shutil
import subprocess
import time
from pathlib import Path

import pytest
from raft_cluster import GROUP, Cluster, Load, Member, wait_for

from tianzhou.testing.chaos.processes import TIANZHOU


def tianzhou(cluster: Cluster, *arguments: str) -> str:
    done = subprocess.run(
        [TIANZHOU, *arguments, "-n", cluster.nameserver, "--json"],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_members_are_repaired_added_and_removed(cluster: Cluster) -> None:
    with Load(cluster) as load:
        replace_a_disk(cluster, load)
        replace_dead_members(cluster, load)
        remove_a_leader(cluster, load)
    cluster.wait_equal()
    for member in cluster.members:
        assert set(load.acked) <= set(cluster.values(member))
    cluster.check_identical()


def replace_a_disk(cluster: Cluster, load: Load) -> None:
    wiped, other = cluster.followers()
    wiped.server.kill()
    shutil.rmtree(wiped.data)
    other.server.kill()
    wiped.start()
    wiped.server.wait_ready()
    # One member with its log and one without are not a majority.
    count = len(load.acked)
    wait_for("the member knows that it lost its log", lambda: wiped.raft()["isInDoubt"])
    leader = next(one for one in cluster.members if one not in (wiped, other))
    wait_for("there is no leader", lambda: leader.raft()["isLeading"] is False)
    assert len(load.acked) <= count + 1
    other.start()
    other.server.wait_ready()
    load.wait_progress()
    wait_for("the member is repaired", lambda: not wiped.raft()["isInDoubt"])


def was_done(cluster: Cluster, *arguments: str) -> bool:
    """Whether the command reports that there was nothing to do."""
    return json.loads(tianzhou(cluster, "raft", *arguments))["already"]


def add_member(cluster: Cluster, name: str) -> Member:
    """Add a new member; it is a voter when this returns."""
    member = cluster.add(name)
    member.start()
    member.server.wait_ready()
    assert not was_done(cluster, "add", GROUP, f"{name}={member.raft_address}")
    return member


def remove_member(cluster: Cluster, member: Member) -> None:
    assert not was_done(cluster, "remove", GROUP, member.name, "--yes")
    cluster.members.remove(member)


def voters(cluster: Cluster) -> list[str]:
    peers = cluster.wait_leader().raft()["peers"]
    return sorted(peer["name"] for peer in peers if peer["isVoter"])


def replace_dead_members(cluster: Cluster, load: Load) -> None:
    """While a minority is down, and producers send."""
    dead, other = cluster.followers()
    dead.server.kill()
    third = add_member(cluster, "n3")  # three of four must agree: all that are alive
    remove_member(cluster, dead)
    assert load.wait_progress() < 2
    other.server.kill()
    remove_member(cluster, other)  # two of three must agree
    fourth = add_member(cluster, "n4")
    assert load.wait_progress() < 2
    (first,) = [one for one in cluster.members if one not in (third, fourth)]
    assert voters(cluster) == sorted([first.name, "n3", "n4"])
    first.server.kill()
    assert load.wait_progress() < 8
    first.start()
    first.server.wait_ready()


def remove_a_leader(cluster: Cluster, load: Load) -> None:
    """It hands over first: otherwise the others would have to detect that it is gone."""
    tianzhou(cluster, "raft", "transfer", GROUP, "n3")
    leader, began_s = cluster.wait_leader(), time.time()
    assert leader.name == "n3"
    tianzhou(cluster, "raft", "remove", GROUP, "n3", "--yes")
    handed_over, serves = (
        next(event.at_s for event in cluster.events(began_s) if event.what == what)
        for what in ("raft.hands_over", "raft.serves")
    )
    assert serves - handed_over < 0.5
    cluster.members.remove(leader)
    leader.server.stop()
    load.wait_progress()
    left = sorted(member.name for member in cluster.members)
    assert voters(cluster) == left
    rows = json.loads(tianzhou(cluster, "raft", "status", GROUP))
    assert sorted(row["member"] for row in rows) == left
    rows = json.loads(tianzhou(cluster, "cluster"))
    assert {row["member"] for row in rows} >= set(left)
    repeat_commands(cluster, gone="n3")


def repeat_commands(cluster: Cluster, gone: str) -> None:
    """As an operator does who did not see the response."""
    leader = cluster.wait_leader()
    before = leader.raft()["term"]
    assert was_done(cluster, "transfer", GROUP, leader.name)
    assert was_done(cluster, "remove", GROUP, gone, "--yes")
    assert was_done(cluster, "add", GROUP, f"{leader.name}={leader.raft_address}")
    assert leader.raft()["isLeading"]
    assert leader.raft()["term"] == before
    with pytest.raises(AssertionError, match="remove it first"):
        tianzhou(cluster, "raft", "add", GROUP, f"{leader.name}=127.0.0.1:1")


def test_directory_of_another_member_is_rejected(tmp_path: Path) -> None:
    with Cluster(tmp_path, size=1) as cluster:
        cluster.start()
        (member,) = cluster.members
        member.server.stop()
        done = subprocess.run(
            [
                TIANZHOU,
                "broker",
                "--data",
                str(member.data),
                "-p",
                "0",
                "--raft-group",
                GROUP,
                "--raft-id",
                "other",
                "--raft-peers",
                "other=127.0.0.1:1",
            ],
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode != 0
        assert "belongs to n0 of group g, not to other" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--raft-group", "g"], "must be one of the peers"),
        (["--raft-group", "g", "--raft-peers", "n0:1", "--raft-id", "n0"], "invalid peer"),
        (["--raft-peers", "n0=h:1", "--raft-id", "n0"], "needs a name"),
    ],
)
def test_raft_broker_rejects_settings_that_cannot_work(
    tmp_path: Path, arguments: list[str], said: str
) -> None:
    done = subprocess.run(
        [TIANZHOU, "broker", "--data", str(tmp_path), *arguments],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode != 0
    assert said in done.stderr
