"""Requests find their replies."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from loops import Run

from tianzhou.client import Message, MessageView, Producer, PushConsumer, ReceivedMessage
from tianzhou.client.errors import RequestTimeout, SendFailed, UsageError
from tianzhou.testing import RunningBroker


async def answering(
    mq: RunningBroker, producer: Producer, topic: str, answer: Callable[[MessageView], bytes]
) -> None:
    """A replier that sees each message once."""
    seen: set[str] = set()
    while True:
        for message in mq.stored(topic):
            if message.message_id not in seen:
                seen.add(message.message_id)
                await producer.reply(message, answer(message), properties={"by": "test"})
        await asyncio.sleep(0.01)


async def while_answering(work: Any, replier: Any) -> None:
    task = asyncio.create_task(replier)
    try:
        await work
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def test_request_gets_its_own_reply(mq: RunningBroker, run: Run) -> None:
    async def body() -> None:
        async with (
            Producer("askers", nameserver=mq.nameserver) as asker,
            Producer("repliers", nameserver=mq.nameserver) as replier,
        ):

            async def ask() -> None:
                messages = [Message("sums", b"%d" % n) for n in range(20)]
                replies = await asyncio.gather(*(asker.request(m, timeout_s=10) for m in messages))
                assert [reply.body for reply in replies] == [b"%d" % (n * n) for n in range(20)]
                assert replies[0].properties["by"] == "test"
                assert replies[0].topic == "DefaultCluster_REPLY_TOPIC"

            def square(message: MessageView) -> bytes:
                return b"%d" % int(message.body) ** 2

            await while_answering(ask(), answering(mq, replier, "sums", square))

    run(body)


def test_request_gets_a_large_reply_complete(mq: RunningBroker, run: Run) -> None:
    async def body() -> None:
        async with Producer("both", nameserver=mq.nameserver) as producer:

            async def ask() -> None:
                reply = await producer.request(Message("large", b"?"), timeout_s=10)
                assert reply.body == b"ab" * 20_000

            await while_answering(ask(), answering(mq, producer, "large", lambda _: b"ab" * 20_000))

    run(body)


def test_request_without_a_reply_times_out(mq: RunningBroker, run: Run) -> None:
    async def body() -> None:
        async with Producer("askers", nameserver=mq.nameserver) as producer:
            with pytest.raises(RequestTimeout, match=r"'alone' within 0\.2 s; it was stored"):
                await producer.request(Message("alone", b"?"), timeout_s=0.2)
            (asked,) = mq.stored("alone")
            assert asked.properties["TTL"] == "200"
            # The one who replies too late is told that nobody waits.
            with pytest.raises(SendFailed, match="push reply message"):
                await producer.reply(asked, b"late")

    run(body)


def test_reply_to_a_message_that_is_not_a_request_is_rejected(mq: RunningBroker, run: Run) -> None:
    async def body() -> None:
        async with Producer("askers", nameserver=mq.nameserver) as producer:
            await producer.send(Message("plain", b"x"))
            (message,) = mq.stored("plain")
            with pytest.raises(UsageError, match="is not a request"):
                await producer.reply(message, b"answer")

    run(body)


def test_consumer_replies_to_a_request(mq: RunningBroker, run: Run) -> None:
    async def body() -> None:
        mq.create_topic("shop")
        consumer = PushConsumer("shops", nameserver=mq.nameserver)
        consumer.subscribe("shop")

        @consumer.listen
        async def answer(message: ReceivedMessage) -> None:  # pyright: ignore[reportUnusedFunction] # the consumer calls it
            await replier.reply(message, b"3 yuan for " + message.body)

        async with (
            Producer("askers", nameserver=mq.nameserver) as asker,
            Producer("repliers", nameserver=mq.nameserver) as replier,
            consumer,
        ):
            reply = await asker.request(Message("shop", b"an apple"), timeout_s=20)
            assert reply.body == b"3 yuan for an apple"

    run(body)
