"""Real processes: leaders and followers die, stand still and come back; nothing acknowledged is
lost, and clients go on."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from raft_cluster import Cluster, Load

KILLS = 3


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(tmp_path) as made:
        made.start()
        made.create_topic()
        yield made


def check(cluster: Cluster, load: Load) -> None:
    """Everything acknowledged is there, on every member, and they are alike to the last byte."""
    cluster.wait_equal()
    shown = [Counter(cluster.values(member)) for member in cluster.members]
    for member, found in zip(cluster.members, shown, strict=True):
        missing = [value for value in load.acked if value not in found]
        assert not missing, f"{member.name} lost {len(missing)} of {len(load.acked)}: {missing[:5]}"
        assert found == shown[0]
    cluster.check_identical()


@pytest.mark.slow
def test_leaders_that_are_killed(cluster: Cluster) -> None:
    times: list[float] = []
    with Load(cluster) as load:
        for _ in range(KILLS):
            leader = cluster.wait_leader()
            leader.server.kill()
            times.append(load.wait_progress())
            leader.start()
            leader.server.wait_ready()
    assert max(times) < 5, times
    check(cluster, load)
