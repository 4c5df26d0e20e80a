"""The admin client inspects and resets C++ consumers."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from clients.cpp_client import Clients
from tianzhou.client.sync import Admin
from tianzhou.testing import RunningBroker
from tianzhou.wire.queues import MessageQueue


@pytest.fixture
def theirs(cpp_python: Path, mq: RunningBroker, tmp_path: Path) -> Iterator[Clients]:
    made = Clients(cpp_python, tmp_path, mq.nameserver)
    yield made
    made.end()


def queues(topic: str, count: int) -> set[MessageQueue]:
    return {
        MessageQueue(topic=topic, broker_name="broker-a", queue_id=number)
        for number in range(count)
    }


def test_admin_lists_cpp_consumers_and_their_queues(mq: RunningBroker, theirs: Clients) -> None:
    mq.create_topic("cpp-seen", queues=4)
    consumer = theirs.push("cpp-seen-readers", "cpp-seen")
    theirs.producer().send("sync", "cpp-seen", "seen", tags="t", keys="k-seen")
    consumer.wait_lines("got", 1)
    with Admin(nameserver=mq.nameserver) as admin:
        connected = admin.groups.consumers("cpp-seen-readers")
        assert connected is not None
        (client,) = connected.connection_set
        assert client.language == "CPP"
        assert connected.subscription_table["cpp-seen"].sub_string == "*"
        # The broker forwards the request to the consumer.
        info = admin.groups.running("cpp-seen-readers", client.client_id)
        assert queues("cpp-seen", 4) <= info.queues.keys()
        assert {one.topic for one in info.subscriptions} >= {"cpp-seen"}
        (message,) = admin.messages.by_key("cpp-seen", "k-seen")
        assert (message.body, message.tags) == (b"seen", "t")
        assert message.unique_id is not None
        found = admin.messages.by_id("cpp-seen", message.unique_id)
        assert found is not None
        assert found.offset_id == message.offset_id
        # The consumer reports its offsets when it ends.
        consumer.close()
        assert admin.offsets.progress("cpp-seen-readers", "cpp-seen").lag == 0
        assert admin.groups.consumers("cpp-seen-readers") is None


def test_offset_reset_moves_a_running_cpp_consumer(mq: RunningBroker, theirs: Clients) -> None:
    mq.create_topic("cpp-moved", queues=1)
    producer = theirs.producer()
    for number in range(3):
        producer.send("sync", "cpp-moved", str(number))
    first = theirs.push("cpp-moved-readers", "cpp-moved")
    # A new group starts at the end; a message sent now is the first that it receives.
    producer.send("sync", "cpp-moved", "3")
    first.wait_lines("got", 1)
    first.close()
    with Admin(nameserver=mq.nameserver) as admin:
        admin.offsets.reset_to_time("cpp-moved-readers", "cpp-moved", time_ms=0)
    again = theirs.push("cpp-moved-readers", "cpp-moved")
    rows = again.wait_lines("got", 4)
    assert [row["body"] for row in rows] == ["0", "1", "2", "3"]
