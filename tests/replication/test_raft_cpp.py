"""RocketMQ's C++ client on a Raft group: the leader is killed, sends continue, all is delivered."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from raft_cluster import TOPIC, Cluster

from clients.cpp_client import Clients, Producing, installed
from clients.waiting import wait_until

BACK_S = 60.0
"""The client does not check whether its connection broke: it waits 30 s for the response to a pull
that it had sent."""
SENT = 30
SENT_S_MAX = 5.0
"""From the kill to the next acknowledged message."""


@pytest.fixture
def clients(cluster: Cluster, tmp_path: Path) -> Iterator[Clients]:
    made = Clients(installed(), tmp_path / "cpp", cluster.nameserver)
    yield made
    made.end()


def send_until_acknowledged(producer: Producing, body: str) -> float:
    """Send, with as many attempts as needed; returns how long it took."""
    began = time.monotonic()

    def is_sent() -> bool:
        try:
            producer.send("sync", TOPIC, body)
        except AssertionError as error:
            if "'error'" not in str(error):
                raise  # the client process ended; other errors come from the group
            return False
        return True

    wait_until(is_sent, within_s=BACK_S, what=f"{body} is sent")
    return time.monotonic() - began


@pytest.mark.slow
def test_cpp_clients_survive_a_kill_of_the_leader(cluster: Cluster, clients: Clients) -> None:
    producer = clients.producer()
    for number in range(SENT):
        send_until_acknowledged(producer, f"before {number}")
    consumer = clients.push("cpp-readers", TOPIC)
    consumer.wait_lines("got", SENT, within_s=BACK_S)
    killed = cluster.wait_leader()
    killed.server.kill()
    assert send_until_acknowledged(producer, "after 0") < SENT_S_MAX
    for number in range(1, SENT):
        send_until_acknowledged(producer, f"after {number}")
    wanted = {f"{when} {number}" for when in ("before", "after") for number in range(SENT)}
    wait_until(
        lambda: {row["body"] for row in consumer.lines("got")} == wanted,
        within_s=BACK_S,
        what="everything was delivered after the kill",
    )
    assert cluster.wait_leader() is not killed
