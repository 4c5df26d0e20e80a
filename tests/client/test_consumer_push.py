"""Push consumers against a real broker: every way to get messages and to settle them."""

import asyncio
import threading
from collections import Counter
from collections.abc import AsyncIterator
from datetime import UTC, datetime

import pytest
from consuming import (
    Notes,
    asynchronous,
    consuming,
    loop_name,
    numbers,
    on_both_loops,
    send,
    until,
)

from tianzhou.base.errors import UsageError
from tianzhou.client.aio.producer import Producer
from tianzhou.client.aio.push_consumer import PushConsumer
from tianzhou.client.consumer_options import ConsumerOptions
from tianzhou.client.core.assigned_queue import FlowLimits
from tianzhou.client.core.offsets import StartPosition
from tianzhou.client.core.received import ConsumeResult, ReceivedMessage
from tianzhou.client.core.subscription import Sql92
from tianzhou.client.errors import ClientClosed, SubscriptionParseFailed
from tianzhou.client.options import ClientOptions
from tianzhou.record.message import Message
from tianzhou.testing import RunningBroker

ALL = {"orders": "*"}


def push(mq: RunningBroker, group: str = "g", **options: object) -> PushConsumer:
    made = ConsumerOptions(**options)  # pyright: ignore[reportArgumentType] # the class checks them
    return PushConsumer(group, nameserver=mq.nameserver, subscribe=ALL, options=made)


# Iterating


@on_both_loops
async def test_push_loop_gets_every_message_once(mq: RunningBroker) -> None:
    mq.create_topic("orders")
    await send(mq, "orders", numbers(40))
    got: list[bytes] = []
    async with push(mq, loop_name()) as consumer:
        async for message in consumer:
            got.append(message.body)
            if len(got) == len(mq.stored("orders")):
                break
    assert Counter(got) == Counter(message.body for message in mq.stored("orders"))
    assert mq.lag(consumer.group, "orders") == 0


@asynchronous
async def test_push_loop_that_raises_gets_its_message_again(mq: RunningBroker) -> None:
    mq.create_topic("orders", queues=1)
    await send(mq, "orders", numbers(5))

    async def fail() -> None:
        async with push(mq) as consumer:
            async for message in consumer:
                if message.body == b"2":
                    raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail()
    assert mq.committed("g", "orders") == {0: 2}
    got: list[bytes] = []
    async with push(mq) as consumer:
        async for message in consumer:
            got.append(message.body)
            if message.body == b"4":
                break
    assert got == [b"2", b"3", b"4"]
    assert mq.lag("g", "orders") == 0


@asynchronous
async def test_push_explicit_ack_commits_the_smallest_unfinished_offset(mq: RunningBroker) -> None:
    mq.create_topic("orders", queues=1)
    await send(mq, "orders", numbers(4))
    async with push(mq, auto_ack=False, release_timeout_s=0.1) as consumer:
        messages = [await anext(aiter(consumer)) for _ in range(4)]
        for acked, committed in ((3, 0), (0, 1), (2, 1)):
            messages[acked].ack()
            messages[acked].ack()  # a second time changes nothing
            await consumer.commit()
            assert mq.committed("g", "orders") == {0: committed}
    assert mq.committed("g", "orders") == {0: 1}


@asynchronous
async def test_push_loop_that_awaits_each_message_continues(mq: RunningBroker) -> None:
    """More waits than a turn has messages, each for a single one."""
    mq.create_topic("orders", queues=1)
    async with push(mq) as consumer, Producer("p", nameserver=mq.nameserver) as producer:
        got = [message.body async for message in _sent_one_by_one(consumer, producer, 150)]
    assert got == numbers(150)


async def _sent_one_by_one(
    consumer: PushConsumer, producer: Producer, count: int
) -> AsyncIterator[ReceivedMessage]:
    messages = aiter(consumer)
    for body in numbers(count):
        waiting = asyncio.ensure_future(anext(messages))
        await producer.send(Message("orders", body))
        yield await waiting


@asynchronous
async def test_push_loop_is_shared_by_several_tasks(mq: RunningBroker) -> None:
    mq.create_topic("orders")
    await send(mq, "orders", numbers(50))
    got: list[bytes] = []

    async def work(consumer: PushConsumer) -> None:
        async for message in consumer:
            await asyncio.sleep(0)
            got.append(message.body)

    async with push(mq) as consumer, asyncio.TaskGroup() as group:
        for _ in range(5):
            group.create_task(work(consumer))
        await until(lambda: len(got) == 50)
        await consumer.stop()  # ends the loops
    assert sorted(map(int, got)) == list(range(50))
    assert mq.lag("g", "orders") == 0


@asynchronous
async def test_push_batches_are_of_one_queue(mq: RunningBroker) -> None:
    mq.create_topic("orders", queues=3)
    await send(mq, "orders", numbers(60))
    count = 0
    async with push(mq) as consumer:
        async for batch in consumer.batches(8):
            assert 1 <= len(batch) <= 8
            assert len({message.queue for message in batch}) == 1
            count += len(batch)
            if count == 60:
                break
    assert mq.lag("g", "orders") == 0


# Listeners


@on_both_loops
async def test_push_coroutine_listener_gets_every_message(mq: RunningBroker) -> None:
    mq.create_topic("orders")
    await send(mq, "orders", numbers(30))
    notes, group = Notes(), loop_name()
    async with consuming(mq, group, ALL, notes.take):
        await until(lambda: len(notes.messages) == len(mq.stored("orders")))
    assert mq.lag(group, "orders") == 0


@on_both_loops
async def test_push_function_listener_runs_in_threads(mq: RunningBroker) -> None:
    mq.create_topic("orders")
    await send(mq, "orders", numbers(30))
    notes, group = Notes(), loop_name()
    threads: set[str] = set()

    def listener(message: ReceivedMessage) -> None:
        threads.add(threading.current_thread().name)
        notes(message)

    async with consuming(mq, group, ALL, listener):
        await until(lambda: len(notes.messages) == len(mq.stored("orders")))
    assert mq.lag(group, "orders") == 0
    assert threading.main_thread().name not in threads


@pytest.mark.parametrize("is_async", [True, False])
@asynchronous
async def test_push_batch_listener_gets_every_message(mq: RunningBroker, is_async: bool) -> None:
    mq.create_topic("orders", queues=2)
    await send(mq, "orders", numbers(40))
    sizes: list[int] = []
    consumer = push(mq, batch_size=7)

    async def coroutine(messages: list[ReceivedMessage]) -> None:
        sizes.append(len(messages))

    def function(messages: list[ReceivedMessage]) -> ConsumeResult:
        sizes.append(len(messages))
        return ConsumeResult.SUCCESS

    if is_async:
        consumer.listen_batches(coroutine)
    else:
        consumer.listen_batches(function)
    async with consumer:
        await until(lambda: sum(sizes) == 40)
    assert max(sizes) == 7
    assert mq.lag("g", "orders") == 0


@asynchronous
async def test_push_coroutines_run_up_to_the_concurrency(mq: RunningBroker) -> None:
    mq.create_topic("orders", queues=1)
    await send(mq, "orders", numbers(30))
    at_once = most = done = 0

    async def listener(_message: ReceivedMessage) -> None:
        nonlocal at_once, most, done
        at_once += 1
        most = max(most, at_once)
        await asyncio.sleep(0.02)
        at_once -= 1
        done += 1

    async with consuming(mq, "g", ALL, listener, concurrency=6):
        await until(lambda: done == 30)
    assert most == 6


@asynchronous
async def test_push_threads_run_up_to_the_concurrency(mq: RunningBroker) -> None:
    mq.create_topic("orders", queues=1)
    await send(mq, "orders", numbers(30))
    lock, at_once, most, done = threading.Lock(), 0, 0, 0
    full = threading.Barrier(5)

    def listener(_message: ReceivedMessage) -> None:
        nonlocal at_once, most, done
        with lock:
            at_once += 1
            most = max(most, at_once)
        full.wait(60)  # five at a time, or it ends in an error
        with lock:
            at_once -= 1
            done += 1

    async with consuming(mq, "g", ALL, listener, concurrency=5):
        await until(lambda: done == 30)
    assert most == 5
    assert mq.lag("g", "orders") == 0


@asynchronous
async def test_push_stop_waits_for_in_flight_messages_only(mq: RunningBroker) -> None:
    """No message is delivered twice or lost: the next consumer starts where this one stopped."""
    mq.create_topic("orders", queues=2)
    await send(mq, "orders", numbers(100))
    begun, finished = Counter[bytes](), Counter[bytes]()

    async def listener(message: ReceivedMessage) -> None:
        begun[message.body] += 1
        await asyncio.sleep(0.01)
        finished[message.body] += 1

    for _ in range(4):
        async with consuming(mq, "g", ALL, listener, concurrency=5):
            already = len(finished)
            await until(lambda before=already: len(finished) > before)
        assert begun == finished
        assert mq.lag("g", "orders") == 100 - len(finished)
    async with consuming(mq, "g", ALL, listener, concurrency=50):
        await until(lambda: len(finished) == 100)
    assert set(finished.values()) == {1}
    assert mq.lag("g", "orders") == 0


# What is wanted


@asynchronous
async def test_push_tags_are_compared_by_name(mq: RunningBroker) -> None:
    """`Aa` and `BB` have the same hash code, so the broker cannot distinguish them."""
    mq.create_topic("orders", queues=1)
    for tag in ("Aa", "BB", "c", None, "d"):
        await send(mq, "orders", [str(tag).encode()], tags=tag)
    notes = Notes()
    async with consuming(mq, "g", {"orders": "Aa || d"}, notes.take):
        await until(lambda: len(notes.messages) == 2)
    assert notes.bodies == [b"Aa", b"d"]
    assert mq.lag("g", "orders") == 0


@asynchronous
async def test_push_sql92_is_filtered_by_the_broker(mq: RunningBroker) -> None:
    mq.create_topic("orders", queues=1)
    for amount in range(10):
        await send(mq, "orders", [b"%d" % amount], properties={"amount": str(amount)})
    notes = Notes()
    wanted = Sql92("amount > 3 AND amount <> 7")
    async with consuming(mq, "g", {"orders": wanted}, notes.take):
        await until(lambda: len(notes.messages) == 5)
    assert notes.values == [4, 5, 6, 8, 9]


@asynchronous
async def test_push_start_with_an_invalid_expression_is_rejected(
    mq: RunningBroker,
) -> None:
    mq.create_topic("orders")
    consumer = PushConsumer("g", nameserver=mq.nameserver, subscribe={"orders": Sql92("amount >")})
    with pytest.raises(SubscriptionParseFailed):
        await consumer.start()
    with pytest.raises(ClientClosed):
        aiter(consumer)


@asynchronous
async def test_push_subscriptions_can_change_while_running(mq: RunningBroker) -> None:
    for topic in ("orders", "payments", "refunds"):
        mq.create_topic(topic, queues=2)
        await send(mq, topic, [topic.encode()])
    notes = Notes()
    async with consuming(mq, "g", {"orders": "*", "payments": "*"}, notes.take) as consumer:
        await until(lambda: len(notes.messages) == 2)
        consumer.subscribe("refunds")
        await until(lambda: len(notes.messages) == 3)
        consumer.unsubscribe("orders")
        await until(
            lambda: {q.topic for q in consumer.assignment} == {"payments", "refunds", "%RETRY%g"}
        )
    assert {message.topic for message in notes.messages} == {"orders", "payments", "refunds"}
    assert mq.committed("g", "orders")


@asynchronous
async def test_push_finds_a_topic_created_later(mq: RunningBroker) -> None:
    notes = Notes()
    async with consuming(mq, "g", {"later": "*"}, notes.take):
        mq.create_topic("later")
        await send(mq, "later", numbers(3))
        await until(lambda: notes.values == [0, 1, 2])


@asynchronous
async def test_push_pause_and_resume_stop_and_continue_delivery(mq: RunningBroker) -> None:
    mq.create_topic("orders", queues=1)
    notes = Notes()
    async with consuming(mq, "g", ALL, notes.take, long_poll_s=0.2) as consumer:
        await send(mq, "orders", [b"1"])
        await until(lambda: notes.values == [1])
        consumer.pause()
        await asyncio.sleep(0.5)  # a pull that was under way has ended by now
        await send(mq, "orders", [b"2"])
        await asyncio.sleep(0.5)
        assert notes.values == [1]
        consumer.resume()
        await until(lambda: notes.values == [1, 2])


# Where it begins


@asynchronous
async def test_push_new_group_starts_at_the_configured_position(mq: RunningBroker) -> None:
    mq.create_topic("orders", queues=1)
    mq.clock.hold()
    await send(mq, "orders", [b"1"])
    mq.clock.advance(hours=1)
    moment = datetime.fromtimestamp(mq.clock.now_ms() / 1000, UTC)
    await send(mq, "orders", [b"2"])
    found: dict[str, list[int]] = {}
    local = moment.astimezone().strftime("%Y%m%d%H%M%S")
    for name, start in (("first", StartPosition.FIRST), ("moment", moment), ("text", local)):
        notes = Notes()
        # Java's rule: while the broker has the first message in memory, a new group gets it all.
        with mq.faults.refuse([14], 22):
            async with consuming(mq, name, ALL, notes.take, start_from=start):
                await until(lambda seen=notes: 2 in seen.values)
        found[name] = notes.values
    assert found == {"first": [1, 2], "moment": [2], "text": [2]}
    notes = Notes()
    with mq.faults.refuse([14], 22):
        async with consuming(mq, "last", ALL, notes.take, start_from=StartPosition.LAST):
            await send(mq, "orders", [b"3"])
            await until(lambda: notes.values == [3])


@asynchronous
async def test_push_committed_offset_wins_over_the_start_position(mq: RunningBroker) -> None:
    mq.create_topic("orders", queues=1)
    await send(mq, "orders", numbers(3))
    for start in (StartPosition.LAST, StartPosition.FIRST):
        notes = Notes()
        async with consuming(mq, "g", ALL, notes.take, start_from=start):
            await send(mq, "orders", [b"9"])
            await until(lambda seen=notes: 9 in seen.values)
        assert notes.values == ([0, 1, 2, 9] if start is StartPosition.LAST else [9])


@asynchronous
async def test_push_offset_beyond_the_end_is_corrected(mq: RunningBroker) -> None:
    mq.create_topic("orders", queues=1)
    await send(mq, "orders", numbers(3))
    # A broker refuses such a commit, but it may have lost the messages that the group consumed.
    offsets = mq._running().slices.groups.tables.offsets
    mq._do(lambda: offsets.put("g", "orders", 0, 1000))
    notes = Notes()
    async with consuming(mq, "g", ALL, notes.take):
        # The broker says where to go on: at the end, as RocketMQ 5 does.
        await until(lambda: mq.committed("g", "orders") == {0: 3})
        await send(mq, "orders", numbers(4)[3:])
        await until(lambda: notes.values == [3])
    assert mq.committed("g", "orders") == {0: 4}


# What comes over the wire


@asynchronous
async def test_push_delivers_compressed_batched_and_large_messages(mq: RunningBroker) -> None:
    mq.create_topic("orders", queues=2)
    large = bytes(range(256)) * 8192
    async with Producer("p", nameserver=mq.nameserver) as producer:
        await producer.send(Message("orders", b"x" * 50_000))
        await producer.send(Message("orders", large))
        await producer.send_batch([Message("orders", b"b%d" % n) for n in range(10)])
    notes = Notes()
    async with consuming(mq, "g", ALL, notes.take):
        await until(lambda: len(notes.messages) == 12)
    assert sorted(notes.bodies) == sorted([b"x" * 50_000, large, *[b"b%d" % n for n in range(10)]])


@asynchronous
async def test_push_limits_the_messages_it_buffers(mq: RunningBroker) -> None:
    mq.create_topic("orders", queues=2)
    await send(mq, "orders", [b"x" * 1000] * 120)
    go_on = asyncio.Event()

    async def listener(_message: ReceivedMessage) -> None:
        await go_on.wait()

    limits = FlowLimits(topic_count=20)
    async with consuming(
        mq, "g", ALL, listener, concurrency=1, flow=limits, pull_count=4
    ) as consumer:
        assert consumer._parts is not None
        assignments = [
            assigned
            for assigned in consumer._parts.member.assignments.queues.values()
            if assigned.queue.topic == "orders"
        ]
        await until(lambda: all(assigned.window.count >= 10 for assigned in assignments))
        await asyncio.sleep(0.3)
        assert [10 <= assigned.window.count <= 10 + 4 for assigned in assignments] == [True, True]
        go_on.set()
        await until(
            lambda: consumer._parts and consumer._parts.acknowledger.rates.finished_count == 120
        )
    assert mq.lag("g", "orders") == 0


# Mistakes


@asynchronous
async def test_push_misuse_raises_clear_errors(mq: RunningBroker) -> None:
    nothing = PushConsumer("g", nameserver=mq.nameserver)
    with pytest.raises(UsageError, match="has no subscription"):
        await nothing.start()
    with pytest.raises(ClientClosed, match="not running"):
        nothing.pause()
    with pytest.raises(UsageError, match="group"):
        PushConsumer("no group!", nameserver=mq.nameserver)
    with pytest.raises(UsageError, match="concurrency"):
        ConsumerOptions(concurrency=0)
    with pytest.raises(UsageError, match="yyyyMMddHHmmss"):
        ConsumerOptions(start_from="tomorrow")
    mq.create_topic("orders")
    notes = Notes()
    async with consuming(mq, "g", ALL, notes.take) as consumer:
        with pytest.raises(UsageError, match="has a listener"):
            aiter(consumer)
        with pytest.raises(UsageError, match="one listener"):
            consumer.listen(notes)
        with pytest.raises(UsageError, match="started before"):
            await consumer.start()


@asynchronous
async def test_push_start_without_a_nameserver_reports_its_address() -> None:
    client = ClientOptions(call_timeout_s=0.5, connect_timeout_s=0.5)
    consumer = PushConsumer("g", nameserver="127.0.0.1:1", subscribe=ALL, client=client)
    with pytest.raises(Exception, match=r"127\.0\.0\.1:1"):
        await consumer.start()
