"""Servers that go and come back, and errors that end in the caller's hands."""

import asyncio
from collections.abc import Callable

import pytest
from consuming import Notes, asynchronous, consuming, numbers, send, until

from tianzhou.broker.config import BrokerConfig
from tianzhou.client.aio.push_consumer import PushConsumer
from tianzhou.client.consumer_options import ConsumerOptions
from tianzhou.client.core.received import ReceivedMessage
from tianzhou.client.errors import GroupNotExist
from tianzhou.testing import RunningBroker

ALL = {"orders": "*"}


@asynchronous
async def test_consumer_continues_after_a_broker_restart(mq: RunningBroker) -> None:
    mq.create_topic("orders", queues=2)
    notes = Notes()
    async with consuming(mq, "g", ALL, notes.take):
        await send(mq, "orders", numbers(10))
        await until(lambda: len(notes.messages) == 10)
        await asyncio.to_thread(mq.restart)
        await send(mq, "orders", numbers(10, first=10))
        await until(lambda: set(notes.values) == set(range(20)))
    assert mq.lag("g", "orders") == 0


@asynchronous
async def test_consumer_continues_after_a_nameserver_restart(mq: RunningBroker) -> None:
    mq.create_topic("orders", queues=2)
    notes = Notes()
    async with consuming(mq, "g", ALL, notes.take, rebalance_interval_s=0.1) as consumer:
        await until(lambda: len(consumer.assignment) == 3)
        await asyncio.to_thread(mq.stop_nameserver)
        assert consumer._parts is not None
        cluster = consumer._parts.context.shared
        await cluster.routes.refresh_all()  # nobody answers: what is known stays
        await asyncio.sleep(0.3)
        assert len(consumer.assignment) == 3
        await asyncio.to_thread(mq.start_nameserver)
        await until(lambda: _answers(mq))
        await cluster.routes.refresh_all()
        await send(mq, "orders", numbers(10))
        await until(lambda: notes.values == list(range(10)))


def _answers(mq: RunningBroker) -> bool:
    """Whether the broker has announced itself again."""
    from tianzhou.net.blocking import BlockingPeer

    with BlockingPeer(mq.nameserver) as peer:
        header, _ = peer.call(105, {"topic": "orders"})
        return header.code == 0


@asynchronous
async def test_consumer_reconnects_after_a_cut_connection(mq: RunningBroker) -> None:
    mq.create_topic("orders", queues=2)
    notes = Notes()
    async with consuming(mq, "g", ALL, notes.take) as consumer:
        for first in range(0, 30, 10):
            await asyncio.to_thread(mq.faults.cut_connections)
            await send(mq, "orders", numbers(10, first=first))
            await until(lambda end=first + 10: set(notes.values) == set(range(end)))
        assert len(consumer.assignment) == 3


@asynchronous
async def test_consumer_continues_when_one_of_two_brokers_is_gone(
    mq_factory: Callable[..., RunningBroker],
) -> None:
    one = mq_factory(config=BrokerConfig(name="broker-a"))
    two = mq_factory(config=BrokerConfig(name="broker-b"), nameserver=one)
    for mq in (one, two):
        mq.create_topic("orders", queues=2)
    notes = Notes()
    async with consuming(one, "g", ALL, notes.take) as consumer:
        await until(lambda: len({q for q in consumer.assignment if q.topic == "orders"}) == 4)
        await send(one, "orders", numbers(20))
        await until(lambda: notes.values == list(range(20)))
        await asyncio.to_thread(two.kill)
        await send(one, "orders", numbers(20, first=20))
        await until(lambda: set(notes.values) == set(range(40)))
        await until(lambda: len({q for q in consumer.assignment if q.topic == "orders"}) == 2)
        await asyncio.to_thread(two.start)
        assert consumer._parts is not None
        await consumer._parts.context.shared.refresh("orders")  # which it does every 30 s by itself
        await until(lambda: len({q for q in consumer.assignment if q.topic == "orders"}) == 4)
        await send(one, "orders", numbers(20, first=40))
        await until(lambda: set(notes.values) == set(range(60)))
    assert one.lag("g", "orders") == two.lag("g", "orders") == 0


# Errors


@asynchronous
async def test_permanent_error_ends_the_consumer_loop(
    mq_factory: Callable[..., RunningBroker],
) -> None:
    mq = mq_factory(config=BrokerConfig(auto_create_groups=False))
    mq.create_topic("orders")

    async def consume() -> None:
        async with PushConsumer("g", nameserver=mq.nameserver, subscribe=ALL) as consumer:
            async for _ in consumer:
                pass

    with pytest.raises(GroupNotExist, match="group g does not exist"):
        await consume()


@asynchronous
async def test_permanent_error_ends_run_closed_and_stop(mq: RunningBroker) -> None:
    mq.create_topic("orders")
    notes = Notes()

    async def wait_closed() -> None:
        consumer = PushConsumer("g", nameserver=mq.nameserver, subscribe=ALL)
        consumer.listen(notes.take)
        await consumer.start()
        with pytest.raises(GroupNotExist):
            await consumer.closed()
        with pytest.raises(GroupNotExist):
            consumer.pause()
        await consumer.stop()

    consumer = PushConsumer("g", nameserver=mq.nameserver, subscribe=ALL)
    consumer.listen(notes.take)
    with mq.faults.refuse([11], 26, remark="no such group"):
        with pytest.raises(GroupNotExist, match="no such group"):
            await consumer.run()
        with pytest.raises(GroupNotExist, match="no such group"):
            await wait_closed()


@pytest.mark.parametrize("is_async", [True, False])
@pytest.mark.parametrize("orderly", [True, False])
def test_listener_that_raises_system_exit_ends_the_program(
    mq: RunningBroker, is_async: bool, orderly: bool
) -> None:
    mq.create_topic("orders", queues=1)

    def function(_message: ReceivedMessage) -> None:
        raise SystemExit(3)

    async def coroutine(_message: ReceivedMessage) -> None:
        raise SystemExit(3)

    async def run() -> None:
        await send(mq, "orders", [b"1"])
        options = ConsumerOptions(orderly=orderly)
        consumer = PushConsumer("g", nameserver=mq.nameserver, subscribe=ALL, options=options)
        consumer.listen(coroutine if is_async else function)
        await consumer.run()

    with pytest.raises(SystemExit):
        asyncio.run(run())
    assert mq.committed("g", "orders") == {0: 0}


@asynchronous
async def test_consumer_run_ends_when_it_is_cancelled(mq: RunningBroker) -> None:
    mq.create_topic("orders", queues=1)
    await send(mq, "orders", numbers(3))
    notes = Notes()
    consumer = PushConsumer("g", nameserver=mq.nameserver, subscribe=ALL)
    consumer.listen(notes.take)
    running = asyncio.ensure_future(consumer.run())
    await until(lambda: len(notes.messages) == 3)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert mq.committed("g", "orders") == {0: 3}
    # It has left: nobody is in the group any more.
    assert "g" not in mq.describe().partition("clients:")[2]


@asynchronous
async def test_consumer_continues_after_temporary_rejections(mq: RunningBroker) -> None:
    mq.create_topic("orders", queues=1)
    notes = Notes()
    for code in (2, 1, 16, 24, 25, 215, 14):
        with mq.faults.refuse([11], code, count=2) as fault:
            async with consuming(mq, "g", ALL, notes.take):
                await until(lambda seen=fault: seen.hits == 2)
                before = len(notes.messages)
                await send(mq, "orders", [b"%d" % code])
                await until(lambda count=before: len(notes.messages) > count)
    assert sorted(notes.values) == sorted([2, 1, 16, 24, 25, 215, 14])
