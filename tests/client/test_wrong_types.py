"""Arguments of the wrong type are a UsageError that names them, where the call was made."""

from collections.abc import Callable
from typing import Any

import pytest
from loops import Run

from tianzhou.base.errors import UsageError
from tianzhou.client import (
    Batching,
    ClientOptions,
    ConsumerOptions,
    LitePullConsumer,
    Message,
    MessageQueue,
    Producer,
    ProducerOptions,
    PullConsumer,
    PushConsumer,
    TransactionState,
)
from tianzhou.testing import RunningBroker

Call = Callable[[Any], Any]


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda: Message(any_(None), b"x"), "topic None is of type NoneType"),
        (lambda: Message("t", b"x", delay_level=any_(3.5)), "delay_level 3.5 is of type float"),
        (lambda: Message("t", b"x", flag=any_(1.0)), "flag 1.0 is of type float"),
        (lambda: Message("t", b"x", properties=any_({3: "a"})), "property name 3 is not text"),
        (lambda: Producer(any_(None)), "group None is of type NoneType"),
        (lambda: Producer("g", check=any_(3)), "check 3 is not a function"),
        (lambda: PushConsumer(any_(b"g")), "group b'g' is of type bytes"),
        (lambda: PushConsumer("g", subscribe=any_({3: "*"})), "topic 3 is of type int"),
        (lambda: ProducerOptions(tries_max=any_("3")), "tries_max '3' is of type str"),
        (lambda: ProducerOptions(send_timeout_s=any_(None)), "send_timeout_s None is of type"),
        (lambda: ProducerOptions(trace_topic=any_(3)), "trace_topic 3 is of type int"),
        (lambda: Batching(count_max=any_(1.5)), "count_max 1.5 is of type float"),
        (lambda: ClientOptions(instance_name=any_(7)), "instance_name 7 is of type int"),
        (lambda: ConsumerOptions(concurrency=any_(1.5)), "concurrency 1.5 is of type float"),
        (lambda: ConsumerOptions(pull_count=1 << 40), "pull_count is 1099511627776"),
        (lambda: ConsumerOptions(flow=any_(None)), "flow None is of type NoneType"),
        (lambda: ConsumerOptions(strategy=any_("average")), "strategy 'average' is not a function"),
        (lambda: ConsumerOptions(start_from=any_(None)), "time None is of type NoneType"),
    ],
)
def test_constructor_with_a_wrong_type_names_the_argument(
    call: Callable[[], object], named: str
) -> None:
    with pytest.raises(UsageError, match=named):
        call()


def any_(value: object) -> Any:
    """A value of the wrong type, past the type checker."""
    return value


def test_options_accept_integers_of_other_types() -> None:
    assert repr(Message("t", b"x", delay_level=True)) == repr(Message("t", b"x", delay_level=1))
    assert ConsumerOptions(suspend_s=1).suspend_s == 1


SENDS: list[tuple[Call, str]] = [
    (lambda p: p.send("x"), "message 'x' is of type str; it must be a Message"),
    (lambda p: p.send_async(b"x"), "message b'x' is of type bytes"),
    (lambda p: p.send_oneway(None), "message None is of type NoneType"),
    (lambda p: p.send_batch(["x"]), "message 'x' is of type str"),
    (lambda p: p.send_batch(iter([Message("t", b"x")])), "not list_iterator"),
    (lambda p: p.request("x"), "message 'x' is of type str"),
    (lambda p: p.transaction("x"), "message 'x' is of type str"),
    (lambda p: p.send(Message("t", b"x"), queue=3), "queue 3 is of type int"),
    (lambda p: p.send(Message("t", b"x"), select=3), "select 3 must be a function"),
    (lambda p: p.send(Message("t", b"x"), timeout_s="1"), "timeout_s '1' is not a number"),
    (lambda p: p.request(Message("t", b"x"), timeout_s=float("nan")), "timeout_s is nan"),
    (lambda p: p.request(Message("t", b"x"), timeout_s=float("inf")), "timeout_s must be finite"),
]


@pytest.mark.parametrize(("call", "named"), SENDS)
def test_send_with_a_wrong_type_names_the_argument(
    mq: RunningBroker, run: Run, call: Call, named: str
) -> None:
    async def body() -> None:
        async with Producer("makers", nameserver=mq.nameserver) as producer:
            with pytest.raises(UsageError, match=named):
                await call(producer)

    run(body)


CALLS: list[tuple[Call, str]] = [
    (lambda p: p.reply("x", b"y"), "request 'x' is of type str; it must be a message that a cons"),
    (lambda p: p.reply(Message("t", b"x"), b"y"), "request .* is of type Message"),
    (lambda p: p.recall(Message("t", b"x"), "h"), "topic .* is of type Message; it must be text"),
    (lambda p: p.recall("t", 5), "handle 5 is of type int; it must be text"),
    (lambda p: p.recall("t", "x"), "invalid recall handle 'x'"),
]


@pytest.mark.parametrize(("call", "named"), CALLS)
def test_reply_or_recall_with_a_wrong_type_names_the_argument(
    mq: RunningBroker, run: Run, call: Call, named: str
) -> None:
    async def body() -> None:
        async with Producer("makers", nameserver=mq.nameserver) as producer:
            with pytest.raises(UsageError, match=named):
                await call(producer)

    run(body)


QUEUE = MessageQueue(topic="t", broker_name="broker-a", queue_id=0)
OFFSETS: list[tuple[object, str]] = [
    (3.5, "offset 3.5 is of type float; it must be an integer from 0 to 9223372036854775807"),
    ("3", "offset '3' is of type str"),
    (None, "offset None is of type NoneType"),
    (1 << 70, "offset 1180591620717411303424 is out of range; it must be from 0 to 9223372036"),
    (-1, "offset -1 is out of range; it must be from 0"),
]
QUEUES: list[tuple[Call, str]] = [
    (lambda c: c.assign(QUEUE), "queues .* is of type MessageQueue; it must be a list of"),
    (lambda c: c.assign("t"), "queue 't' is of type str; it must be a MessageQueue"),
    (lambda c: c.assign(3), "queues 3 is of type int"),
    (lambda c: c.assign([QUEUE], 3), "3 is neither tags as text nor an Sql92"),
    (lambda c: c.seek(("t", 0), 3), "queue .* is of type tuple"),
    (lambda c: c.seek_to_end([]), "queue .* is of type list"),
    (lambda c: c.committed(3), "queue 3 is of type int"),
    (lambda c: c.commit(3), "offsets 3 is of type int; it must be a dict"),
    (lambda c: c.commit({QUEUE: 3.5}), "offset 3.5 is of type float"),
    (lambda c: c.commit({"t": 3}), "queue 't' is of type str"),
    (lambda c: c.poll("1"), "timeout_s '1' is of type str"),
    (lambda c: c.poll(count_max=1.5), "count_max 1.5 is of type float"),
    (lambda c: c.poll(count_max=0), "count_max 0 is out of range; it must be from 1"),
]


@pytest.mark.parametrize(("offset", "named"), OFFSETS)
def test_offset_of_the_wrong_type_or_out_of_range_is_named(
    mq: RunningBroker, run: Run, offset: Any, named: str
) -> None:
    mq.create_topic("t", queues=1)

    async def body() -> None:
        async with LitePullConsumer("readers", nameserver=mq.nameserver) as consumer:
            await consumer.assign([QUEUE])
            with pytest.raises(UsageError, match=named):
                await consumer.seek(QUEUE, offset)
        async with PullConsumer("readers", nameserver=mq.nameserver) as puller:
            with pytest.raises(UsageError, match=named):
                await puller.pull(QUEUE, offset)
            with pytest.raises(UsageError, match=named):
                await puller.commit(QUEUE, offset)

    run(body)


def test_lite_pull_consumer_with_a_wrong_type_names_the_argument(
    mq: RunningBroker, run: Run
) -> None:
    mq.create_topic("t", queues=1)

    async def body() -> None:
        for call, named in QUEUES:
            async with LitePullConsumer("readers", nameserver=mq.nameserver) as consumer:
                with pytest.raises(UsageError, match=named):
                    await call(consumer)
        async with LitePullConsumer("readers", nameserver=mq.nameserver) as consumer:
            with pytest.raises(UsageError, match="queues None is of type NoneType"):
                consumer.pause(any_(None))
            with pytest.raises(UsageError, match="queues 3 is of type int"):
                consumer.resume(any_(3))

    run(body)


PULLS: list[tuple[Call, str]] = [
    (lambda c: c.pull("t", 0), "queue 't' is of type str"),
    (lambda c: c.pull(QUEUE, 0, count_max="1"), "count_max '1' is of type str"),
    (lambda c: c.pull(QUEUE, 0, count_max=0), "count_max 0 is out of range"),
    (lambda c: c.pull(QUEUE, 0, wait_s="1"), "wait_s '1' is of type str"),
    (lambda c: c.pull(QUEUE, 0, wait_s=float("nan")), "wait_s is nan"),
    (lambda c: c.pull(QUEUE, 0, expression=3), "3 is neither tags as text nor an Sql92"),
    (lambda c: c.first(None), "queue None is of type NoneType"),
    (lambda c: c.end("t"), "queue 't' is of type str"),
    (lambda c: c.offset_at("t", 0), "queue 't' is of type str"),
    (lambda c: c.committed("t"), "queue 't' is of type str"),
    (lambda c: c.commit("t", 0), "queue 't' is of type str"),
]


@pytest.mark.parametrize(("call", "named"), PULLS)
def test_pull_consumer_with_a_wrong_type_names_the_argument(
    mq: RunningBroker, run: Run, call: Call, named: str
) -> None:
    mq.create_topic("t", queues=1)

    async def body() -> None:
        async with PullConsumer("readers", nameserver=mq.nameserver) as consumer:
            with pytest.raises(UsageError, match=named):
                await call(consumer)

    run(body)


@pytest.mark.parametrize("nameserver", [3, b"127.0.0.1:9876", ["127.0.0.1:9876"]])
def test_nameserver_that_is_not_text_is_named(run: Run, nameserver: object) -> None:
    async def body() -> None:
        with pytest.raises(UsageError, match=r"nameserver .* must be text"):
            await Producer("makers", nameserver=any_(nameserver)).start()

    run(body)


def test_check_that_returns_no_state_is_named_in_the_log(
    mq: RunningBroker, run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    answers: list[object] = ["COMMIT", TransactionState.COMMIT]

    async def body() -> None:
        async with Producer(
            "makers", nameserver=mq.nameserver, check=lambda _: any_(answers.pop(0))
        ) as producer:
            async with producer.transaction(Message("paid", b"x")) as transaction:
                transaction.leave_undecided()
            for left in (1, 0):
                mq.clock.advance(minutes=2)
                await mq.until(lambda left=left: len(answers) == left)
            await mq.until(lambda: len(mq.stored("paid")) == 1)

    run(body)
    assert "returned 'COMMIT' for transaction" in caplog.text
