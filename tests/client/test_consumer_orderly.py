"""Ordered consumption: one at a time for each queue, in place until it succeeds."""

import asyncio
import threading
from collections import defaultdict
from typing import Any

import pytest
from consuming import Notes, asynchronous, consuming, numbers, on_both_loops, send, send_to, until

from tianzhou.client.aio.push_consumer import PushConsumer
from tianzhou.client.consume import group_member as group_module
from tianzhou.client.consumer_options import ConsumerOptions
from tianzhou.client.core.received import ReceivedMessage
from tianzhou.net.blocking import BlockingPeer
from tianzhou.testing import RunningBroker
from tianzhou.wire._generated_codes import RequestCode
from tianzhou.wire.fastjson import encode
from tianzhou.wire.queues import LockBatch, MessageQueue, decode_locked_queues

ALL = {"orders": "*"}
QUICK: dict[str, Any] = {"orderly": True, "suspend_s": 0.05}


def queue(mq: RunningBroker, number: int = 0) -> MessageQueue:
    return MessageQueue(topic="orders", broker_name=mq.name, queue_id=number)


def in_order(messages: list[ReceivedMessage]) -> bool:
    offsets = defaultdict[int, list[int]](list)
    for message in messages:
        offsets[message.queue_id].append(message.queue_offset)
    return all(found == sorted(set(found)) for found in offsets.values())


@on_both_loops
async def test_orderly_coroutines_get_a_queue_in_order(mq: RunningBroker) -> None:
    mq.create_topic("orders", queues=3)
    await send(mq, "orders", numbers(60))
    notes, busy = Notes(), set[int]()
    group = f"g{len(mq.stored('orders'))}"

    async def listener(message: ReceivedMessage) -> None:
        assert message.queue_id not in busy
        busy.add(message.queue_id)
        await asyncio.sleep(0.001)
        busy.remove(message.queue_id)
        notes(message)

    async with consuming(mq, group, ALL, listener, **QUICK):
        await until(lambda: len(notes.messages) == len(mq.stored("orders")))
    assert in_order(notes.messages)
    assert mq.lag(group, "orders") == 0


@asynchronous
async def test_orderly_functions_get_a_queue_in_order(mq: RunningBroker) -> None:
    mq.create_topic("orders", queues=3)
    await send(mq, "orders", numbers(300))
    notes, busy, lock = Notes(), set[int](), threading.Lock()

    def listener(message: ReceivedMessage) -> None:
        with lock:
            assert message.queue_id not in busy
            busy.add(message.queue_id)
        threading.Event().wait(0.0005)
        with lock:
            busy.remove(message.queue_id)
        notes(message)

    async with consuming(mq, "g", ALL, listener, **QUICK):
        await until(lambda: len(notes.messages) == 300)
    assert in_order(notes.messages)
    assert mq.lag("g", "orders") == 0


@pytest.mark.parametrize("is_async", [True, False])
@asynchronous
async def test_orderly_failure_is_retried_in_place(mq: RunningBroker, is_async: bool) -> None:
    mq.create_topic("orders", queues=2)
    await send_to(mq, queue(mq, 0), numbers(5))
    await send_to(mq, queue(mq, 1), numbers(5, first=10))
    tried: list[tuple[int, int]] = []

    def listener(message: ReceivedMessage) -> None:
        tried.append((int(message.body), message.reconsume_times))
        if message.body == b"2" and message.reconsume_times < 3:
            raise ValueError("not yet")

    async def coroutine(message: ReceivedMessage) -> None:
        listener(message)

    async with consuming(mq, "g", ALL, coroutine if is_async else listener, **QUICK):
        await until(lambda: len(tried) == 13)
    first = [number for number, _ in tried if number < 10]
    assert first == [0, 1, 2, 2, 2, 2, 3, 4]
    assert [times for number, times in tried if number == 2] == [0, 1, 2, 3]
    assert [number for number, _ in tried if number >= 10] == [10, 11, 12, 13, 14]
    # The other queue did not wait for it.
    assert tried.index((14, 0)) < tried.index((2, 3))
    assert mq.stored("SCHEDULE_TOPIC_XXXX") == []
    assert mq.lag("g", "orders") == 0


@asynchronous
async def test_orderly_batch_is_retried_from_the_first_failure(mq: RunningBroker) -> None:
    mq.create_topic("orders", queues=1)
    await send(mq, "orders", numbers(6))
    options = ConsumerOptions(orderly=True, suspend_s=0.05, batch_size=6)
    consumer = PushConsumer("g", nameserver=mq.nameserver, subscribe=ALL, options=options)
    calls: list[list[int]] = []

    @consumer.listen_batches
    async def listener(messages: list[ReceivedMessage]) -> None:  # pyright: ignore[reportUnusedFunction] # the consumer has it
        calls.append([int(message.body) for message in messages])
        for message in messages:
            if message.body == b"4" and message.reconsume_times < 1:
                message.retry()

    async with consumer:
        await until(lambda: sum(map(len, calls)) >= 8)
    assert calls == [[0, 1, 2, 3, 4, 5], [4, 5]]
    assert mq.lag("g", "orders") == 0


@asynchronous
async def test_orderly_message_out_of_retries_becomes_a_dead_letter(mq: RunningBroker) -> None:
    mq.create_topic("orders", queues=1)
    await send(mq, "orders", numbers(4))
    tried: list[bytes] = []

    async def listener(message: ReceivedMessage) -> None:
        tried.append(message.body)
        if message.body == b"1":
            raise ValueError("never")
        if message.body == b"2":
            message.retry(-1)

    async with consuming(mq, "g", ALL, listener, max_reconsume_times=2, **QUICK):
        await until(lambda: b"3" in tried)
    assert tried == [b"0", b"1", b"1", b"1", b"2", b"3"]
    assert [message.body for message in mq.dead_letters("g")] == [b"1", b"2"]
    assert mq.lag("g", "orders") == 0


@asynchronous
async def test_orderly_loop_gets_the_next_message_after_the_acknowledgement(
    mq: RunningBroker,
) -> None:
    mq.create_topic("orders", queues=2)
    await send_to(mq, queue(mq, 0), numbers(3))
    await send_to(mq, queue(mq, 1), numbers(3, first=10))
    options = ConsumerOptions(orderly=True, auto_ack=False, suspend_s=0.05)
    async with PushConsumer(
        "g", nameserver=mq.nameserver, subscribe=ALL, options=options
    ) as consumer:
        messages = aiter(consumer)
        one, two = await anext(messages), await anext(messages)
        assert {one.body, two.body} == {b"0", b"10"}
        waiting = asyncio.ensure_future(anext(messages))
        await asyncio.sleep(0.2)
        assert not waiting.done()
        one.retry()
        again = await waiting
        assert (again.body, again.reconsume_times) == (one.body, 1)
        again.ack()
        after = await anext(messages)
        assert int(after.body) == int(one.body) + 1
        after.ack()
        two.ack()
        got: list[bytes] = []
        for _ in range(3):
            message = await anext(messages)
            got.append(message.body)
            message.ack()
    assert mq.lag("g", "orders") == 0


@asynchronous
async def test_orderly_queue_has_one_consumer_at_a_time(mq: RunningBroker) -> None:
    """A queue moves to its next owner only after the in-flight message is finished, however long
    that takes, and the order is kept across owners."""
    mq.create_topic("orders", queues=4)
    notes, first_has, go_on = Notes(), asyncio.Event(), asyncio.Event()

    async def slow(message: ReceivedMessage) -> None:
        first_has.set()
        await go_on.wait()
        notes(message)

    async with consuming(mq, "g", ALL, slow, **QUICK) as first:
        for number in range(4):
            await send_to(mq, queue(mq, number), numbers(3))
        await until(
            lambda: (
                first._parts
                and sum(
                    assigned.in_flight > 0
                    for assigned in first._parts.member.assignments.queues.values()
                )
                == 4
            )
        )
        async with consuming(mq, "g", ALL, notes.take, **QUICK) as second:
            await until(lambda: len([q for q in first.assignment if q.topic == "orders"]) == 2)
            await asyncio.sleep(0.3)
            assert not [q for q in second.assignment if q.topic == "orders"]
            assert notes.messages == []
            go_on.set()
            await until(lambda: len([q for q in second.assignment if q.topic == "orders"]) == 2)
            await until(lambda: len(notes.messages) == 12)
    assert in_order(notes.messages)
    assert mq.lag("g", "orders") == 0


@asynchronous
async def test_orderly_lock_that_is_not_renewed_stops_the_queue(mq: RunningBroker) -> None:
    mq.create_topic("orders", queues=1)
    await send(mq, "orders", [b"0"])
    notes = Notes()
    async with consuming(mq, "g", ALL, notes.take, lock_interval_s=0.05, **QUICK) as consumer:
        await until(lambda: notes.values == [0])
        assert consumer._parts is not None
        assignments = list(consumer._parts.member.assignments.queues.values())
        with mq.faults.refuse([41], 1):
            await asyncio.sleep(0.2)
            for assigned in assignments:
                assigned.locked_until = 0.0  # as if 30 seconds had passed
            await send(mq, "orders", [b"1"])
            await asyncio.sleep(0.3)
            assert notes.values == [0]
        await until(lambda: notes.values == [0, 1])


def test_orderly_lock_that_was_not_renewed_is_requested_again_soon(
    mq: RunningBroker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Not only with the next renewal: a broker that restarts would hold up its queues for long."""
    monkeypatch.setattr(group_module, "SOON_S", 0.05)

    @asynchronous
    async def body() -> None:
        mq.create_topic("orders", queues=1)
        notes, loop = Notes(), asyncio.get_running_loop()
        async with consuming(mq, "g", ALL, notes.take, lock_interval_s=5.0, **QUICK) as consumer:
            assert consumer._parts is not None
            await until(lambda: len(consumer.assignment) == 2)  # with the queue of retries
            with mq.faults.refuse([RequestCode.LOCK_BATCH_MQ], 1):
                await until(lambda: "could not lock" in caplog.text)
                failed_s = loop.time()
                for assigned in consumer._parts.member.assignments.queues.values():
                    assigned.locked_until = 0.0  # as if 30 seconds had passed
            await send(mq, "orders", [b"0"])
            await until(lambda: notes.values == [0])
            assert loop.time() - failed_s < 5.0
        assert caplog.text.count("could not lock") == 1

    body()


@asynchronous
async def test_orderly_queue_whose_lock_is_rejected_is_not_consumed(mq: RunningBroker) -> None:
    mq.create_topic("orders", queues=1)
    notes, place = Notes(), queue(mq)
    async with consuming(mq, "g", ALL, notes.take, lock_interval_s=0.05, **QUICK) as consumer:
        assert consumer._parts is not None
        assigned = consumer._parts.member.assignments.queues[place]
        with BlockingPeer(mq.broker) as peer:

            def call(code: int, client_id: str) -> bytes:
                asked = LockBatch(client_id=client_id, consumer_group="g", mq_set=(place,))
                return peer.call(code, {}, encode(asked))[1]

            def steal() -> bool:
                call(RequestCode.UNLOCK_BATCH_MQ, consumer.client_id)
                answer = call(RequestCode.LOCK_BATCH_MQ, "another")
                return place in decode_locked_queues(answer).queues

            await until(steal)  # the consumer may be faster, and lock it again
            await until(lambda: assigned.locked_until == 0.0)
            await send(mq, "orders", [b"0"])
            await asyncio.sleep(0.3)
            assert notes.values == []
            call(RequestCode.UNLOCK_BATCH_MQ, "another")
        await until(lambda: notes.values == [0])
