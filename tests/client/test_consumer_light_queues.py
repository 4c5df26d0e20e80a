"""Light queues as users meet them: one message, sent once, for the consumers of several queues."""

import asyncio
from typing import Any

import pytest
from consuming import UNHURRIED, asynchronous, until

from cli.conftest import run_command
from tianzhou.base.errors import UsageError
from tianzhou.broker.config import BrokerConfig
from tianzhou.client.aio.admin import Admin
from tianzhou.client.aio.producer import Producer
from tianzhou.client.aio.pull_consumer import PullConsumer
from tianzhou.client.aio.push_consumer import PushConsumer
from tianzhou.client.bulk.brokers import Brokers
from tianzhou.client.bulk.reader import QueueRange, QueueReader
from tianzhou.client.consumer_options import ConsumerOptions
from tianzhou.client.core.offsets import StartPosition
from tianzhou.client.core.received import ReceivedMessage
from tianzhou.record.message import Message, MessageView
from tianzhou.testing import RunningBroker

ALICE, BOB = "%LMQ%alice", "%LMQ%bob"


@pytest.fixture
def mq_settings() -> dict[str, Any]:
    return {"config": BrokerConfig(light_queues=True, multi_dispatch=True)}


async def send_all(mq: RunningBroker) -> None:
    async with Producer("senders", nameserver=mq.nameserver, options=UNHURRIED) as producer:
        await producer.send(Message("chat", b"plain"))
        await producer.send(Message("chat", b"for alice", light_queues=["alice"]))
        await producer.send(Message("chat", b"for both", tags="news", light_queues=["alice", BOB]))
        await producer.send_batch(
            [Message("chat", b"batched", light_queues=["bob"]), Message("chat", b"not")]
        )


def rows_of(messages: Any) -> list[tuple[bytes, str, int, int]]:
    return [(m.body, m.topic, int(m.queue_id), int(m.queue_offset)) for m in messages]


@asynchronous
async def test_light_queue_is_pulled_like_a_topic_with_one_queue(mq: RunningBroker) -> None:
    mq.create_topic("chat", queues=3)
    await send_all(mq)
    async with PullConsumer("phones", nameserver=mq.nameserver) as consumer:
        (queue,) = await consumer.queues(ALICE)
        found = await consumer.pull(queue, await consumer.first(queue))
        assert rows_of(found.messages) == [
            (b"for alice", "chat", 0, 0),
            (b"for both", "chat", 0, 1),
        ]
        assert found.messages[1].light_queues == {ALICE: 1, BOB: 0}
        assert found.next_offset == await consumer.end(queue) == 2
        tagged = await consumer.pull(queue, 0, expression="news")
        assert [message.body for message in tagged.messages] == [b"for both"]
        await consumer.commit(queue, 2)
        assert await consumer.committed(queue) == 2
        (other,) = await consumer.queues(BOB)
        bodies = [message.body for message in (await consumer.pull(other, 0)).messages]
        assert bodies == [b"for both", b"batched"]


@asynchronous
async def test_pull_of_a_light_queue_waits_for_a_message(mq: RunningBroker) -> None:
    mq.create_topic("chat", queues=1)
    async with PullConsumer("phones", nameserver=mq.nameserver) as consumer:
        (queue,) = await consumer.queues("%LMQ%later")
        pulling = asyncio.create_task(consumer.pull(queue, 0, wait_s=20.0))
        async with Producer("senders", nameserver=mq.nameserver, options=UNHURRIED) as producer:
            await producer.send(Message("chat", b"now", light_queues=["later"]))
        assert [message.body for message in (await pulling).messages] == [b"now"]


@asynchronous
async def test_light_queues_survive_a_killed_broker(mq: RunningBroker) -> None:
    mq.create_topic("chat", queues=1)
    await send_all(mq)
    mq.kill()
    mq.start()
    await send_all(mq)
    async with PullConsumer("phones", nameserver=mq.nameserver) as consumer:
        (queue,) = await consumer.queues(ALICE)
        found = await consumer.pull(queue, 0)
    assert rows_of(found.messages) == [
        (body, "chat", 0, rank) for rank, body in enumerate([b"for alice", b"for both"] * 2)
    ]


@asynchronous
async def test_consumers_of_a_group_subscribe_to_a_light_queue(mq: RunningBroker) -> None:
    mq.create_topic("chat", queues=2)
    await send_all(mq)
    got: list[ReceivedMessage] = []
    options = ConsumerOptions(start_from=StartPosition.FIRST)
    consumer = PushConsumer(
        "phones", nameserver=mq.nameserver, subscribe={ALICE: "*"}, options=options
    )
    consumer.listen(got.append)
    async with consumer:
        await until(lambda: len(got) == 2)
        await send_all(mq)
        await until(lambda: len(got) == 4)
    assert [message.body for message in got] == [b"for alice", b"for both"] * 2
    assert mq.committed("phones", ALICE) == {0: 4}


@asynchronous
async def test_light_queue_offsets_reach_bulk_readers(mq: RunningBroker) -> None:
    """What Spark tasks read with."""
    mq.create_topic("chat", queues=2)
    await send_all(mq)
    with Brokers(mq.nameserver) as brokers:
        (queue,) = brokers.route(ALICE).read_queues
        (end,) = brokers.max_offsets([queue]).values()
        runs = QueueReader(brokers, "TOOLS_CONSUMER").read(QueueRange(queue, 0, end))
        found = [MessageView(bytes(run.data), start) for run in runs for start in run.starts]
    assert rows_of(found) == [(b"for alice", "chat", 0, 0), (b"for both", "chat", 0, 1)]


@asynchronous
async def test_command_line_shows_light_queues(mq: RunningBroker) -> None:
    mq.create_topic("chat", queues=1)
    await send_all(mq)

    def run(*arguments: str) -> Any:
        said = run_command(*arguments, "-n", mq.nameserver)
        assert said.code == 0, said.err
        return said

    def all_of_them() -> None:
        listed = run("topic", "light-queues", "--json").json
        assert listed == [
            {"light_queue": ALICE, "brokers": 1, "messages": 2},
            {"light_queue": BOB, "brokers": 1, "messages": 2},
        ]
        assert run("topic", "light-queues", "BOB", "--json").json == listed[1:]
        printed = run("consume", ALICE, "--from", "earliest", "--until-end", "--json").lines
        assert [row["body"] for row in printed] == ["for alice", "for both"]
        assert [row["queue_offset"] for row in printed] == [0, 1]
        assert printed[1]["light_queues"] == {ALICE: 1, BOB: 0}
        assert [row["topic"] for row in run("topic", "list", "--json").json] == ["chat"]
        run("produce", "chat", "from here", "--light-queue", "carol")
        resent = run("consume", BOB, "--from", "earliest", "--until-end", "--json").out
        said = run_command("produce", "chat", "--format", "json", "-n", mq.nameserver, stdin=resent)
        assert said.code == 0, said.err
        counts = {row["light_queue"]: row["messages"] for row in listed_now(run)}
        assert counts == {ALICE: 3, BOB: 4, "%LMQ%carol": 1}
        shown = run("topic", "show", ALICE, "--json").json
        assert (shown["topic"], shown["messages"], len(shown["queues"])) == (ALICE, 3, 1)

    await asyncio.to_thread(all_of_them)


def listed_now(run: Any) -> Any:
    return run("topic", "light-queues", "--json").json


@asynchronous
async def test_admin_lists_light_queues_and_deletes_one(mq: RunningBroker) -> None:
    mq.create_topic("chat", queues=1)
    await send_all(mq)
    async with Admin(nameserver=mq.nameserver) as admin:
        rows, looked = await admin.views.light_queues("ali")
        assert [(row.name, row.count) for row in rows] == [(ALICE, 2)]
        assert [view.total for view in looked.found.values()] == [2]
        await admin.topics.delete(ALICE)
        rows, _ = await admin.views.light_queues()
        assert [row.name for row in rows] == [BOB]


@asynchronous
async def test_message_for_a_light_queue_goes_to_a_topic(mq: RunningBroker) -> None:
    async with Producer("senders", nameserver=mq.nameserver, options=UNHURRIED) as producer:
        with pytest.raises(UsageError, match="'%LMQ%a b' is not made of letters"):
            await producer.send(Message("chat", b"x", light_queues=["a b"]))
