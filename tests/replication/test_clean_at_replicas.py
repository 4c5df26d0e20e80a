"""`tianzhou broker clean` with replicas: no file goes that a slave or a member still needs."""

import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
from ha_cluster import Group, Node, in_sync, until, until_equal
from raft_cluster import Cluster, Load, Member, wait_for

from tianzhou.net.blocking import BlockingPeer
from tianzhou.testing.chaos.processes import TIANZHOU
from tianzhou.wire._generated_codes import RequestCode, ResponseCode


def clean(nameserver: str, name: str) -> dict[str, Any]:
    """As an operator who wants everything to go that may go."""
    done = subprocess.run(
        [TIANZHOU, "broker", "clean", name, "--keep", "0", "--yes", "--json", "-n", nameserver],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def first_file(one: Node | Member) -> int:
    return min(int(path.name) for path in (one.data / "commitlog").iterdir())


@pytest.mark.slow
def test_clean_keeps_what_a_slave_does_not_have_and_then_cleans_both(tmp_path: Path) -> None:
    with Group(tmp_path) as group:
        slave = group.add(1)
        group.master.start()
        slave.start()
        group.create_topic()
        until(lambda: in_sync(group.master.address) == 1, "the slave follows")
        group.send(2_000, size=500)
        until_equal(group.master, slave)
        os.kill(slave.server.pid, signal.SIGSTOP)
        try:
            group.send(2_000, size=500, first=2_000)
            with BlockingPeer(group.master.address) as peer:
                ext = {"keepHours": "0"}
                _, body = peer.call(RequestCode.VIEW_CLEANING, ext)
        finally:
            os.kill(slave.server.pid, signal.SIGCONT)
        view = json.loads(body)
        assert view["files"] > 0, "what the slave has may go"
        assert view["held"] > 0
        assert view["heldBecause"] == "slave 1 does not have them yet"
        until_equal(group.master, slave)
        found = clean(group.nameserver, "broker-a")
        assert {row["files"] for row in found["brokers"].values()} == {view["files"] + view["held"]}
        until(lambda: first_file(slave) == first_file(group.master) > 0, "both removed them")
        # Only the master, which knows of its slaves, decides.
        with BlockingPeer(slave.address) as peer:
            answer, _ = peer.call(RequestCode.CLEAN_LOG, {"keepHours": "0"})
        assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert answer.ext["masterAddr"] == group.master.address


@pytest.mark.slow
def test_clean_of_a_raft_group_keeps_what_a_member_that_is_down_needs(cluster: Cluster) -> None:
    with Load(cluster) as load:
        wait_for("some messages", lambda: len(load.acked) > 20)
    cluster.wait_equal()
    down, other = cluster.followers()
    down.server.kill()
    fill(cluster)
    leader = cluster.wait_leader()
    held = clean(cluster.nameserver, "g")
    assert set(held["brokers"]) == {leader.address, other.address}
    assert held["removed"] is False
    (row, *_) = held["brokers"].values()
    assert row["held"] > 0
    assert row["held_because"] == f"member {down.name} does not have them yet"
    down.start()
    down.server.wait_ready()
    cluster.wait_equal()
    found = clean(cluster.nameserver, "g")
    assert found["removed"] is True
    wait_for(
        "the same files on all members",
        lambda: len({first_file(member) for member in cluster.members} - {0}) == 1,
    )
    cluster.check_identical()


def fill(cluster: Cluster) -> None:
    """More than three files."""
    from raft_cluster import TOPIC

    from tianzhou.client import Message
    from tianzhou.client.sync import Producer

    with Producer("filler", nameserver=cluster.nameserver) as producer:
        for _ in range(40):
            producer.send_batch([Message(TOPIC, os.urandom(1_000)) for _ in range(20)])
