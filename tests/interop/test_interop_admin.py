"""Our admin client with a RocketMQ broker: everything that RocketMQ has a request for."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

import pytest

from tianzhou.client import Admin, Message, Producer, ProducerOptions, PushConsumer
from tianzhou.client.consumer_options import ConsumerOptions
from tianzhou.client.core.admin_results import LATEST
from tianzhou.client.core.offsets import StartPosition
from tianzhou.client.core.received import ReceivedMessage
from tianzhou.client.core.trace import Published
from tianzhou.client.errors import RemoteError, TopicNotFound
from tianzhou.testing.kit.patience import Patience
from tianzhou.wire.queues import MessageQueue

T = TypeVar("T")
BROKER = "broker-java"
WITHIN_S = 40.0


def play(nameserver: str, scene: Callable[[Admin, Producer], Awaitable[None]]) -> None:
    async def whole() -> None:
        options = ProducerOptions(trace=True)
        async with (
            asyncio.timeout(120),
            Admin(nameserver=nameserver) as admin,
            Producer("makers", nameserver=nameserver, options=options) as producer,
        ):
            await scene(admin, producer)

    asyncio.run(whole())


async def until(look: Callable[[], Awaitable[T]], is_it: Callable[[T], bool]) -> T:
    """Wait for a condition: RocketMQ does much of its work in the background."""
    patience = Patience(WITHIN_S)
    while True:
        found = await look()
        if is_it(found):
            return found
        assert not patience.is_over(), f"still {found}"
        await asyncio.sleep(0.1)


def queue(topic: str, number: int = 0) -> MessageQueue:
    return MessageQueue(topic=topic, broker_name=BROKER, queue_id=number)


def test_admin_manages_topics_of_rocketmq(nameserver: str) -> None:
    async def scene(admin: Admin, producer: Producer) -> None:
        await admin.topics.create("Made", queues=4)
        await producer.send(Message("Made", b"1"), queue=queue("Made", 3))
        state = await until(lambda: admin.topics.show("Made"), lambda s: s.count == 1)
        assert state.configs[BROKER].write_queue_nums == 4
        assert [row.max_offset for row in state.queues] == [0, 0, 0, 1]
        assert "Made" in await admin.topics.all()
        assert "TBW102" not in await admin.topics.all()
        assert "TBW102" in await admin.topics.all(internal=True)
        await admin.topics.update("Made", permission=4)
        assert (await admin.topics.show("Made")).configs[BROKER].perm == 4
        await admin.topics.update("Made", permission=6)
        assert (await admin.topics.shrink("Made", queues=2)).is_done
        assert (await admin.topics.show("Made")).configs[BROKER].read_queue_nums == 2
        await admin.topics.delete("Made")
        with pytest.raises(TopicNotFound):
            await admin.topics.show("Made")

    play(nameserver, scene)


def test_admin_finds_messages_of_rocketmq(nameserver: str) -> None:
    async def scene(admin: Admin, producer: Producer) -> None:
        await admin.topics.create("Found", queues=1)
        before_ms = int(time.time() * 1000)
        sent = await producer.send(Message("Found", b"1", keys="K1"))
        await producer.send(Message("Found", b"2", keys="K1"))
        after_ms = int(time.time() * 1000) + 1000
        found = await until(lambda: admin.messages.by_key("Found", "K1"), lambda m: len(m) == 2)
        assert [message.body for message in found] == [b"1", b"2"]
        for message_id in (found[0].offset_id, sent.message_id):
            message = await admin.messages.by_id("Found", message_id)
            assert message is not None
            assert message.body == b"1"
        times = {"begin_ms": before_ms, "end_ms": after_ms}
        assert [m.body for m in await admin.messages.between("Found", **times)] == [b"1", b"2"]
        assert [m.body for m in await admin.messages.at(queue("Found"), 1)] == [b"2"]
        (trace,) = await until(lambda: admin.messages.trace(sent.message_id), bool)
        assert isinstance(trace, Published)
        assert trace.topic == "Found"

    play(nameserver, scene)


def test_admin_manages_groups_and_offsets_of_rocketmq(nameserver: str) -> None:
    async def scene(admin: Admin, producer: Producer) -> None:
        await admin.topics.create("Read", queues=2)
        await admin.groups.create("readers", retry_max_times=3)
        assert "readers" in await admin.groups.all()
        for number in range(6):
            await producer.send(Message("Read", b"%d" % number), queue=queue("Read", number % 2))
        seen: list[bytes] = []
        options = ConsumerOptions(start_from=StartPosition.FIRST)
        consumer = PushConsumer(
            "readers", nameserver=nameserver, subscribe={"Read": "*"}, options=options
        )

        def take(message: ReceivedMessage) -> None:
            seen.append(message.body)

        consumer.listen(take)
        async with consumer:
            await until(_now(lambda: len(seen)), lambda count: count == 6)
            connected = await admin.groups.consumers("readers")
            assert connected is not None
            (client,) = connected.connection_set
            assert client.client_id == consumer.client_id
            info = await admin.groups.running("readers", client.client_id)
            assert {q.queue_id for q in info.queues if q.topic == "Read"} == {0, 1}
            owners = await admin.offsets.owners("readers", "Read")
            assert owners == dict.fromkeys((queue("Read", 0), queue("Read", 1)), client.client_id)

            async def reported() -> list[int | None]:
                await consumer.commit()
                return [await admin.offsets.committed("readers", q) for q in owners]

            # A reset moves a consumer that is connected and has reported its offsets, on which
            # RocketMQ 4 insists; a report gets no response.
            await until(reported, lambda offsets: offsets == [3, 3])
            await admin.offsets.reset_to_time("readers", "Read", time_ms=0)
            await until(_now(lambda: len(seen)), lambda count: count == 12)
        progress = await admin.offsets.progress("readers", "Read")
        assert [(row.committed, row.end) for row in progress.queues] == [(3, 3), (3, 3)]
        assert (progress.lag, progress.behind_s) == (0, 0)
        assert await admin.offsets.committed("readers", queue("Read")) == 3
        assert await admin.offsets.committed("nobody", queue("Read")) in (None, 0)
        assert await admin.offsets.bounds(queue("Read")) == (0, 3)
        plan = await admin.offsets.reset_to_time("readers", "Read", time_ms=LATEST, dry_run=True)
        assert [move.target for move in plan] == [3, 3]
        state = await admin.groups.show("readers")
        assert state.configs[BROKER].retry_max_times == 3
        assert "Read" in state.topics
        await admin.groups.delete("readers")
        assert "readers" not in await admin.groups.all()

    play(nameserver, scene)


def _now(look: Callable[[], T]) -> Callable[[], Awaitable[T]]:
    async def looked() -> T:
        return look()

    return looked


def test_admin_replays_dead_letters_of_rocketmq(nameserver: str) -> None:
    async def scene(admin: Admin, producer: Producer) -> None:
        await admin.topics.create("Dying", queues=1)
        await producer.send(Message("Dying", b"poison", tags="t"))
        seen: list[bytes] = []
        is_broken = True

        async def take(message: ReceivedMessage) -> None:
            if is_broken:
                raise ValueError("not now")
            seen.append(message.body)

        options = ConsumerOptions(start_from=StartPosition.FIRST, max_reconsume_times=0)
        consumer = PushConsumer(
            "dying", nameserver=nameserver, subscribe={"Dying": "*"}, options=options
        )
        consumer.listen(take)
        async with consumer:
            await until(lambda: admin.dlq.show("dying"), lambda box: box.count == 1)
            (letter,) = await admin.dlq.peek("dying")
            assert (letter.body, letter.tags) == (b"poison", "t")
            is_broken = False
            assert (await admin.dlq.replay("dying")).count == 1
            await until(_now(lambda: len(seen)), lambda count: count == 1)
        assert (await admin.dlq.replay("dying")).count == 0
        (box,) = [box for box in await admin.dlq.all() if box.group == "dying"]
        assert (box.count, box.not_replayed) == (1, 0)

    play(nameserver, scene)


def test_admin_reads_brokers_and_pending_messages_of_rocketmq(
    nameserver: str, version: str
) -> None:
    async def scene(admin: Admin, producer: Producer) -> None:
        (place,) = await admin.brokers.all()
        assert (place.cluster, place.name) == ("DefaultCluster", BROKER)
        status = await admin.brokers.status(BROKER)
        assert (status.version, status.refusal) == (f"V{version.replace('.', '_')}", "")
        assert 0 < status.disk_used_ratio < 1
        assert status.started_ms > 0
        config = await admin.brokers.config(BROKER)
        assert config["brokerName"] == BROKER
        await admin.brokers.configure(BROKER, {"transactionCheckMax": "14"})
        assert (await admin.brokers.config(BROKER))["transactionCheckMax"] == "14"
        await admin.topics.create("Later", queues=1)
        await producer.send(Message("Later", b"in two hours", delay_level=18))
        waiting = await until(lambda: admin.timers.delayed(level=18), bool)
        assert [message.body for message in waiting] == [b"in two hours"]
        assert "makers" in await admin.brokers.producers(BROKER)
        assert [c.client_id for c in await admin.groups.producers("makers", "Later")]
        # Our own requests: a broker without them rejects them.
        for unknown in (admin.timers.all, admin.transactions.all):
            with pytest.raises(RemoteError, match="not supported"):
                await unknown()

    play(nameserver, scene)
