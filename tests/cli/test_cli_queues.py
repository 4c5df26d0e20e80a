"""One queue, one offset, the last messages: `message show`, `consume` and `produce` by place."""

from pathlib import Path

import pytest

from cli.conftest import Run
from tianzhou.broker.config import BrokerConfig
from tianzhou.client.sync import Message, Producer
from tianzhou.testing import RunningBroker


def fill(mq: RunningBroker) -> None:
    """Messages 0 to 9, in turn in queues 0 and 1 of one topic."""
    mq.create_topic("orders", queues=2)
    with Producer("shop", nameserver=mq.nameserver) as producer:
        queues = producer.queues("orders")
        for number in range(10):
            tag = "even" if number % 2 == 0 else "odd"
            message = Message("orders", str(number).encode(), tags=tag)
            producer.send(message, queue=queues[number % 2])


def bodies(run: Run, *words: str) -> list[str]:
    return [one["body"] for one in run("consume", "orders", *words, "--until-end", "--json").lines]


def test_produce_sends_an_argument_or_a_file(run: Run, mq: RunningBroker, tmp_path: Path) -> None:
    run("topic", "create", "orders", "-q", "1")
    file = tmp_path / "body"
    file.write_bytes(b"two\nlines\n\x00")
    assert run("produce", "orders", "two apples", "-t", "fruit").code == 0
    assert run("produce", "orders", "--body-file", str(file)).code == 0
    assert run("produce", "orders", "--body-file", "-", stdin=b"piped\n").code == 0
    assert run("produce", "orders", '{"body": "x", "keys": ["T1"]}', "--format", "json").code == 0
    mq.wait_until(lambda: len(mq.stored("orders")) == 4, what="messages")
    first, second, third, fourth = mq.stored("orders")
    assert (first.body, first.tags) == (b"two apples", "fruit")
    assert (second.body, third.body) == (file.read_bytes(), b"piped\n")
    assert (fourth.body, fourth.keys) == (b"x", ("T1",))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("x", "--count", "3"), "BODY and --count are mutually exclusive"),
        (("x", "--body-file", "-"), "BODY and --body-file are mutually exclusive"),
        (("x", "--file", "-"), "BODY and --file are mutually exclusive"),
        (("",), "body is empty"),
    ],
)
def test_produce_with_two_body_sources_exits_with_code_2(
    run: Run, words: tuple[str, ...], said: str
) -> None:
    done = run("produce", "orders", *words)
    assert done.code == 2
    assert said in done.err


def test_consume_reads_one_queue_from_an_offset(run: Run, mq: RunningBroker) -> None:
    fill(mq)
    queue = ["1", "3", "5", "7", "9"]
    assert bodies(run, "--queue", "1", "--offset", "2") == queue[2:]
    assert bodies(run, "--queue", "1", "--from", "earliest") == queue
    assert bodies(run, "--queue", "1", "--last", "2") == queue[-2:]
    assert run("consume", "orders", "--queue", "2", "--until-end").code == 4


def test_consume_from_an_offset_beyond_the_end_reports_where_the_queue_ends(
    run: Run, mq: RunningBroker
) -> None:
    fill(mq)
    beyond = run("consume", "orders", "--queue", "1", "--offset", "9", "--until-end")
    assert (beyond.code, beyond.out) == (0, "")
    assert "queue 1 of orders on broker-a has no message with offset 9" in beyond.err
    assert "it has 0 to 4, and the next message gets 5; starting at 5" in beyond.err
    at_end = run("consume", "orders", "--queue", "1", "--offset", "5", "--until-end")
    assert (at_end.code, at_end.out, at_end.err) == (0, "", "")
    mq.create_topic("bare", queues=1)
    empty = run("consume", "bare", "--queue", "0", "--offset", "1", "--until-end")
    assert "it is empty, and the next message gets 0; starting at 0" in empty.err


def test_consume_shows_the_last_messages_of_all_queues_in_order(
    run: Run, mq: RunningBroker
) -> None:
    run("topic", "create", "orders", "-q", "2")
    for number in range(6):
        run("produce", "orders", str(number))
        mq.wait_until(lambda: len(mq.stored("orders")) == number + 1, what="a message")  # noqa: B023
    stored = sorted(mq.stored("orders"), key=lambda m: (m.store_timestamp, m.queue_offset))
    assert bodies(run, "--last", "3") == [message.body.decode() for message in stored[-3:]]
    assert len(bodies(run, "--last", "100")) == 6


def test_consume_accepts_several_tags_with_commas(run: Run, mq: RunningBroker) -> None:
    fill(mq)
    assert len(bodies(run, "--from", "earliest", "--tag", "even, odd")) == 10
    assert len(bodies(run, "--from", "earliest", "--tag", "even,none")) == 5


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--offset", "1"), "--offset needs --queue"),
        (("--broker", "b"), "--broker needs --queue"),
        (("--last", "1", "--from", "earliest"), "--from, --offset and --last are mutually"),
        (("--last", "1", "-g", "billing"), "cannot be combined with --group"),
    ],
)
def test_consume_with_an_invalid_position_exits_with_code_2(
    run: Run, words: tuple[str, ...], said: str
) -> None:
    done = run("consume", "orders", *words)
    assert done.code == 2
    assert said in done.err


def test_message_show_finds_a_message_by_queue_and_offset(run: Run, mq: RunningBroker) -> None:
    fill(mq)
    wanted = next(m for m in mq.stored("orders") if (m.queue_id, m.queue_offset) == (1, 3))
    found = run("message", "show", "orders", "--queue", "1", "--offset", "3", "--json").json
    assert (found["message_id"], found["body"]) == (wanted.message_id, wanted.body.decode())
    missing = run("message", "show", "orders", "--queue", "1", "--offset", "5")
    assert missing.code == 4
    assert "has no message with offset 5; it has 0 to 4" in missing.err
    for words in ((), ("--queue", "1"), ("--offset", "1"), ("ID", "--queue", "1", "--offset", "1")):
        assert run("message", "show", "orders", *words).code == 2


def test_message_show_of_an_ambiguous_queue_needs_the_broker(run: Run, mq: RunningBroker) -> None:
    with RunningBroker(nameserver=mq, config=BrokerConfig(name="broker-b")) as other:
        for broker in (mq, other):
            broker.create_topic("orders", queues=1)
        words = ("message", "show", "orders", "--queue", "0", "--offset", "0")
        mq.wait_until(lambda: run(*words).code == 2, what="a route with both brokers")
        assert "brokers broker-a, broker-b have queue 0 of orders; add --broker" in run(*words).err
        assert "it is empty" in run(*words, "--broker", "broker-b").err
        assert "no queue 0 on broker broker-z" in run(*words, "--broker", "broker-z").err
