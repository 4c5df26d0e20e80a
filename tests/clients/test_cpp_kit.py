"""RocketMQ's C++ client against the broker of a test: an unmodified client in its own processes
sees time jump, sends rejected and the broker killed."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from clients.cpp_client import Clients
from tianzhou.broker.names import retry_topic
from tianzhou.testing import RunningBroker
from tianzhou.wire.names import SCHEDULE_TOPIC


@pytest.fixture
def theirs(cpp_python: Path, mq: RunningBroker, tmp_path: Path) -> Iterator[Clients]:
    made = Clients(cpp_python, tmp_path, mq.nameserver)
    yield made
    made.end()


def bodies(mq: RunningBroker, topic: str) -> list[bytes]:
    return [message.body for message in mq.stored(topic)]


def wait_until_sent_back(mq: RunningBroker, count: int) -> None:
    mq.wait_until(lambda: len(mq.stored(SCHEDULE_TOPIC)) == count, what=f"{count} retries wait")


def test_cpp_client_gets_a_delayed_message_after_the_clock_advances(
    mq: RunningBroker, theirs: Clients
) -> None:
    mq.create_topic("cpp-kit", queues=1)
    consumer = theirs.push("cpp-kit-readers", "cpp-kit")
    producer = theirs.producer()
    producer.send("sync", "cpp-kit", "in two hours", delay=18)
    producer.send("sync", "cpp-kit", "now", tags="t", keys="k")
    assert [row["body"] for row in consumer.wait_lines("got", 1)] == ["now"]
    mq.clock.advance(hours=2)
    assert [row["body"] for row in consumer.wait_lines("got", 2)] == ["now", "in two hours"]
    assert bodies(mq, "cpp-kit") == [b"now", b"in two hours"]
    assert mq.stored("cpp-kit")[0].tags == "t"
    # The consumer reports its offsets every five seconds, and when it ends.
    consumer.close()
    assert mq.committed("cpp-kit-readers", "cpp-kit") == {0: 2}
    assert mq.lag("cpp-kit-readers", "cpp-kit") == 0


def test_cpp_consumer_gets_retries_without_real_waiting(mq: RunningBroker, theirs: Clients) -> None:
    mq.create_topic("cpp-kit", queues=1)
    # The client looks up its retry topic when it starts, and then only after ten seconds.
    mq.create_topic(retry_topic("cpp-kit-readers"), queues=1)
    consumer = theirs.push("cpp-kit-readers", "cpp-kit", failures=2)
    theirs.producer().send("sync", "cpp-kit", "poison")
    for count, wait_s in ((1, 10), (2, 30)):
        wait_until_sent_back(mq, count)
        mq.clock.advance(seconds=wait_s)
    rows = consumer.wait_lines("got", 3)
    assert [row["reconsumed"] for row in rows] == [0, 1, 2]
    assert [row["failed"] for row in rows] == [True, True, False]


def test_cpp_producer_retries_a_rejected_send(mq: RunningBroker, theirs: Clients) -> None:
    mq.create_topic("cpp-kit", queues=2)
    producer = theirs.producer()
    with mq.faults.refuse_sends(topic="cpp-kit", count=1) as fault:
        producer.send("sync", "cpp-kit", "second try")
        assert fault.hits == 1
    assert bodies(mq, "cpp-kit") == [b"second try"]


def test_cpp_producer_recovers_after_a_broker_kill(mq: RunningBroker, theirs: Clients) -> None:
    mq.create_topic("cpp-kit", queues=1)
    producer = theirs.producer()
    producer.send("sync", "cpp-kit", "before")
    mq.kill()
    mq.start()
    assert bodies(mq, "cpp-kit") == [b"before"]

    def sent() -> bool:
        try:
            producer.send("sync", "cpp-kit", "after")
        except AssertionError:
            return False
        return True

    mq.wait_until(sent, within_s=30, what="the C++ producer sends again")
    assert b"after" in bodies(mq, "cpp-kit")
