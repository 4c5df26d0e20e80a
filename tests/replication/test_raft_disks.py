"""Real processes, real disks: a member with a full disk waits, one with a failing disk exits; the
group works without either."""

import resource
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from raft_cluster import OWN_DISK, Cluster, Load, Member, wait_for

from tianzhou.cmd.serve import FENCED

DISK_BYTES = 48 << 20


@pytest.fixture
def small_disks(tmp_path: Path) -> Iterator[Cluster]:
    tried = subprocess.run(
        [*OWN_DISK, "size=1m", str(tmp_path), "true"], capture_output=True, timeout=60, check=False
    )
    if tried.returncode:
        pytest.skip(f"no disk of a size can be mounted here: {tried.stderr.decode().strip()}")
    with Cluster(tmp_path, disk_bytes=DISK_BYTES) as made:
        made.start()
        made.create_topic()
        yield made


def fill(member: Member) -> None:
    """Fill the disk of a member to the last byte."""
    chunk = bytes(1 << 16)
    with member.filler.open("wb", buffering=0) as file:
        while True:
            try:
                file.write(chunk)
            except OSError:
                if len(chunk) == 1:
                    return
                chunk = chunk[: len(chunk) // 2]


@pytest.mark.slow
def test_member_with_a_full_disk_waits_and_catches_up(small_disks: Cluster) -> None:
    cluster = small_disks
    with Load(cluster) as load:
        leader = cluster.wait_leader()
        fill(leader)
        wait_for("another leads", lambda: cluster.leader() not in (None, leader))
        load.wait_progress()
        leader.filler.unlink()
        wait_for("the member has caught up", lambda: cluster.is_level(leader))
        follower = cluster.followers()[0]
        fill(follower)
        before = follower.raft()["applied"]
        wait_for(
            "the others continue", lambda: cluster.wait_leader().raft()["commit"] > before + 300
        )
        assert follower.raft()["last"] < cluster.wait_leader().raft()["commit"], (
            "the disk was not full"
        )
        assert cluster.wait_leader() is not follower
        follower.filler.unlink()
        wait_for("the member has caught up", lambda: cluster.is_level(follower))
    cluster.wait_equal()
    for member in cluster.members:
        assert member.server.lives == 1
        assert set(load.acked) <= set(cluster.values(member))


def fail_writes(member: Member) -> None:
    """Let every write to a file fail from now on, as on a dying disk."""
    resource.prlimit(member.server.pid, resource.RLIMIT_FSIZE, (1, resource.RLIM_INFINITY))


@pytest.mark.slow
def test_member_whose_disk_fails_exits_and_the_group_continues(cluster: Cluster) -> None:
    with Load(cluster) as load:
        for failed in (cluster.wait_leader(), cluster.followers()[0]):
            fail_writes(failed)
            assert failed.server.wait_ended(20) == FENCED
            load.wait_progress()
            failed.start()
            failed.server.wait_ready()
            wait_for("the member has caught up", lambda one=failed: cluster.is_level(one))
    cluster.wait_equal()
    for member in cluster.members:
        assert set(load.acked) <= set(cluster.values(member))
    cluster.check_identical()
