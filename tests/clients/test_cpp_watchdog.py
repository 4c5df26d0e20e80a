"""The watchdog and RocketMQ's C++ consumers: a message that blocks, a process that hangs."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from clients.cpp_client import Clients
from tianzhou.broker.config import BrokerConfig
from tianzhou.broker.observe.watchdog import Finding, Kind
from tianzhou.testing import RunningBroker

pytestmark = pytest.mark.slow

TOPIC, GROUP = "cpp-watched", "cpp-watched-readers"


@pytest.fixture
def broker() -> Iterator[RunningBroker]:
    with RunningBroker(config=BrokerConfig(consumer_stuck_after_ms=1_000)) as running:
        running.create_topic(TOPIC, queues=1)
        yield running


@pytest.fixture
def theirs(cpp_python: Path, broker: RunningBroker, tmp_path: Path) -> Iterator[Clients]:
    made = Clients(cpp_python, tmp_path, broker.nameserver)
    yield made
    made.end()


def found(broker: RunningBroker, kind: Kind) -> Finding | None:
    """The current event of this kind for the topic, without its retries."""
    events: list[Finding] = broker._look(lambda running, _: running.events())
    return next((e for e in events if e.topic == TOPIC and e.kind is kind and not e.ended_ms), None)


def test_watchdog_reports_a_message_that_blocks_an_ordered_consumer(
    broker: RunningBroker, theirs: Clients
) -> None:
    producer = theirs.producer()
    for body in ("poison", "next"):
        producer.send("orderly", TOPIC, body, shard=0, keys=body)
    theirs.push(GROUP, TOPIC, model="orderly", failures=1_000).wait_lines("got", 2)
    event = broker.wait_until(
        lambda: found(broker, Kind.BLOCKED), within_s=20, what="the event is reported"
    )
    blocker, _ = broker.stored(TOPIC)
    assert (event.group, event.offset, event.waiting) == (GROUP, 0, 2)
    assert (event.message_id, event.keys) == (blocker.message_id, "poison")


def test_watchdog_reports_a_consumer_whose_process_hangs(
    broker: RunningBroker, theirs: Clients
) -> None:
    consumer = theirs.push(GROUP, TOPIC)
    producer = theirs.producer()
    producer.send("sync", TOPIC, "first")
    consumer.wait_lines("got", 1)
    consumer._process.send_signal(signal.SIGSTOP)
    try:
        producer.send("sync", TOPIC, "second")
        producer.send("sync", TOPIC, "third")
        event = broker.wait_until(
            lambda: found(broker, Kind.NOT_PULLED), within_s=20, what="the event is reported"
        )
        assert event.group == GROUP
        assert event.waiting >= 2
        assert event.client_id in event.text
    finally:
        consumer._process.send_signal(signal.SIGCONT)
    consumer.wait_lines("got", 3)
    broker.wait_until(
        lambda: found(broker, Kind.NOT_PULLED) is None, within_s=20, what="the event is cleared"
    )
