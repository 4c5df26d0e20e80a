"""Messages that fail: back with a growing delay, dead in the end; never in broadcasting."""

import asyncio

import pytest
from consuming import Notes, asynchronous, consuming, numbers, send, until

from tianzhou.base.errors import UsageError
from tianzhou.client.aio.push_consumer import PushConsumer
from tianzhou.client.consume import deliveries
from tianzhou.client.consumer_options import ConsumerOptions
from tianzhou.client.core.received import ConsumeResult, ReceivedMessage
from tianzhou.testing import RunningBroker

ALL = {"orders": "*"}
FAR = {"hours": 3}
"""Longer than the longest delay."""


class Failing(Notes):
    """Fails so often, then takes it."""

    def __init__(self, failures: int) -> None:
        super().__init__()
        self.failures = failures

    async def take(self, message: ReceivedMessage) -> None:
        self.messages.append(message)
        if len(self.messages) <= self.failures:
            raise ValueError("not yet")


@asynchronous
async def test_retry_of_a_failed_message_has_its_own_topic(mq: RunningBroker) -> None:
    mq.create_topic("orders", queues=1)
    await send(mq, "orders", [b"1"], tags="a", keys="K")
    notes = Failing(2)
    async with consuming(mq, "g", {"orders": "a"}, notes.take):
        for count in (1, 2):
            await until(lambda seen=count: len(notes.messages) == seen)
            await until(lambda seen=count: _returned(mq, seen))
            mq.clock.advance(**FAR)
        await until(lambda: len(notes.messages) == 3)
    assert [message.topic for message in notes.messages] == ["orders"] * 3
    assert [message.queue.topic for message in notes.messages] == ["orders", "%RETRY%g", "%RETRY%g"]
    assert [message.reconsume_times for message in notes.messages] == [0, 1, 2]
    assert {message.message_id for message in notes.messages} == {notes.messages[0].message_id}
    assert {message.origin_id for message in notes.messages} == {notes.messages[0].offset_id}
    assert mq.lag("g", "orders") == 0
    assert mq.lag("g", "%RETRY%g") == 0


def _returned(mq: RunningBroker, times: int) -> bool:
    """Whether the broker has taken it back so often: it waits in the delay topic."""
    return len(mq.stored("SCHEDULE_TOPIC_XXXX")) >= times


@asynchronous
async def test_retry_delay_grows_until_the_message_is_a_dead_letter(mq: RunningBroker) -> None:
    mq.create_topic("orders", queues=1)
    await send(mq, "orders", [b"1"])
    notes = Failing(1000)
    async with consuming(mq, "g", ALL, notes.take):
        for count in range(1, 17):
            await until(lambda seen=count: len(notes.messages) == seen)
            await until(lambda seen=count: _returned(mq, seen))
            mq.clock.advance(**FAR)
        await until(lambda: len(notes.messages) == 17)
        await until(lambda: mq.dead_letters("g"))
    levels = [int(message.properties["DELAY"]) for message in mq.stored("SCHEDULE_TOPIC_XXXX")]
    assert levels == list(range(3, 19))  # 10 s to 2 h
    (dead,) = mq.dead_letters("g")
    assert dead.body == b"1"
    assert len(notes.messages) == 17
    assert mq.lag("g", "%RETRY%g") == 0


@pytest.mark.parametrize("limit", [0, 1])
@asynchronous
async def test_retry_limit_of_the_consumer_is_used(mq: RunningBroker, limit: int) -> None:
    mq.create_topic("orders", queues=1)
    await send(mq, "orders", [b"1"])
    notes = Failing(1000)
    async with consuming(mq, "g", ALL, notes.take, max_reconsume_times=limit):
        for count in range(1, limit + 1):
            await until(lambda seen=count: len(notes.messages) == seen)
            await until(lambda seen=count: _returned(mq, seen))
            mq.clock.advance(**FAR)
        await until(lambda: mq.dead_letters("g"))
    assert len(notes.messages) == limit + 1


@asynchronous
async def test_retry_delay_is_chosen_by_the_listener(mq: RunningBroker) -> None:
    mq.create_topic("orders", queues=1)
    await send(mq, "orders", numbers(4))

    async def listener(message: ReceivedMessage) -> ConsumeResult | None:
        match message.body:
            case b"0":
                message.retry(5)
            case b"1":
                message.retry(-1)
            case b"2":
                return ConsumeResult.LATER
            case _:
                pass
        return None

    async with consuming(mq, "g", ALL, listener):
        await until(lambda: _returned(mq, 2))
        await until(lambda: mq.dead_letters("g"))
    returned = {
        message.body: int(message.properties["DELAY"])
        for message in mq.stored("SCHEDULE_TOPIC_XXXX")
    }
    assert returned == {b"0": 5, b"2": 3}
    assert [message.body for message in mq.dead_letters("g")] == [b"1"]
    assert mq.lag("g", "orders") == 0


@asynchronous
async def test_retry_of_one_message_of_a_batch_sends_back_only_it(mq: RunningBroker) -> None:
    mq.create_topic("orders", queues=1)
    await send(mq, "orders", numbers(8))
    options = ConsumerOptions(batch_size=8)
    consumer = PushConsumer("g", nameserver=mq.nameserver, subscribe=ALL, options=options)

    @consumer.listen_batches
    def listener(messages: list[ReceivedMessage]) -> None:  # pyright: ignore[reportUnusedFunction] # the consumer has it
        for message in messages:
            if message.body == b"5":
                message.retry()

    async with consumer:
        await until(lambda: _returned(mq, 1))
    assert [message.body for message in mq.stored("SCHEDULE_TOPIC_XXXX")] == [b"5"]
    assert mq.lag("g", "orders") == 0


@asynchronous
async def test_retry_in_a_loop_sends_the_message_back(mq: RunningBroker) -> None:
    mq.create_topic("orders", queues=1)
    await send(mq, "orders", numbers(3))
    async with PushConsumer("g", nameserver=mq.nameserver, subscribe=ALL) as consumer:
        async for message in consumer:
            if message.body == b"1":
                message.retry()
                message.ack()  # too late: it was sent back
            if message.body == b"2":
                with pytest.raises(UsageError, match="delay level 19"):
                    message.retry(19)
                break
        await until(lambda: _returned(mq, 1))
        await consumer.commit()
    assert mq.lag("g", "orders") == 0


@asynchronous
async def test_retry_that_the_broker_rejects_is_done_locally(
    mq: RunningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deliveries, "AGAIN_S", 0.1)
    mq.create_topic("orders", queues=1)
    await send(mq, "orders", numbers(3))
    notes = Failing(2)
    with mq.faults.refuse([36], 1):
        async with consuming(mq, "g", ALL, notes.take, concurrency=1):
            await until(lambda: len(notes.messages) >= 4)
            assert mq.stored("SCHEDULE_TOPIC_XXXX") == []
            await until(lambda: len(notes.messages) == 5)
    assert notes.values == [0, 0, 1, 1, 2]
    assert [m.reconsume_times for m in notes.messages if m.body == b"0"] == [0, 1]
    assert mq.lag("g", "orders") == 0


@asynchronous
async def test_retry_of_a_message_that_times_out_is_sent_back(mq: RunningBroker) -> None:
    mq.create_topic("orders", queues=1)
    await send(mq, "orders", numbers(2))
    stuck, ended = asyncio.Event(), asyncio.Event()

    async def listener(message: ReceivedMessage) -> None:
        if message.body == b"0" and not message.reconsume_times:
            await stuck.wait()
            ended.set()

    async with consuming(mq, "g", ALL, listener, consume_timeout_s=0.2) as consumer:
        await until(lambda: _returned(mq, 1))
        await consumer.commit()
        assert mq.lag("g", "orders") == 0
        stuck.set()
        await ended.wait()  # what it says now no longer counts
    assert len(mq.stored("SCHEDULE_TOPIC_XXXX")) == 1


@asynchronous
async def test_broadcast_does_not_retry(mq: RunningBroker, tmp_path: object) -> None:
    mq.create_topic("orders", queues=1)
    await send(mq, "orders", numbers(3))
    notes = Failing(2)
    async with consuming(
        mq,
        "g",
        ALL,
        notes.take,
        broadcasting=True,
        offsets_directory=tmp_path,
        start_from="19700102000000",
    ) as consumer:
        await until(lambda: len(notes.messages) == 3)
        assert {queue.topic for queue in consumer.assignment} == {"orders"}
    assert mq.stored("SCHEDULE_TOPIC_XXXX") == []
    assert notes.values == [0, 1, 2]
