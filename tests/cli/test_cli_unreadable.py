"""`tianzhou consume` on a topic that cannot be read: one sentence that says why and what to do, and
an exit code."""

import json
from collections.abc import Callable

import pytest

from cli.conftest import Run, Said
from tianzhou.admin.commands import readable
from tianzhou.broker.config import BrokerConfig
from tianzhou.client.errors import TopicNotFound
from tianzhou.client.sync import Admin, Message, Producer, PullConsumer
from tianzhou.testing import RunningBroker
from tianzhou.wire.queues import MessageQueue

HOW = (("--until-end",), ("-g", "billing"), ())
"""To the end, as a member of a group, and until Ctrl-C."""


@pytest.fixture(autouse=True)
def orders(run: Run) -> None:
    run("topic", "create", "orders", "-q", "2")
    run("produce", "orders", stdin="1\n")


def told(said: Said, code: int, *words: str) -> None:
    assert said.code == code, said.err
    assert said.out == ""
    assert said.err.count("\n") == 1, said.err
    for word in words:
        assert word in said.err
    assert "Traceback" not in said.err


@pytest.mark.parametrize("how", HOW)
def test_consume_of_a_missing_topic_says_so(run: Run, how: tuple[str, ...]) -> None:
    told(run("consume", "nope", *how), 4, "'nope' is not known", "tianzhou topic list")


@pytest.mark.parametrize("how", HOW)
def test_consume_of_a_topic_without_read_permission_says_so(run: Run, how: tuple[str, ...]) -> None:
    run("topic", "update", "orders", "--permission", "w")
    fix = "tianzhou topic update orders --permission rw"
    told(run("consume", "orders", *how), 5, "orders cannot be read", "on broker-a", fix)
    run("topic", "update", "orders", "--permission", "rw")
    assert run("consume", "orders", "--from", "earliest", "--until-end").code == 0


@pytest.mark.parametrize("how", HOW)
def test_consume_of_a_topic_without_read_queues_says_so(
    run: Run, mq: RunningBroker, how: tuple[str, ...]
) -> None:
    with Admin(nameserver=mq.nameserver) as admin:
        admin.topics.update("orders", read_queues=0)
    told(run("consume", "orders", *how), 5, "no queues to read on broker-a", "--read-queues")


@pytest.mark.parametrize("how", HOW)
def test_consume_from_a_broker_without_read_permission_says_so(
    run: Run, how: tuple[str, ...]
) -> None:
    run("broker", "config", "broker-a", "--set", "brokerPermission=2")
    fix = "tianzhou broker config broker-a --set brokerPermission=6"
    told(run("consume", "orders", *how), 5, "broker-a delivers no messages", fix)


def test_consume_with_a_disabled_group_says_so(run: Run) -> None:
    run("group", "create", "billing")
    run("group", "update", "billing", "--no-consume")
    fix = "tianzhou group update billing --consume"
    told(run("consume", "orders", "-g", "billing"), 5, "billing is disabled on broker-a", fix)
    assert run("consume", "orders", "--from", "earliest", "--until-end").code == 0
    run("group", "update", "billing", "--consume")
    read = run("consume", "orders", "-g", "billing", "--from", "earliest", "--max", "1")
    assert read.code == 0


@pytest.mark.parametrize("how", HOW)
def test_consume_while_all_brokers_of_the_topic_are_away_says_so(
    run: Run, mq: RunningBroker, how: tuple[str, ...]
) -> None:
    mq.kill()
    mq.wait_until(
        lambda: run("cluster", "--json").json[0]["missing_since_ms"], what="the broker is gone"
    )
    words = ("orders cannot be read", "broker-a at", f"tianzhou broker -n {mq.nameserver}")
    told(run("consume", "orders", *how), 3, *words)


def test_consume_without_any_broker_says_so(run: Run, mq: RunningBroker) -> None:
    mq.stop()
    told(run("consume", "orders", "--until-end"), 3, "no broker is registered")


def test_consume_error_is_json_for_programs(run: Run) -> None:
    run("topic", "update", "orders", "--permission", "w")
    said = run("consume", "orders", "--json", "-g", "billing")
    error = json.loads(said.err)["error"]
    assert (error["kind"], error["exit_code"], said.code) == ("refused", 5, 5)
    assert "--permission rw" in error["message"]


def test_consume_with_a_group_reads_the_brokers_that_permit_it_and_names_the_others(
    run: Run, mq: RunningBroker, mq_factory: Callable[..., RunningBroker]
) -> None:
    mq_factory(config=BrokerConfig(name="broker-b"), nameserver=mq)
    run("topic", "create", "both", "-q", "1")
    with Producer("shop", nameserver=mq.nameserver) as producer:
        for broker in (mq.name, "broker-b"):
            queue = MessageQueue(topic="both", broker_name=broker, queue_id=0)
            producer.send(Message("both", b"1"), queue=queue)
    with Admin(nameserver=mq.nameserver) as admin:
        admin.groups.create("billing", consume_enabled=False, brokers=["broker-b"])
    said = run("consume", "both", "-g", "billing", "--from", "earliest", "--max", "1")
    assert said.code == 0, said.err
    assert "the queues of broker-b are not read" in said.err


@pytest.mark.parametrize("how", [("--until-end",), ("-g", "billing", "--max", "1")])
def test_consume_of_a_topic_that_is_being_created_waits_for_it(
    run: Run, mq: RunningBroker, monkeypatch: pytest.MonkeyPatch, how: tuple[str, ...]
) -> None:
    """A producer has stored the first message, and the NameServer learns of the topic only
    later."""
    asked: list[str] = []
    queues = PullConsumer.queues

    def not_yet(consumer: PullConsumer, topic: str) -> tuple[MessageQueue, ...]:
        asked.append(topic)
        if len(asked) <= 3:
            raise TopicNotFound(topic)
        return queues(consumer, topic)

    run("produce", "fresh", stdin="one\n")
    monkeypatch.setattr(PullConsumer, "queues", not_yet)
    monkeypatch.setattr(readable, "CREATED_S", 0.0)
    said = run("consume", "fresh", "--from", "earliest", "--format", "body", *how)
    assert (said.code, said.out) == (0, "one\n"), said.err
    assert len(asked) > 3
