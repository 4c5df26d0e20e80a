"""A Raft group of two voters survives no failure: its members warn of it, and so does `doctor`."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from raft_cluster import GROUP, Cluster, wait_for

from tianzhou.raft.quorum import is_pair
from tianzhou.testing.chaos.processes import TIANZHOU


@pytest.mark.parametrize(
    ("voters", "wanted"), [(0, False), (1, False), (2, True), (3, False), (4, False), (6, False)]
)
def test_is_pair_finds_even_groups_below_four(voters: int, *, wanted: bool) -> None:
    assert is_pair(voters) is wanted


def tianzhou(cluster: Cluster, *arguments: str) -> Any:
    done = subprocess.run(
        [TIANZHOU, *arguments, "-n", cluster.nameserver, "--json"],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode in (0, 6), done.stderr
    return json.loads(done.stdout)


def findings(cluster: Cluster) -> list[str]:
    found = tianzhou(cluster, "doctor")["findings"]
    return [row["said"] for row in found if "voters" in row["said"]]


@pytest.mark.slow
def test_group_of_two_warns_until_a_third_voter_joins(tmp_path: Path) -> None:
    with Cluster(tmp_path, size=2) as cluster:
        cluster.start()
        for member in cluster.members:
            (line,) = [
                line
                for line in (member.directory / "server.log").read_text().splitlines()
                if "alarm.began" in line and "raft_pair" in line
            ]
            assert "it survives no failure" in line
            assert f"tianzhou raft add {GROUP}" in line
        (said,) = findings(cluster)
        assert "2 voters and needs both" in said
        third = cluster.add("n2")
        third.start(settings=cluster.settings)
        third.server.wait_ready()
        tianzhou(cluster, "raft", "add", GROUP, f"n2={third.raft_address}")
        wait_for("the warning ends", lambda: not findings(cluster))
