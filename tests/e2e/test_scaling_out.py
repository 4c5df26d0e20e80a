"""Brokers that are added to a running cluster: real processes, and clients that keep running."""

import re
from collections import Counter
from collections.abc import Generator
from pathlib import Path

import pytest

from clients.waiting import wait_until
from e2e.broker_cluster import Cluster
from tianzhou.client import ClientOptions, ConsumerOptions, StartPosition
from tianzhou.client.sync import Admin, Message, Producer, PushConsumer, ReceivedMessage

pytestmark = pytest.mark.slow

NEVER_S = 3_600.0
"""Clients with this interval refresh their routes only when a broker tells them to."""

FAIR = 20
"""Of 60 sends; half of them unless a broker was so slow that the producer avoided it."""


@pytest.fixture
def cluster(tmp_path: Path) -> Generator[Cluster]:
    found = Cluster(tmp_path)
    try:
        yield found
    finally:
        found.end()


def send(cluster: Cluster, count: int) -> Counter[str]:
    """Send from a new producer; return the number of messages by broker."""
    with Producer("shop", nameserver=cluster.nameserver) as producer:
        results = [producer.send(Message("orders", b"two apples")) for _ in range(count)]
    return Counter(result.queue.broker_name for result in results)


def test_added_broker_gets_its_share_once_topics_are_spread(cluster: Cluster) -> None:
    cluster.start("broker-a")
    assert cluster.tell("topic", "create", "orders", "-q", "4").code == 0
    assert cluster.tell("group", "create", "billing", "--retries", "3").code == 0
    received = Counter[str]()

    def bill(message: ReceivedMessage) -> None:
        received[message.queue.broker_name] += 1

    consumer = PushConsumer(
        "billing",
        nameserver=cluster.nameserver,
        subscribe={"orders": "*"},
        client=ClientOptions(route_interval_s=NEVER_S),
        options=ConsumerOptions(start_from=StartPosition.FIRST),
    )
    consumer.listen(bill)
    running = Producer(
        "tills", nameserver=cluster.nameserver, client=ClientOptions(route_interval_s=0.5)
    )
    with consumer, running:
        assert send(cluster, 60) == {"broker-a": 60}
        wait_until(lambda: received["broker-a"] == 60, within_s=30, what="60 messages")
        cluster.start("broker-b")
        assert send(cluster, 60) == {"broker-a": 60}
        (warning,) = findings(cluster)
        assert warning["about"] == "broker broker-b"
        assert "no queue of topic orders" in warning["said"]
        assert warning["fix"] == "tianzhou topic spread orders"

        said = cluster.tell("topic", "spread", "orders", "--yes")
        assert said.code == 0, said.err
        assert re.search(r"broker-a +4 queues +4 queues", said.out), said.out
        assert re.search(r"broker-b +no queue +4 queues", said.out), said.out
        assert "groups with their settings: billing" in said.out
        shares = send(cluster, 60)
        assert shares.keys() == {"broker-a", "broker-b"}
        assert min(shares.values()) >= FAIR
        wait_until(
            lambda: received["broker-b"] == shares["broker-b"],
            within_s=30,
            what="messages of the new broker, whose queues only a notice can have announced",
        )
        wait_until(
            lambda: running.send(Message("orders", b"pears")).queue.broker_name == "broker-b",
            within_s=30,
            what="a message of a producer that was running before",
        )
        assert findings(cluster) == []
    with Admin(nameserver=cluster.nameserver) as admin:
        configs = admin.groups.show("billing").configs
    assert {name: config.retry_max_times for name, config in configs.items()} == {
        "broker-a": 3,
        "broker-b": 3,
    }
    again = cluster.tell("topic", "spread", "orders")  # asks nothing
    assert again.code == 0
    assert "nothing to do" in again.out


def findings(cluster: Cluster) -> list[dict[str, str]]:
    said = cluster.tell("doctor", "--observe", "0", "--json")
    assert said.code == 0, said.out
    return [row for row in said.json["findings"] if row["level"] != "fine"]


def test_old_broker_can_be_drained_after_its_topics_are_spread(cluster: Cluster) -> None:
    """Moving off a machine, as the page about upgrades describes it."""
    cluster.start("broker-a")
    for name in ("orders", "refunds"):
        assert cluster.tell("topic", "create", name, "-q", "2").code == 0
    cluster.start("broker-b")
    said = cluster.tell("topic", "spread", "--all", "--yes", "--json")
    assert [row["added"] for row in said.json["topics"]] == [["broker-b"], ["broker-b"]]
    assert cluster.tell("broker", "drain", "broker-a").code == 0
    assert send(cluster, 10) == {"broker-b": 10}
