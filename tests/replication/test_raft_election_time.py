"""The election times of the comparison page, measured: a leader hangs, and the others notice."""

import time
from pathlib import Path
from statistics import median
from typing import NamedTuple

import pytest
from raft_cluster import Cluster, wait_for

from tianzhou.raft.roles import Role
from tianzhou.testing.kit.stopwatch import Stopwatch

HANGS = 5
SHORT = {"raft_election_ms": "150", "raft_heartbeat_ms": "50"}
SLACK_S = 0.25
"""For scheduling and logging; the default settings take at least three times as long."""


class Election(NamedTuple):
    """Times since the leader was paused."""

    stood_s: float
    """When the first of the others stood for election."""
    served_s: float
    """When one of them served as the leader."""
    crowded_s: float
    """Of this time, how long no core was free."""


def election(cluster: Cluster) -> Election:
    leader, others = cluster.wait_leader(), cluster.followers()
    stopwatch, paused_s = Stopwatch(*(one.server.pid for one in others)), time.time()
    leader.server.pause()
    try:
        wait_for(
            "another leader",
            lambda: any(event.what == "raft.serves" for event in cluster.events(paused_s)),
        )
        crowded_s = time.time() - paused_s - stopwatch.seconds()
    finally:
        leader.server.resume()
    events = cluster.events(paused_s)
    stood = (event for event in events if event.facts.get("role") == Role.PRE_CANDIDATE.value)
    served = (event for event in events if event.what == "raft.serves")
    wait_for("the old leader follows", lambda: leader.raft()["isLeading"] is False)
    return Election(next(stood).at_s - paused_s, next(served).at_s - paused_s, crowded_s)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_short_election_settings_elect_within_the_stated_times(tmp_path: Path) -> None:
    with Cluster(tmp_path) as cluster:
        cluster.settings = SHORT
        cluster.start()
        found = [election(cluster) for _ in range(HANGS)]
    for one in found:
        assert one.stood_s - one.crowded_s < 0.3 + SLACK_S, found
        assert one.served_s - one.crowded_s < 0.3 + 2 * SLACK_S, found
    # Followers count from the last heartbeat, which came up to 50 ms before the pause.
    assert median(one.stood_s for one in found) > 0.1, found
