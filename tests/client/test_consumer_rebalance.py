"""Queues come and go, and no message is lost or skipped by that."""

import asyncio
from collections import Counter

import pytest
from consuming import Notes, asynchronous, consuming, numbers, send, until

from tianzhou.client.aio.push_consumer import PushConsumer
from tianzhou.client.core import assignment
from tianzhou.client.core.assignment import Strategy
from tianzhou.client.core.received import ReceivedMessage
from tianzhou.testing import RunningBroker

ALL = {"orders": "*"}


def ids(consumer: PushConsumer) -> list[int]:
    return sorted(queue.queue_id for queue in consumer.assignment if queue.topic == "orders")


@pytest.mark.parametrize(
    ("strategy", "shares"),
    [
        (assignment.average, [[0, 1, 2], [3, 4, 5], [6, 7]]),
        (assignment.circle, [[0, 3, 6], [1, 4, 7], [2, 5]]),
    ],
)
@asynchronous
async def test_rebalance_shares_the_queues_between_members(
    mq: RunningBroker, strategy: Strategy, shares: list[list[int]]
) -> None:
    mq.create_topic("orders", queues=8)
    notes = Notes()
    args = (mq, "g", ALL, notes.take)
    async with (
        consuming(*args, strategy=strategy) as one,
        consuming(*args, strategy=strategy) as two,
        consuming(*args, strategy=strategy) as three,
    ):
        everyone = sorted((one, two, three), key=lambda consumer: consumer.client_id)
        await until(lambda: [ids(consumer) for consumer in everyone] == shares)
        await send(mq, "orders", numbers(80))
        await until(lambda: len(notes.messages) == 80)
        await three.stop()
        await until(lambda: sorted(ids(one) + ids(two)) == list(range(8)))
        await send(mq, "orders", numbers(80, first=80))
        await until(lambda: len(notes.messages) == 160)
    assert notes.values == list(range(160))
    assert mq.lag("g", "orders") == 0


@asynchronous
async def test_rebalance_waits_for_in_flight_messages_and_hands_over_the_offset(
    mq: RunningBroker,
) -> None:
    """The member waits for in-flight messages, and the next owner starts after them."""
    mq.create_topic("orders", queues=2)
    await send(mq, "orders", numbers(40))
    finished = Counter[bytes]()

    async def slow(message: ReceivedMessage) -> None:
        await asyncio.sleep(0.05)
        finished[message.body] += 1

    async def quick(message: ReceivedMessage) -> None:
        finished[message.body] += 1

    async with consuming(mq, "g", ALL, slow, concurrency=2) as one:
        await until(lambda: finished)
        async with consuming(mq, "g", ALL, quick) as two:
            await until(lambda: len(ids(one)) == len(ids(two)) == 1)
            await until(lambda: len(finished) == 40)
    assert mq.lag("g", "orders") == 0
    # Only what was in hand when the new owner asked for the offset may have come twice.
    assert sum(finished.values()) <= 42


@asynchronous
async def test_rebalance_assigns_new_queues_when_the_route_changes(mq: RunningBroker) -> None:
    mq.create_topic("orders", queues=2)
    notes = Notes()
    async with consuming(mq, "g", ALL, notes.take) as consumer:
        await until(lambda: ids(consumer) == [0, 1])
        mq.create_topic("orders", queues=5)
        assert consumer._parts is not None
        await consumer._parts.context.shared.refresh("orders")
        await until(lambda: ids(consumer) == [0, 1, 2, 3, 4])
        await send(mq, "orders", numbers(20))
        await until(lambda: len(notes.messages) == 20)
        mq.create_topic("orders", queues=1)
        await consumer._parts.context.shared.refresh("orders")
        await until(lambda: ids(consumer) == [0])
    assert notes.values == list(range(20))


@asynchronous
async def test_rebalance_loses_nothing_while_members_join_and_leave(mq: RunningBroker) -> None:
    mq.create_topic("orders", queues=8)
    got = Counter[int]()

    async def listener(message: ReceivedMessage) -> None:
        await asyncio.sleep(0)
        got[int(message.body)] += 1

    async def come_and_go() -> None:
        for _ in range(6):
            async with consuming(mq, "g", ALL, listener):
                await asyncio.sleep(0.1)

    async with consuming(mq, "g", ALL, listener):
        async with asyncio.TaskGroup() as group:
            group.create_task(send(mq, "orders", numbers(1500)))
            group.create_task(come_and_go())
        await until(lambda: len(got) == 1500)
    assert sorted(got) == list(range(1500))
    assert mq.lag("g", "orders") == 0


@asynchronous
async def test_rebalance_that_fails_keeps_the_assignment(mq: RunningBroker) -> None:
    mq.create_topic("orders", queues=4)
    notes = Notes()
    async with consuming(mq, "g", ALL, notes.take, rebalance_interval_s=0.1) as consumer:
        await until(lambda: ids(consumer) == [0, 1, 2, 3])
        with mq.faults.refuse([38], 1) as fault:
            await until(lambda: fault.hits >= 2)
            assert ids(consumer) == [0, 1, 2, 3]
            await send(mq, "orders", numbers(8))
            await until(lambda: len(notes.messages) == 8)
