"""How consumers are stopped and settled from places one would not expect."""

import asyncio
import contextlib
import threading

import pytest
from consuming import asynchronous, consuming, numbers, send, until

from tianzhou.base.errors import UsageError
from tianzhou.client import ConsumerOptions, LitePullConsumer, PushConsumer, ReceivedMessage
from tianzhou.client.core.offsets import StartPosition
from tianzhou.client.errors import ClientClosed
from tianzhou.client.sync import PushConsumer as BlockingConsumer
from tianzhou.testing import RunningBroker

ALL = {"orders": "*"}
PROMPT_S = 30.0
"""Far less than the 30 seconds for which stopping waits for messages in work."""


@pytest.mark.parametrize("orderly", [False, True])
@asynchronous
async def test_coroutine_listener_can_stop_its_consumer(mq: RunningBroker, orderly: bool) -> None:
    """The listener does not wait for itself, and its message counts as consumed."""
    mq.create_topic("orders", queues=1)
    await send(mq, "orders", numbers(1))
    options = ConsumerOptions(orderly=orderly, start_from=StartPosition.FIRST)
    consumer = PushConsumer("g", nameserver=mq.nameserver, subscribe=ALL, options=options)

    @consumer.listen
    async def stop(_message: ReceivedMessage) -> None:
        await consumer.stop()

    await asyncio.wait_for(consumer.run(), PROMPT_S)
    assert mq.committed("g", "orders") == {0: 1}


@pytest.mark.parametrize("orderly", [False, True])
def test_function_listener_can_stop_its_consumer(mq: RunningBroker, orderly: bool) -> None:
    mq.create_topic("orders", queues=1)
    asyncio.run(send(mq, "orders", numbers(1)))
    options = ConsumerOptions(orderly=orderly, start_from=StartPosition.FIRST)
    consumer = BlockingConsumer("g", nameserver=mq.nameserver, subscribe=ALL, options=options)
    consumer.listen(lambda message: consumer.stop())  # checkers know what it is given
    with consumer:
        consumer.closed(PROMPT_S)
    assert mq.committed("g", "orders") == {0: 1}


@pytest.mark.parametrize("orderly", [False, True])
@asynchronous
async def test_messages_of_a_loop_can_be_acknowledged_by_threads(
    mq: RunningBroker, orderly: bool
) -> None:
    """A coroutine that waits for the acknowledgement in the event loop is woken at once."""
    asyncio.get_running_loop().set_debug(True)  # which refuses what is not safe for threads
    mq.create_topic("orders", queues=1)
    await send(mq, "orders", numbers(1))
    options = ConsumerOptions(
        auto_ack=False, orderly=orderly, start_from=StartPosition.FIRST, release_timeout_s=60
    )
    async with PushConsumer(
        "g", nameserver=mq.nameserver, subscribe=ALL, options=options
    ) as consumer:
        message = await anext(aiter(consumer))
        stopping = asyncio.create_task(consumer.stop())
        await until(lambda: not consumer.assignment)
        for _ in range(5):
            await asyncio.sleep(0)  # and now it waits for the message
        await asyncio.to_thread(message.ack)
        await asyncio.wait_for(stopping, PROMPT_S)
    assert mq.committed("g", "orders") == {0: 1}


@asynchronous
async def test_stopped_consumer_rejects_subscriptions(mq: RunningBroker) -> None:
    mq.create_topic("orders", queues=1)
    async with consuming(mq, "g", ALL, lambda _: None) as consumer:
        pass
    with pytest.raises(ClientClosed, match="not running"):
        consumer.subscribe("others")
    with pytest.raises(ClientClosed, match="not running"):
        consumer.unsubscribe("orders")


@asynchronous
async def test_subscriptions_may_change_at_any_time(mq: RunningBroker) -> None:
    """While the consumer starts, and while it acquires queues."""
    for topic in ("orders", "others"):
        mq.create_topic(topic, queues=2)
    got: list[bytes] = []
    options = ConsumerOptions(start_from=StartPosition.FIRST)
    consumer = PushConsumer("g", nameserver=mq.nameserver, subscribe=ALL, options=options)
    consumer.listen(lambda message: got.append(bytes(message.body)))
    starting = asyncio.create_task(consumer.start())
    while not starting.done():
        await asyncio.sleep(0)
        with contextlib.suppress(ClientClosed):
            consumer.subscribe("others")
            consumer.unsubscribe("others")
    await starting
    for pause_s in (0, 0, 0.001, 0.002, 0.01, 0.02, 0.25) * 3:
        consumer.subscribe("others")
        await asyncio.sleep(pause_s)
        consumer.unsubscribe("others")
    consumer.subscribe("others")
    await send(mq, "others", numbers(10))
    await until(lambda: len(set(got)) == 10)
    await consumer.stop()


@asynchronous
async def test_another_expression_applies_to_assigned_queues(mq: RunningBroker) -> None:
    """Also if a pull with the earlier one waits at the broker."""
    mq.create_topic("orders", queues=1)
    got: list[bytes] = []
    options = ConsumerOptions(start_from=StartPosition.FIRST)
    consumer = PushConsumer(
        "g", nameserver=mq.nameserver, subscribe={"orders": "paid"}, options=options
    )
    consumer.listen(lambda message: got.append(bytes(message.body)))
    async with consumer:
        await send(mq, "orders", [b"1"], tags="paid")
        await until(lambda: got == [b"1"])
        consumer.subscribe("orders", "sent")
        await send(mq, "orders", [b"2"], tags="paid")
        await send(mq, "orders", [b"3"], tags="sent")
        await until(lambda: len(got) == 2)
        assert got == [b"1", b"3"]
        assert len(consumer.assignment) >= 1
    assert mq.committed("g", "orders") == {0: 3}


def test_consumer_used_in_another_loop_raises(mq: RunningBroker) -> None:
    mq.create_topic("orders", queues=1)
    push = PushConsumer("push", nameserver=mq.nameserver, subscribe=ALL)
    pull = LitePullConsumer("pull", nameserver=mq.nameserver, subscribe=ALL)

    async def start() -> None:
        await push.start()
        await pull.start()
        failures: list[str] = []

        def elsewhere() -> None:
            for consumer in (push, pull):
                with pytest.raises(UsageError, match="not to this one") as refused:
                    asyncio.run(asyncio.wait_for(consumer.commit(), PROMPT_S))
                failures.append(str(refused.value))

        await asyncio.to_thread(elsewhere)
        assert len(failures) == 2
        await push.stop()
        await pull.stop()

    asyncio.run(start())


def test_listeners_use_no_more_threads_than_the_concurrency(mq: RunningBroker) -> None:
    mq.create_topic("orders", queues=4)
    asyncio.run(send(mq, "orders", numbers(40)))
    options = ConsumerOptions(orderly=True, start_from=StartPosition.FIRST, concurrency=2)
    consumer = BlockingConsumer("g", nameserver=mq.nameserver, subscribe=ALL, options=options)
    threads: set[threading.Thread] = set()
    got: list[bytes] = []

    @consumer.listen
    def note(message: ReceivedMessage) -> None:
        threads.add(threading.current_thread())
        got.append(message.body)

    with consumer:
        mq.wait_until(lambda: len(got) == 40, within_s=20)
    assert 1 <= len(threads) <= 2
    # They end with the consumer, and would not hold up the end of the process.
    assert all(thread.daemon for thread in threads)
    mq.wait_until(lambda: not any(thread.is_alive() for thread in threads))
