"""Real processes: members are wiped and repaired, added and removed; leadership is handed over."""

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from raft_cluster import GROUP, Cluster, Load, wait_for

from tianzhou.testing.chaos.processes import TIANZHOU


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(tmp_path) as made:
        made.start()
        made.create_topic()
        yield made


def tianzhou(cluster: Cluster, *arguments: str) -> str:
    done = subprocess.run(
        [TIANZHOU, *arguments, "-n", cluster.nameserver, "--json"],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_members_are_repaired_added_and_removed(cluster: Cluster) -> None:
    with Load(cluster) as load:
        a_new_disk_counts_only_when_it_is_repaired(cluster, load)
        members_come_and_go(cluster, load)
    cluster.wait_equal()
    for member in cluster.members:
        assert set(load.acked) <= set(cluster.values(member))
    cluster.check_identical()


def a_new_disk_counts_only_when_it_is_repaired(cluster: Cluster, load: Load) -> None:
    wiped, other = cluster.followers()
    wiped.server.kill()
    shutil.rmtree(wiped.data)
    other.server.kill()
    wiped.start()
    wiped.server.wait_ready()
    # With one that remembers and one that does not there is no majority.
    count = len(load.acked)
    wait_for("it knows that it forgot", lambda: wiped.raft()["isInDoubt"])
    leader = next(one for one in cluster.members if one not in (wiped, other))
    wait_for("nobody leads", lambda: leader.raft()["isLeading"] is False)
    assert len(load.acked) <= count + 1
    other.start()
    other.server.wait_ready()
    load.wait_progress()
    wait_for("it is repaired", lambda: not wiped.raft()["isInDoubt"])


def members_come_and_go(cluster: Cluster, load: Load) -> None:
    added = cluster.add("n3")
    added.start()
    added.server.wait_ready()
    tianzhou(cluster, "raft", "add", GROUP, f"n3={added.raft_address}")
    tianzhou(cluster, "raft", "transfer", GROUP, "n3")
    assert cluster.wait_leader() is added
    load.wait_progress()
    tianzhou(cluster, "raft", "remove", GROUP, "n0", "--yes")
    (gone,) = [one for one in cluster.members if one.name == "n0"]
    gone.server.kill()
    cluster.members.remove(gone)
    rows = json.loads(tianzhou(cluster, "raft", "status", GROUP))
    assert sorted(row["member"] for row in rows) == ["n1", "n2", "n3"]
    rows = json.loads(tianzhou(cluster, "cluster"))
    assert {row["member"] for row in rows} >= {"n1", "n2", "n3"}
    added.server.kill()  # two of three are left
    assert load.wait_progress() < 8
    added.start()
    added.server.wait_ready()


def test_a_directory_of_another_member_is_refused(tmp_path: Path) -> None:
    with Cluster(tmp_path, size=1) as cluster:
        cluster.start()
        (member,) = cluster.members
        member.server.stop()
        done = subprocess.run(
            [TIANZHOU, "broker", "--data", str(member.data), "-p", "0", "--raft-group", GROUP,
             "--raft-id", "other", "--raft-peers", "other=127.0.0.1:1"],
            capture_output=True, text=True, timeout=30, check=False,
        )  # fmt: skip
        assert done.returncode != 0
        assert "belongs to n0 of group g, not to other" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--raft-group", "g"], "none of the peers"),
        (["--raft-group", "g", "--raft-peers", "n0:1", "--raft-id", "n0"], "is no peer"),
        (["--raft-peers", "n0=h:1", "--raft-id", "n0"], "needs a name"),
    ],
)
def test_settings_that_can_not_work(tmp_path: Path, arguments: list[str], said: str) -> None:
    done = subprocess.run(
        [TIANZHOU, "broker", "--data", str(tmp_path), *arguments],
        capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip
    assert done.returncode != 0
    assert said in done.stderr
