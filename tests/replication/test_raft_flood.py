"""Silent connections at the Raft port, more than the process may open files for."""

import os
import resource
import socket
from contextlib import ExitStack
from pathlib import Path

import pytest
from raft_cluster import Cluster, wait_for

from tianzhou.client import Message
from tianzhou.client.sync import Producer

pytestmark = pytest.mark.slow

FLOOD = 1_000
FILES = 512
SPARE = 100
"""Descriptors that must stay free while the port is full."""


def test_raft_port_under_a_flood_keeps_members_connected_and_the_store_working(
    tmp_path: Path,
) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < FLOOD + 200:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with Cluster(tmp_path, files=FILES) as cluster, ExitStack() as stack:
        cluster.start()
        leader = cluster.wait_leader()
        host, _, port = leader.raft_address.rpartition(":")
        for _ in range(FLOOD):
            stack.enter_context(socket.create_connection((host, int(port)), 5))
        used = len(os.listdir(f"/proc/{leader.server.pid}/fd"))
        assert used <= FILES - SPARE
        with Producer("flooded", nameserver=cluster.nameserver) as producer:
            for number in range(20):
                producer.send(Message(f"raft-flood-{number}", b"x"))
            follower = cluster.followers()[0]
            follower.server.kill()
            follower.start()
            follower.server.wait_ready()
            wait_for("the follower is back", lambda: cluster.is_level(follower))
            producer.send(Message("raft-flood-0", b"y"))
        assert cluster.leader() is leader
