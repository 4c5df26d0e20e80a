"""Lite pull and plain pull consumers against a real broker."""

import asyncio
from datetime import UTC, datetime

import pytest
from consuming import asynchronous, numbers, on_both_loops, send, send_to, until

from tianzhou.base.errors import UsageError
from tianzhou.client.aio.admin import Admin
from tianzhou.client.aio.lite_pull import LitePullConsumer
from tianzhou.client.aio.producer import Producer
from tianzhou.client.aio.pull_consumer import PullConsumer
from tianzhou.client.consumer_options import ConsumerOptions
from tianzhou.client.core.offsets import StartPosition
from tianzhou.client.core.pulling import PullStatus
from tianzhou.client.core.received import ReceivedMessage
from tianzhou.client.core.subscription import Sql92
from tianzhou.client.errors import ClientClosed, GroupNotExist, TopicNotFound
from tianzhou.testing import RunningBroker
from tianzhou.wire._generated_codes import RequestCode
from tianzhou.wire.queues import MessageQueue

ALL = {"orders": "*"}


def lite(mq: RunningBroker, **options: object) -> LitePullConsumer:
    made = ConsumerOptions(**options)  # pyright: ignore[reportArgumentType] # the class checks them
    return LitePullConsumer("g", nameserver=mq.nameserver, subscribe=ALL, options=made)


def assigned(mq: RunningBroker, **options: object) -> LitePullConsumer:
    made = ConsumerOptions(start_from=StartPosition.FIRST, **options)  # pyright: ignore[reportArgumentType] # the class checks them
    return LitePullConsumer("g", nameserver=mq.nameserver, options=made)


def queue(mq: RunningBroker, number: int = 0) -> MessageQueue:
    return MessageQueue(topic="orders", broker_name=mq.name, queue_id=number)


async def poll_all(consumer: LitePullConsumer, count: int) -> list[ReceivedMessage]:
    found: list[ReceivedMessage] = []
    while len(found) < count:
        found += await consumer.poll()
    return found


@on_both_loops
async def test_lite_pull_polls_a_subscription(mq: RunningBroker) -> None:
    mq.create_topic("orders", queues=3)
    await send(mq, "orders", numbers(30))
    async with lite(mq) as consumer:
        found = await poll_all(consumer, 30)
        assert await consumer.poll(0.05) == []
        assert sorted(int(message.body) for message in found) == list(range(30))
        with pytest.raises(UsageError, match="commit offsets"):
            found[0].ack()
    assert mq.lag("g", "orders") == 0


@asynchronous
async def test_lite_pull_commits_all_polls_but_the_last(mq: RunningBroker) -> None:
    mq.create_topic("orders", queues=1)
    await send(mq, "orders", numbers(10))
    consumer = await lite(mq, commit_interval_s=0.05).start()
    await consumer.poll(count_max=4)
    await asyncio.sleep(0.2)
    assert mq.committed("g", "orders").get(0, 0) == 0
    await consumer.poll(count_max=3)
    await mq.until(lambda: mq.committed("g", "orders") == {0: 4})
    await consumer.stop()
    assert mq.committed("g", "orders") == {0: 4}


@asynchronous
async def test_lite_pull_commits_explicitly(mq: RunningBroker) -> None:
    mq.create_topic("orders", queues=1)
    await send(mq, "orders", numbers(10))
    async with lite(mq, auto_ack=False) as consumer:
        await consumer.poll(count_max=4)
        await consumer.poll(count_max=2)
        assert await consumer.committed(queue(mq)) == 0
        await consumer.commit()
        assert mq.committed("g", "orders") == {0: 6}
        await consumer.poll(count_max=1)
        await consumer.commit({queue(mq): 5})
        assert mq.committed("g", "orders") == {0: 5}
    assert mq.committed("g", "orders") == {0: 5}


@asynchronous
async def test_lite_pull_members_share_the_queues(mq: RunningBroker) -> None:
    mq.create_topic("orders", queues=4)
    async with lite(mq) as one, lite(mq) as two:
        await until(lambda: len(one.assignment) == len(two.assignment) == 2)
        await send(mq, "orders", numbers(20))
        found = await poll_all(one, 10) + await poll_all(two, 10)
    assert sorted(int(message.body) for message in found) == list(range(20))


@asynchronous
async def test_lite_pull_assigns_seeks_and_pauses(mq: RunningBroker) -> None:
    mq.create_topic("orders", queues=3)
    for number in range(3):
        await send_to(mq, queue(mq, number), numbers(10, first=10 * number))
    async with assigned(mq) as consumer:
        assert await consumer.queues("orders") == (queue(mq, 0), queue(mq, 1), queue(mq, 2))
        await consumer.assign([queue(mq, 0), queue(mq, 1)])
        assert len(await poll_all(consumer, 20)) == 20
        await consumer.seek(queue(mq, 0), 7)
        assert consumer.position(queue(mq, 0)) == 7
        assert [m.body for m in await poll_all(consumer, 3)] == [b"7", b"8", b"9"]
        await consumer.seek_to_first(queue(mq, 1))
        assert len(await poll_all(consumer, 10)) == 10
        await consumer.seek_to_end(queue(mq, 1))
        assert await consumer.poll(0.05) == []
        consumer.pause([queue(mq, 0)])
        await send_to(mq, queue(mq, 0), [b"100"])
        await send_to(mq, queue(mq, 1), [b"101"])
        assert [m.body for m in await consumer.poll()] == [b"101"]
        assert await consumer.poll(0.05) == []
        consumer.resume([queue(mq, 0)])
        assert [m.body for m in await consumer.poll()] == [b"100"]
        await consumer.assign([queue(mq, 2)])
        assert {m.queue for m in await poll_all(consumer, 10)} == {queue(mq, 2)}
        assert consumer.assignment == {queue(mq, 2)}
    # What the last poll before an assignment returned may not be done: it is not committed.
    assert mq.committed("g", "orders") == {0: 10, 1: 11, 2: 10}


@asynchronous
async def test_lite_pull_pause_keeps_prefetched_messages(mq: RunningBroker) -> None:
    mq.create_topic("orders", queues=1)
    await send(mq, "orders", numbers(10))
    async with assigned(mq) as consumer:
        await consumer.assign([queue(mq)])
        found = await consumer.poll(count_max=3)
        consumer.pause([queue(mq)])
        assert await consumer.poll(0.05) == []
        consumer.resume([queue(mq)])
        found += await poll_all(consumer, 7)
    assert [int(message.body) for message in found] == list(range(10))


@asynchronous
async def test_lite_pull_finds_offsets_by_time(mq: RunningBroker) -> None:
    mq.create_topic("orders", queues=1)
    mq.clock.hold()
    await send(mq, "orders", numbers(3))
    mq.clock.advance(minutes=10)
    moment = datetime.fromtimestamp(mq.clock.now_ms() / 1000, UTC)
    await send(mq, "orders", numbers(3, first=3))
    async with assigned(mq) as consumer:
        await consumer.assign([queue(mq)])
        assert await consumer.offset_at(queue(mq), moment) == 3
        assert await consumer.offset_at(queue(mq), 0) == 0
        await consumer.seek(queue(mq), await consumer.offset_at(queue(mq), mq.clock.now_ms()))
        assert [m.body for m in await poll_all(consumer, 3)] == [b"3", b"4", b"5"]


@asynchronous
async def test_lite_pull_filters_assigned_queues_by_expression(mq: RunningBroker) -> None:
    mq.create_topic("orders", queues=1)
    for number in range(6):
        await send(mq, "orders", [b"%d" % number], properties={"n": str(number)})
    async with assigned(mq) as consumer:
        await consumer.assign([queue(mq)], Sql92("n > 3"))
        assert [m.body for m in await poll_all(consumer, 2)] == [b"4", b"5"]


@asynchronous
async def test_lite_pull_misuse_raises_clear_errors(mq: RunningBroker) -> None:
    mq.create_topic("orders", queues=1)
    consumer = lite(mq)
    with pytest.raises(ClientClosed):
        await consumer.poll()
    async with consumer:
        with pytest.raises(UsageError, match="cannot be assigned"):
            await consumer.assign([queue(mq)])
        with pytest.raises(UsageError, match="not assigned"):
            await consumer.seek(queue(mq, 9), 0)
        with pytest.raises(UsageError, match="count_max 0 is out of range; it must be from 1 "):
            await consumer.poll(count_max=0)
        with pytest.raises(UsageError, match="offset -1 is out of range; it must be from 0 "):
            await consumer.seek(queue(mq), -1)
        with pytest.raises(UsageError, match="started before"):
            await consumer.start()
    with pytest.raises(ClientClosed):
        await consumer.poll()


@asynchronous
async def test_lite_pull_poll_raises_the_error_that_ended_the_consumer(mq: RunningBroker) -> None:
    mq.create_topic("orders", queues=1)

    async def consume() -> None:
        async with lite(mq) as consumer:
            while True:
                await consumer.poll()

    with mq.faults.refuse([11], 26), pytest.raises(GroupNotExist):
        await consume()


@asynchronous
async def test_lite_pull_start_that_fails_leaves_nothing_behind(mq: RunningBroker) -> None:
    """The shared client keeps running because a producer uses it too."""
    mq.create_topic("orders", queues=1)
    await send(mq, "orders", numbers(1))
    async with Producer("others", nameserver=mq.nameserver):
        questions = (
            RequestCode.GET_CONSUMER_LIST_BY_GROUP,
            RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG,
        )
        with mq.faults.refuse(questions, 26), pytest.raises(GroupNotExist):
            await lite(mq).start()
        async with lite(mq) as consumer:
            assert len(await poll_all(consumer, 1)) == 1


@asynchronous
async def test_lite_pull_reassigned_queue_starts_at_the_committed_offset(mq: RunningBroker) -> None:
    """The queue does not restart where this member left it: other members have advanced
    meanwhile."""
    mq.create_topic("orders", queues=1)
    await send(mq, "orders", numbers(2))
    async with assigned(mq, commit_interval_s=0.05) as one:
        await one.assign([queue(mq)])
        await poll_all(one, 2)
        await one.poll(0)  # which commits what came before
        await one.assign([])
        assert mq.committed("g", "orders") == {0: 2}
        await send(mq, "orders", numbers(3, first=2))
        async with assigned(mq) as two:
            await two.assign([queue(mq)])
            await poll_all(two, 3)
        assert mq.committed("g", "orders") == {0: 5}
        await one.assign([queue(mq)])
        assert one.position(queue(mq)) == 5
        await one.poll(0.2)
        assert mq.committed("g", "orders") == {0: 5}
    assert mq.committed("g", "orders") == {0: 5}


@asynchronous
async def test_lite_pull_does_not_undo_a_reset(mq: RunningBroker) -> None:
    mq.create_topic("orders", queues=1)
    await send(mq, "orders", numbers(4))
    async with lite(mq, commit_interval_s=0.05) as consumer, Admin(nameserver=mq.nameserver) as ops:
        await poll_all(consumer, 4)
        await consumer.poll(0)
        await mq.until(lambda: mq.committed("g", "orders") == {0: 4})
        await ops.offsets.reset_to_time("g", "orders", time_ms=0)
        await until(lambda: consumer.position(queue(mq)) == 0)
        await mq.until(lambda: mq.committed("g", "orders") == {0: 0})
    assert mq.committed("g", "orders") == {0: 0}


# One pull at a time


@asynchronous
async def test_pull_consumer_reads_single_pulls(mq: RunningBroker) -> None:
    mq.create_topic("orders", queues=2)
    await send_to(mq, queue(mq, 1), numbers(50))
    async with PullConsumer("g", nameserver=mq.nameserver) as consumer:
        assert await consumer.queues("orders") == (queue(mq, 0), queue(mq, 1))
        where = queue(mq, 1)
        assert (await consumer.first(where), await consumer.end(where)) == (0, 50)
        found = await consumer.pull(where, 10, count_max=5)
        assert found.status is PullStatus.FOUND
        assert [message.body for message in found.messages] == numbers(5, first=10)
        assert (found.next_offset, found.first, found.end) == (15, 0, 50)
        assert (await consumer.pull(where, 50)).status is PullStatus.NO_NEW
        assert (await consumer.pull(where, 500)).status is PullStatus.OFFSET_ILLEGAL
        tagged = await consumer.pull(where, 0, expression="none")
        assert (tagged.status, list(tagged.messages)) == (PullStatus.NO_MATCHED, [])
        waiting = asyncio.ensure_future(consumer.pull(where, 50, wait_s=10))
        await send_to(mq, where, [b"new"])
        assert [message.body for message in (await waiting).messages] == [b"new"]
        await consumer.commit(where, 20)
        assert await consumer.committed(where) == 20
        assert await consumer.offset_at(where, 0) == 0
        with pytest.raises(TopicNotFound):
            await consumer.queues("nothing")
        with pytest.raises(UsageError, match="offset -1"):
            await consumer.pull(where, -1)
    with pytest.raises(ClientClosed):
        await consumer.queues("orders")
