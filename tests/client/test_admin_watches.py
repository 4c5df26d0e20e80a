"""The admin client looks at our own producers and consumers while they work."""

import asyncio

from consuming import Notes, asynchronous, consuming, numbers, send, until

from tianzhou.client.aio.admin import Admin
from tianzhou.client.aio.push_consumer import PushConsumer
from tianzhou.client.core.offsets import StartPosition
from tianzhou.client.core.received import ReceivedMessage
from tianzhou.testing import RunningBroker
from tianzhou.testing.kit.patience import Patience
from tianzhou.wire.queues import MessageQueue

ALL = {"orders": "*"}


def orders_of(consumer: PushConsumer) -> set[MessageQueue]:
    return {queue for queue in consumer.assignment if queue.topic == "orders"}


@asynchronous
async def test_admin_lists_the_owner_of_each_queue(mq: RunningBroker) -> None:
    mq.create_topic("orders", queues=4)
    notes = Notes()
    async with (
        Admin(nameserver=mq.nameserver) as admin,
        consuming(mq, "billing", ALL, notes.take) as one,
        consuming(mq, "billing", ALL, notes.take) as other,
    ):
        await until(lambda: len(orders_of(one)) == len(orders_of(other)) == 2)
        owners = await admin.offsets.owners("billing", "orders")
        for consumer in (one, other):
            held = {queue for queue, client in owners.items() if client == consumer.client_id}
            assert held == orders_of(consumer)
        assert len(owners) == 4
        state = await admin.groups.show("billing")
        assert set(state.client_ids) == {one.client_id, other.client_id}


@asynchronous
async def test_admin_reads_the_running_info_of_our_consumer(mq: RunningBroker) -> None:
    mq.create_topic("orders", queues=2)
    await send(mq, "orders", numbers(10))
    notes = Notes()
    async with (
        Admin(nameserver=mq.nameserver) as admin,
        consuming(mq, "billing", ALL, notes.take, start_from=StartPosition.FIRST) as consumer,
    ):
        await until(lambda: len(notes.messages) == 10)
        info = await admin.groups.running("billing", consumer.client_id, stacks=True)
        held = {queue: row.commit_offset for queue, row in info.queues.items()}
        assert {q.queue_id: at for q, at in held.items() if q.topic == "orders"} == {0: 5, 1: 5}
        assert {one.topic for one in info.subscriptions} == {"orders", "%RETRY%billing"}
        assert info.stacks


@asynchronous
async def test_admin_resets_a_running_group(mq: RunningBroker) -> None:
    mq.create_topic("orders", queues=1)
    await send(mq, "orders", numbers(5))
    notes = Notes()
    async with Admin(nameserver=mq.nameserver) as admin:
        async with consuming(mq, "billing", ALL, notes.take, start_from=StartPosition.FIRST):
            await until(lambda: len(notes.messages) == 5)
            moves = await admin.offsets.reset_to_time("billing", "orders", time_ms=0)
            assert [move.target for move in moves] == [0]
            await until(lambda: len(notes.messages) == 10)
        progress = await admin.offsets.progress("billing", "orders")
        assert (progress.lag, progress.behind_s) == (0, 0)
    assert notes.values == sorted([*range(5), *range(5)])


@asynchronous
async def test_admin_replays_dead_letters_to_their_group(mq: RunningBroker) -> None:
    mq.create_topic("orders", queues=1)
    await send(mq, "orders", [b"poison"])
    notes, is_broken = Notes(), True

    async def take(message: ReceivedMessage) -> None:
        if is_broken:
            raise ValueError("not now")
        await notes.take(message)

    async with (
        Admin(nameserver=mq.nameserver) as admin,
        consuming(mq, "billing", ALL, take, max_reconsume_times=0, start_from=StartPosition.FIRST),
    ):
        await mq.until(lambda: mq.dead_letters("billing"), within_s=10)
        # Clients learn of the new topic of dead letters once the broker has registered it.
        patience = Patience(10)
        while not await admin.dlq.peek("billing"):
            assert not patience.is_over(), "no NameServer knows the dead letters"
            await asyncio.sleep(0.02)
        is_broken = False
        replay = await admin.dlq.replay("billing")
        assert (replay.count, replay.left) == (1, 0)
        await until(lambda: len(notes.messages) == 1)
    (message,) = notes.messages
    assert (message.topic, message.body) == ("orders", b"poison")
