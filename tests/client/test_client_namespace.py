"""Clients with a namespace: users see plain names, and brokers see Java's names with the prefix."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from consuming import Notes, asynchronous, numbers, until

from tianzhou.base.errors import UsageError
from tianzhou.client import (
    Admin,
    ClientOptions,
    ConsumerOptions,
    LitePullConsumer,
    Message,
    MessageView,
    Producer,
    ProducerOptions,
    PullConsumer,
    PushConsumer,
    ReceivedMessage,
    StartPosition,
    TransactionState,
    sync,
)
from tianzhou.testing import RunningBroker

TENANT = ClientOptions(namespace="shop1")
FIRST = ConsumerOptions(start_from=StartPosition.FIRST, commit_interval_s=0.05)


def producer_of(mq: RunningBroker, **more: Any) -> Producer:
    return Producer("makers", nameserver=mq.nameserver, client=TENANT, **more)


async def names_at(mq: RunningBroker) -> tuple[set[str], set[str]]:
    """The topics and groups that the broker has, as tools see them."""
    async with Admin(nameserver=mq.nameserver, client=TENANT) as admin:
        return set(await admin.topics.all(internal=True)), set(await admin.groups.all())


@contextlib.asynccontextmanager
async def only_prefixed(mq: RunningBroker) -> AsyncGenerator[None]:
    """No topic or group without the namespace comes into being in the block."""
    before = await names_at(mq)
    yield
    after = await names_at(mq)
    new = [name for old, now in zip(before, after, strict=True) for name in now - old]
    assert new
    prefixes = ("shop1%", "%RETRY%shop1%", "%DLQ%shop1%")
    assert [name for name in new if not name.startswith(prefixes)] == []


@asynchronous
async def test_names_have_the_namespace_on_the_wire_only(mq: RunningBroker) -> None:
    mq.create_topic("shop1%orders", queues=2)
    async with only_prefixed(mq), producer_of(mq) as producer:
        queues = await producer.queues("orders")
        assert {queue.topic for queue in queues} == {"orders"}
        results = [
            await producer.send(Message("orders", b"0")),
            await producer.send(Message("orders", b"1"), queue=queues[1]),
            await producer.send(Message("orders", b"2", sharding_key="k")),
            await producer.send(Message("orders", b"3"), select=lambda found, _: found[0]),
            *await producer.send_batch([Message("orders", b"4"), Message("orders", b"5")]),
        ]
        await producer.send_oneway(Message("orders", b"6"))
        assert {result.queue.topic for result in results} == {"orders"}
        assert results[1].queue == queues[1]
        notes = Notes()
        consumer = PushConsumer(
            "stock",
            nameserver=mq.nameserver,
            subscribe={"orders": "*"},
            options=FIRST,
            client=TENANT,
        )
        consumer.listen(notes.take)
        async with consumer:
            await until(lambda: notes.values == list(range(7)))
            shown = {"orders", "%RETRY%stock"}  # the broker creates the second one meanwhile
            await until(lambda: {queue.topic for queue in consumer.assignment} == shown)
            assert {message.topic for message in notes.messages} == {"orders"}
            assert {message.queue.topic for message in notes.messages} == {"orders"}
    assert {message.topic for message in mq.stored("shop1%orders")} == {"shop1%orders"}
    assert sum(mq.committed("shop1%stock", "shop1%orders").values()) == 7
    assert mq.committed("stock", "orders") == {}


@asynchronous
async def test_batching_hooks_and_spans_work_with_a_namespace(mq: RunningBroker) -> None:
    from tianzhou.client import Batching, SendContext, SendHook

    mq.create_topic("shop1%orders", queues=2)
    seen: list[str] = []

    class Seeing(SendHook):
        def after(self, context: SendContext) -> None:
            seen.append(f"{context.group} {context.message.topic} {context.results[0].queue.topic}")

    options = ProducerOptions(batching=Batching(), hooks=[Seeing()], spans=True)
    async with producer_of(mq, options=options) as producer:
        sends = [producer.send(Message("orders", b"x", sharding_key=str(n % 3))) for n in range(9)]
        results = await asyncio.gather(*sends)
    assert {result.queue.topic for result in results} == {"orders"}
    assert seen == ["makers orders orders"] * 9
    assert len(mq.stored("shop1%orders")) == 9


@asynchronous
async def test_failed_message_is_retried_and_becomes_a_dead_letter_with_the_namespace(
    mq: RunningBroker,
) -> None:
    mq.create_topic("shop1%orders", queues=1)
    seen: list[tuple[str, str, int]] = []
    options = ConsumerOptions(start_from=StartPosition.FIRST, max_reconsume_times=1)
    consumer = PushConsumer(
        "stock", nameserver=mq.nameserver, subscribe={"orders": "*"}, options=options, client=TENANT
    )

    @consumer.listen
    async def fail(message: ReceivedMessage) -> None:  # pyright: ignore[reportUnusedFunction] # the consumer has it
        seen.append((message.topic, message.queue.topic, message.reconsume_times))
        message.retry(1)

    async with only_prefixed(mq), producer_of(mq) as producer:
        await producer.send(Message("orders", b"x"))
        async with consumer:
            await mq.until(lambda: len(seen) == 1)
            await mq.until(lambda: bool(mq.stored("%RETRY%shop1%stock")) or advance(mq))
            await mq.until(lambda: len(seen) == 2 or advance(mq))
            await mq.until(lambda: len(mq.dead_letters("shop1%stock")) == 1)
    assert seen == [("orders", "orders", 0), ("orders", "%RETRY%stock", 1)]


def advance(mq: RunningBroker) -> bool:
    mq.clock.advance(seconds=5)
    return False


@asynchronous
async def test_transactions_and_their_checks_work_with_a_namespace(mq: RunningBroker) -> None:
    mq.create_topic("shop1%payments", queues=1)
    checked: list[str] = []

    async def check(message: MessageView) -> TransactionState:
        checked.append(message.topic)
        return TransactionState.COMMIT

    async with producer_of(mq, check=check) as producer:
        async with producer.transaction(Message("payments", b"1")) as transaction:
            assert transaction.half.queue.topic == "payments"
        await mq.until(lambda: len(mq.stored("shop1%payments")) == 1)
        async with producer.transaction(Message("payments", b"2")) as undecided:
            undecided.leave_undecided()
        await mq.until(lambda: checked != [] or advance(mq))
        await mq.until(lambda: len(mq.stored("shop1%payments")) == 2)
    assert set(checked) == {"payments"}


@asynchronous
async def test_request_is_answered_with_a_namespace(mq: RunningBroker) -> None:
    mq.create_topic("shop1%prices", queues=1)
    async with producer_of(mq) as producer:
        consumer = PushConsumer(
            "clerks",
            nameserver=mq.nameserver,
            subscribe={"prices": "*"},
            options=FIRST,
            client=TENANT,
        )

        @consumer.listen
        async def answer(message: ReceivedMessage) -> None:  # pyright: ignore[reportUnusedFunction] # the consumer has it
            await producer.reply(message, b"3 yuan")

        async with consumer:
            reply = await producer.request(Message("prices", b"apple?"), timeout_s=30)
    assert reply.body == b"3 yuan"


@asynchronous
async def test_pull_consumers_take_and_return_plain_queues(mq: RunningBroker) -> None:
    mq.create_topic("shop1%orders", queues=1)
    async with producer_of(mq) as producer:
        for body in numbers(4):
            await producer.send(Message("orders", body))
    async with PullConsumer("peek", nameserver=mq.nameserver, client=TENANT) as pulling:
        (queue,) = await pulling.queues("orders")
        assert queue.topic == "orders"
        found = await pulling.pull(queue, await pulling.first(queue))
        assert [message.body for message in found.messages] == numbers(4)
        assert {(m.topic, m.queue) for m in found.messages} == {("orders", queue)}
        assert await pulling.end(queue) == 4
        await pulling.commit(queue, 2)
        assert await pulling.committed(queue) == 2
    assert mq.committed("shop1%peek", "shop1%orders") == {0: 2}
    options = ConsumerOptions(auto_ack=False)
    async with LitePullConsumer(
        "peek", nameserver=mq.nameserver, options=options, client=TENANT
    ) as polling:
        (queue,) = await polling.queues("orders")
        await polling.assign([queue])
        assert polling.assignment == {queue}
        assert [message.body for message in await polling.poll()] == [b"2", b"3"]
        await polling.seek(queue, 1)
        (message,) = await polling.poll(count_max=1)
        assert (message.body, message.topic, message.queue) == (b"1", "orders", queue)
        assert polling.position(queue) == 2
        polling.pause([queue])
        polling.resume([queue])
        await polling.seek_to_first(queue)
        assert len(await polling.poll()) == 4
        await polling.seek_to_end(queue)
        assert polling.position(queue) == 4
        assert await polling.offset_at(queue, 0) == 0
        await polling.commit({queue: 3})
        assert await polling.committed(queue) == 3
    assert mq.committed("shop1%peek", "shop1%orders") == {0: 3}


@asynchronous
async def test_consumer_of_another_namespace_gets_nothing(mq: RunningBroker) -> None:
    mq.create_topic("shop1%orders", queues=1)
    mq.create_topic("shop2%orders", queues=1)
    notes: dict[str, Notes] = {"shop1": Notes(), "shop2": Notes(), "": Notes()}
    topics = {"shop1": "orders", "shop2": "orders", "": "shop1%orders"}
    async with contextlib.AsyncExitStack() as stack:
        for name, taken in notes.items():
            consumer = PushConsumer(
                "stock",
                nameserver=mq.nameserver,
                subscribe={topics[name]: "*"},
                options=FIRST,
                client=ClientOptions(namespace=name),
            )
            consumer.listen(taken.take)
            await stack.enter_async_context(consumer)
        async with producer_of(mq) as producer:
            for body in numbers(3):
                await producer.send(Message("orders", body))
        await until(lambda: notes["shop1"].values == notes[""].values == [0, 1, 2])
    assert notes["shop2"].messages == []
    assert {message.topic for message in notes[""].messages} == {"shop1%orders"}


def test_blocking_clients_have_the_namespace_too(mq: RunningBroker) -> None:
    mq.create_topic("shop1%orders", queues=1)
    with sync.Producer("makers", nameserver=mq.nameserver, client=TENANT) as producer:
        assert producer.send(Message("orders", b"x")).queue.topic == "orders"
    with sync.PushConsumer(
        "stock",
        nameserver=mq.nameserver,
        subscribe={"orders": "*"},
        options=FIRST,
        client=TENANT,
    ) as consumer:
        message = next(iter(consumer))
        assert (message.topic, message.queue.topic) == ("orders", "orders")
    assert mq.committed("shop1%stock", "shop1%orders") == {0: 1}


def test_group_that_is_too_long_with_its_namespace_is_rejected(mq: RunningBroker) -> None:
    with pytest.raises(UsageError, match=r"invalid group 'shop1%ggg"):
        Producer("g" * 118, nameserver=mq.nameserver, client=TENANT)
