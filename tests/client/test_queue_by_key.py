"""A sharding key leads to the same queue through every producer, and through Java's."""

import asyncio

import pytest

from tianzhou.base.java import string_hash
from tianzhou.client import Batching, Message, ProducerOptions
from tianzhou.client import Producer as AsyncProducer
from tianzhou.client.bulk.brokers import Brokers
from tianzhou.client.bulk.sender import BatchSender, Entry
from tianzhou.client.core.routing import queue_for_key
from tianzhou.client.sync import Producer, PullConsumer
from tianzhou.testing import RunningBroker
from tianzhou.wire.queues import MessageQueue

QUEUES = 7
JAVA_HASHES = {
    "": 0,
    "a": 97,
    "Aa": 2112,
    "BB": 2112,
    "hello": 99162322,
    "polygenelubricants": -(2**31),
    "订单": 1129459,
    "天舟": 740886,
    "😀": 1772899,
}
"""`String.hashCode` of Java, which hashes UTF-16 units; one of them is Integer.MIN_VALUE, and the
last one takes two units."""


def java_queue(key: str, size: int) -> int:
    """`SelectMessageQueueByHash` of Java 4.9 and 5: `hashCode() % size`, and then its absolute
    value. Java's remainder has the sign of the dividend, so Integer.MIN_VALUE is no exception."""
    hashed = string_hash(key)
    remainder = abs(hashed) % size
    return abs(-remainder if hashed < 0 else remainder)


@pytest.mark.parametrize(("key", "hashed"), JAVA_HASHES.items())
def test_hash_of_a_key_equals_java(key: str, hashed: int) -> None:
    assert string_hash(key) == hashed


@pytest.mark.parametrize("size", [1, 2, 3, 4, 7, 8, 16])
def test_queue_for_key_equals_java_for_every_size(size: int) -> None:
    queues = [MessageQueue(topic="t", broker_name="a", queue_id=n) for n in range(size)]
    for key in JAVA_HASHES:
        assert queue_for_key(queues, key).queue_id == java_queue(key, size)


def test_every_producer_sends_a_key_to_the_same_queue(mq: RunningBroker) -> None:
    mq.create_topic("keyed", queues=QUEUES)
    keys = [key for key in JAVA_HASHES if key]
    expected = {key: java_queue(key, QUEUES) for key in keys}
    assert asyncio.run(sent_asynchronously(mq, keys, ProducerOptions())) == expected
    batching = ProducerOptions(batching=Batching())
    assert asyncio.run(sent_asynchronously(mq, keys, batching)) == expected
    with Producer("blocking", nameserver=mq.nameserver) as producer:
        sent = {key: producer.send(Message("keyed", b"x", sharding_key=key)) for key in keys}
    assert {key: result.queue.queue_id for key, result in sent.items()} == expected
    with Brokers(mq.nameserver) as brokers:
        bulk = BatchSender(brokers, "bulk")
        for key in keys:
            bulk.add("keyed", Entry(f"bulk:{key}".encode(), b""), key)
        bulk.flush()
    assert stored_by_bulk(mq) == expected


async def sent_asynchronously(
    mq: RunningBroker, keys: list[str], options: ProducerOptions
) -> dict[str, int]:
    async with AsyncProducer("aio", nameserver=mq.nameserver, options=options) as producer:
        await producer.queues("keyed")
        sent = {key: producer.send_async(Message("keyed", b"x", sharding_key=key)) for key in keys}
        return {key: (await result).queue.queue_id for key, result in sent.items()}


def stored_by_bulk(mq: RunningBroker) -> dict[str, int]:
    found: dict[str, int] = {}
    with PullConsumer("reader", nameserver=mq.nameserver) as consumer:
        for queue in consumer.queues("keyed"):
            for message in consumer.pull(queue, 0, wait_s=1).messages:
                kind, _, key = bytes(message.body).decode().partition(":")
                if kind == "bulk":
                    found[key] = message.queue.queue_id
    return found
