"""Hooks: code of the user around each send and each delivery, which can reject a send and change a
message, and whose own mistakes harm nothing."""

import asyncio
import dataclasses
import logging
import threading
from collections.abc import Sequence
from typing import Any

import pytest
from consuming import asynchronous, numbers, send, until

from tianzhou.base.errors import UsageError
from tianzhou.client import (
    ConsumeContext,
    ConsumeHook,
    ConsumeResult,
    ConsumerOptions,
    LitePullConsumer,
    Message,
    Producer,
    ProducerOptions,
    PushConsumer,
    ReceivedMessage,
    SendContext,
    SendHook,
    StartPosition,
    sync,
)
from tianzhou.testing import RunningBroker

ALL = {"orders": "*"}


class Forbidden(Exception):
    pass


class Audit(SendHook):
    """Notes every call, stamps messages, and rejects some."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.contexts: list[SendContext] = []

    def check(self, context: SendContext) -> None:
        if context.message.tags == "secret":
            raise Forbidden("messages with this tag must not leave")

    def before(self, context: SendContext) -> None:
        self.calls.append(f"before {context.message.topic}")
        context.notes["began"] = True
        stamped = {**context.message.properties, "region": "north"}
        context.message = dataclasses.replace(context.message, properties=stamped)

    def after(self, context: SendContext) -> None:
        assert context.notes["began"]
        error = type(context.error).__name__ if context.error else ""
        self.calls.append(f"after {len(context.results)} {error}".rstrip())
        self.contexts.append(context)


def producer_of(mq: RunningBroker, *hooks: SendHook, **more: Any) -> Producer:
    return Producer("shop", nameserver=mq.nameserver, options=ProducerOptions(hooks=hooks, **more))


@asynchronous
async def test_send_hooks_see_every_kind_of_send(mq: RunningBroker) -> None:
    mq.create_topic("orders", queues=1)
    audit = Audit()
    async with producer_of(mq, audit) as producer:
        result = await producer.send(Message("orders", b"0"))
        assert audit.contexts[-1].results == [result]
        assert (audit.contexts[-1].group, audit.contexts[-1].took_s > 0) == ("shop", True)
        await producer.send_async(Message("orders", b"1"))
        await producer.send_batch([Message("orders", b"2"), Message("orders", b"3")])
        assert len(audit.contexts[-1].messages) == 2
        await producer.send_oneway(Message("orders", b"4"))
        assert audit.contexts[-1].is_oneway
        async with producer.transaction(Message("orders", b"5")):
            pass
    pair = ["before orders", "after 1"]
    batch, oneway = ["before orders", "after 2"], ["before orders", "after 0"]
    assert audit.calls == [*pair, *pair, *batch, *oneway, *pair]
    await mq.until(lambda: len(mq.stored("orders")) == 6)
    stamped = [m.properties.get("region") for m in mq.stored("orders")]
    assert stamped.count("north") == 5, "all but the second of the batch, which the hook left"


@asynchronous
async def test_send_hook_is_told_why_a_send_failed(mq: RunningBroker) -> None:
    audit = Audit()
    mq.create_topic("orders", queues=1)
    async with producer_of(mq, audit) as producer:
        (queue,) = await producer.queues("orders")
        with pytest.raises(UsageError, match="not of topic"):
            await producer.send(Message("others", b"x"), queue=queue)
        assert audit.calls[-1] == "after 0 UsageError"
        future = producer.send_async(Message("orders", b"x"))
        future.cancel()
        await until(lambda: audit.calls[-1] == "after 0 CancelledError")


@asynchronous
async def test_check_of_a_send_hook_rejects_the_message(mq: RunningBroker) -> None:
    mq.create_topic("orders", queues=1)
    audit = Audit()
    secret = Message("orders", b"x", tags="secret")
    async with producer_of(mq, audit) as producer:
        with pytest.raises(Forbidden, match="must not leave"):
            await producer.send(secret)
        with pytest.raises(Forbidden):
            producer.send_async(secret)
        with pytest.raises(Forbidden):
            await producer.send_batch([secret])
        with pytest.raises(Forbidden):
            await producer.send_oneway(secret)
        with pytest.raises(Forbidden):
            async with producer.transaction(secret):
                pass
        await producer.send(Message("orders", b"y"))
    assert [message.body for message in mq.stored("orders")] == [b"y"]
    assert audit.calls == ["before orders", "after 1"]


class Broken(SendHook):
    def before(self, context: SendContext) -> None:
        raise RuntimeError("no one home")

    def after(self, context: SendContext) -> None:
        raise RuntimeError("still no one")


@asynchronous
async def test_send_hook_that_raises_is_logged_and_the_message_is_sent(
    mq: RunningBroker, caplog: pytest.LogCaptureFixture
) -> None:
    mq.create_topic("orders", queues=1)
    audit = Audit()
    async with producer_of(mq, Broken(), audit) as producer:
        result = await producer.send(Message("orders", b"x"))
    assert audit.calls == ["before orders", "after 1"]
    first, second = (row for row in caplog.records if "hook" in row.getMessage())
    assert first.getMessage() == (
        "hook Broken.before raised RuntimeError for a send of producer group shop to topic orders;"
        " the message is not affected"
    )
    assert first.exc_info is not None
    facts = (second.__dict__["group"], second.__dict__["topic"], second.__dict__["message_id"])
    assert facts == ("shop", "orders", result.message_id)


def test_blocking_producer_calls_its_hooks(mq: RunningBroker) -> None:
    mq.create_topic("orders", queues=1)
    audit = Audit()
    options = ProducerOptions(hooks=[audit])
    with sync.Producer("shop", nameserver=mq.nameserver, options=options) as producer:
        producer.send(Message("orders", b"x"))
        with pytest.raises(Forbidden):
            producer.send(Message("orders", b"x", tags="secret"))
    assert audit.calls == ["before orders", "after 1"]


@asynchronous
async def test_hooks_are_called_in_their_order_and_around_spans(mq: RunningBroker) -> None:
    mq.create_topic("orders", queues=1)
    order: list[str] = []

    class Named(SendHook):
        def __init__(self, name: str) -> None:
            self.name = name

        def before(self, context: SendContext) -> None:
            order.append(self.name)

    async with producer_of(mq, Named("a"), Named("b"), spans=True) as producer:
        await producer.send(Message("orders", b"x"))
    assert order == ["a", "b"]


# Deliveries


class Timing(ConsumeHook):
    """Notes every delivery."""

    def __init__(self) -> None:
        self.rows: list[tuple[str, list[bytes], str]] = []
        self.threads: set[str] = set()

    def before(self, context: ConsumeContext) -> None:
        context.notes["seen"] = True
        self.rows.append(("before", [m.body for m in context.messages], context.group))

    def after(self, context: ConsumeContext) -> None:
        assert context.notes["seen"]
        self.threads.add(threading.current_thread().name)
        error = type(context.error).__name__ if context.error else ""
        what = f"{context.result.name} {error}".rstrip()
        self.rows.append(("after", [m.body for m in context.messages], what))


def options_of(*hooks: ConsumeHook, **more: Any) -> ConsumerOptions:
    return ConsumerOptions(start_from=StartPosition.FIRST, hooks=hooks, **more)


@pytest.mark.parametrize("is_async", [True, False])
@pytest.mark.parametrize("orderly", [True, False])
def test_consume_hooks_surround_listener_calls(
    mq: RunningBroker, is_async: bool, orderly: bool
) -> None:
    @asynchronous
    async def play() -> None:
        mq.create_topic("orders", queues=1)
        await send(mq, "orders", [b"good", b"bad"])
        timing = Timing()
        options = options_of(timing, orderly=orderly, suspend_s=60.0)
        consumer = PushConsumer("g", nameserver=mq.nameserver, subscribe=ALL, options=options)

        def take(message: ReceivedMessage) -> None:
            if message.body == b"bad":
                raise ValueError("bad")

        async def take_async(message: ReceivedMessage) -> None:
            take(message)

        consumer.listen(take_async if is_async else take)
        async with consumer:
            await until(lambda: len(timing.rows) >= 4)
        assert sorted(timing.rows[:4]) == [
            ("after", [b"bad"], "LATER ValueError"),
            ("after", [b"good"], "SUCCESS"),
            ("before", [b"bad"], "g"),
            ("before", [b"good"], "g"),
        ]
        assert ("MainThread" in timing.threads) is is_async

    play()


@asynchronous
async def test_consume_hooks_surround_messages_of_a_loop_and_of_a_batch(mq: RunningBroker) -> None:
    mq.create_topic("orders", queues=1)
    await send(mq, "orders", numbers(2))
    timing = Timing()
    async with PushConsumer(
        "g", nameserver=mq.nameserver, subscribe=ALL, options=options_of(timing)
    ) as consumer:
        async for message in consumer:
            if message.body == b"1":
                break
    assert timing.rows == [
        ("before", [b"0"], "g"),
        ("after", [b"0"], "SUCCESS"),
        ("before", [b"1"], "g"),
        ("after", [b"1"], "SUCCESS"),
    ]
    batches = Timing()
    listening = PushConsumer(
        "h", nameserver=mq.nameserver, subscribe=ALL, options=options_of(batches, batch_size=10)
    )

    @listening.listen_batches
    async def take(messages: list[ReceivedMessage]) -> ConsumeResult:  # pyright: ignore[reportUnusedFunction] # the consumer has it
        return ConsumeResult.SUCCESS

    async with listening:
        await until(lambda: batches.rows)
    assert batches.rows[:2] == [("before", numbers(2), "h"), ("after", numbers(2), "SUCCESS")]


@asynchronous
async def test_consume_hooks_see_polled_messages(mq: RunningBroker) -> None:
    mq.create_topic("orders", queues=1)
    await send(mq, "orders", numbers(2))
    timing = Timing()
    async with LitePullConsumer(
        "g", nameserver=mq.nameserver, subscribe=ALL, options=options_of(timing)
    ) as consumer:
        assert len(await consumer.poll()) == 2
    assert timing.rows == [("before", numbers(2), "g"), ("after", numbers(2), "SUCCESS")]


def test_blocking_consumer_calls_its_hooks(mq: RunningBroker) -> None:
    mq.create_topic("orders", queues=1)
    asyncio.run(send(mq, "orders", numbers(1)))
    timing = Timing()
    with sync.PushConsumer(
        "g", nameserver=mq.nameserver, subscribe=ALL, options=options_of(timing)
    ) as consumer:
        assert next(iter(consumer)).body == b"0"
    assert timing.rows[0] == ("before", [b"0"], "g")


class BrokenTiming(ConsumeHook):
    def before(self, context: ConsumeContext) -> None:
        raise RuntimeError("before")

    def after(self, context: ConsumeContext) -> None:
        raise RuntimeError("after")


@asynchronous
async def test_consume_hook_that_raises_is_logged_and_the_message_is_consumed(
    mq: RunningBroker, caplog: pytest.LogCaptureFixture
) -> None:
    mq.create_topic("orders", queues=1)
    await send(mq, "orders", numbers(1))
    options = options_of(BrokenTiming(), trace=True)
    got: list[bytes] = []
    consumer = PushConsumer("g", nameserver=mq.nameserver, subscribe=ALL, options=options)

    @consumer.listen
    async def take(message: ReceivedMessage) -> None:  # pyright: ignore[reportUnusedFunction] # the consumer has it
        got.append(message.body)

    async with consumer:
        await until(lambda: got == [b"0"])
        await until(lambda: len(rows(caplog.records)) == 2)
    record = rows(caplog.records)[0]
    assert record.getMessage().startswith(
        "hook BrokenTiming.before raised RuntimeError for a delivery to group g, message "
    )
    assert record.__dict__["queue_offset"] == 0
    assert mq.committed("g", "orders") == {0: 1}


def rows(records: Sequence[logging.LogRecord]) -> list[logging.LogRecord]:
    return [record for record in records if record.getMessage().startswith("hook ")]


# Mistakes


class Late(SendHook):
    async def after(self, context: SendContext) -> None:  # pyright: ignore[reportIncompatibleMethodOverride] # the mistake
        pass


def test_hooks_of_the_wrong_kind_are_rejected() -> None:
    wrong: Any = print
    with pytest.raises(UsageError, match="is not a SendHook; derive its class from it"):
        Producer("g", options=ProducerOptions(hooks=[wrong]))
    with pytest.raises(UsageError, match="after of hook Late is a coroutine function"):
        Producer("g", options=ProducerOptions(hooks=[Late()]))
    with pytest.raises(UsageError, match="is not a ConsumeHook"):
        ConsumerOptions(hooks=[wrong])
