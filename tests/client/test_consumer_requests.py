"""What brokers ask of consumers, asked through a real broker as tools do it."""

import asyncio
import json
from typing import Any

import pytest
from consuming import Notes, asynchronous, consuming, numbers, send, until

from tianzhou.client.aio.push_consumer import PushConsumer
from tianzhou.client.core.received import ReceivedMessage
from tianzhou.client.errors import BrokerSystemError
from tianzhou.client.session.shared_client import SharedClient
from tianzhou.testing import RunningBroker
from tianzhou.wire._generated_codes import RequestCode
from tianzhou.wire.admin_bodies import decode_client_status
from tianzhou.wire.fastjson import parse

ALL = {"orders": "*"}


async def ask(mq: RunningBroker, code: int, ext: dict[str, str]) -> bytes:
    cluster = SharedClient.join(mq.nameserver)
    try:
        _, body = await cluster.call_ok(mq.broker, code, ext, timeout_s=10)
    finally:
        await cluster.leave()
    return body


@pytest.mark.parametrize("orderly", [False, True])
@asynchronous
async def test_reset_request_moves_a_running_consumer(mq: RunningBroker, orderly: bool) -> None:
    mq.create_topic("orders", queues=2)
    await send(mq, "orders", numbers(10))
    notes = Notes()
    async with consuming(mq, "g", ALL, notes.take, orderly=orderly):
        await until(lambda: len(notes.messages) == 10)
        await ask(
            mq,
            RequestCode.INVOKE_BROKER_TO_RESET_OFFSET,
            {"topic": "orders", "group": "g", "timestamp": "0", "isForce": "true"},
        )
        await until(lambda: len(notes.messages) == 20)
        await send(mq, "orders", [b"10"])
        await until(lambda: len(notes.messages) == 21)
    assert notes.values == sorted([*range(10), *range(11)])
    assert mq.lag("g", "orders") == 0


@asynchronous
async def test_reset_request_does_not_wait_for_in_flight_messages(mq: RunningBroker) -> None:
    """Messages that were in flight before a reset no longer move the offset."""
    mq.create_topic("orders", queues=1)
    await send(mq, "orders", numbers(6))
    stuck, seen = asyncio.Event(), list[bytes]()

    async def listener(message: ReceivedMessage) -> None:
        seen.append(message.body)
        if len(seen) == 6:
            await stuck.wait()

    async with consuming(mq, "g", ALL, listener, release_timeout_s=0.1) as consumer:
        await until(lambda: len(seen) == 6)
        await ask(
            mq,
            RequestCode.INVOKE_BROKER_TO_RESET_OFFSET,
            {"topic": "orders", "group": "g", "timestamp": "0", "isForce": "true"},
        )
        await until(lambda: len(seen) == 12)
        stuck.set()
        await consumer.commit()
    assert mq.lag("g", "orders") == 0


@asynchronous
async def test_running_info_request_describes_the_consumer(mq: RunningBroker) -> None:
    mq.create_topic("orders", queues=2)
    await send(mq, "orders", numbers(4))
    notes = Notes()
    async with consuming(mq, "g", {"orders": "a || b"}, notes.take) as consumer:
        await until(lambda: mq.committed("g", "orders") or consumer.assignment)
        body = await ask(
            mq,
            RequestCode.GET_CONSUMER_RUNNING_INFO,
            {"consumerGroup": "g", "clientId": consumer.client_id, "jstackEnable": "true"},
        )
    told: Any = parse(body)
    assert {one["topic"]: one["subString"] for one in told["subscriptionSet"]} == {
        "orders": "a || b",
        "%RETRY%g": "*",
    }
    queues = [json.loads(key) for key in told["mqTable"]]
    assert sorted(q["queueId"] for q in queues if q["topic"] == "orders") == [0, 1]
    assert told["properties"]["PROP_CONSUMEORDERLY"] == "false"
    assert told["properties"]["PROP_CONSUME_TYPE"] == "CONSUME_PASSIVELY"
    assert "await ask(" in told["jstack"], "this very place, seen from within"
    assert set(told["statusTable"]) == {"orders", "%RETRY%g"}


@asynchronous
async def test_running_info_request_has_the_rates_of_each_topic(mq: RunningBroker) -> None:
    mq.create_topic("orders", queues=1)
    mq.create_topic("payments", queues=1)
    await send(mq, "orders", numbers(40))
    seen: list[str] = []

    async def slow(message: ReceivedMessage) -> None:
        await asyncio.sleep(0.01)
        seen.append(message.topic)

    async with consuming(mq, "g", {"orders": "*", "payments": "*"}, slow) as consumer:
        await until(lambda: mq.lag("g", "orders") == 0 or len(seen) == 40)
        told: Any = parse(
            await ask(
                mq,
                RequestCode.GET_CONSUMER_RUNNING_INFO,
                {"consumerGroup": "g", "clientId": consumer.client_id},
            )
        )
    orders, payments = told["statusTable"]["orders"], told["statusTable"]["payments"]
    assert orders["consumeRT"] >= 10
    assert orders["pullRT"] > 0
    assert orders["pullTPS"] >= orders["consumeOKTPS"] > 0
    assert set(payments.values()) == {0}


@asynchronous
async def test_status_request_returns_offsets_in_memory(mq: RunningBroker) -> None:
    mq.create_topic("orders", queues=1)
    await send(mq, "orders", numbers(4))
    notes = Notes()
    async with consuming(mq, "g", ALL, notes.take) as consumer:
        await until(lambda: len(notes.messages) == 4)
        body = await ask(
            mq, RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, {"topic": "orders", "group": "g"}
        )
        told: Any = parse(body)
        table = told["consumerTable"][consumer.client_id]
        again = json.dumps({"messageQueueTable": table}).encode()
        assert list(decode_client_status(again).values()) == [4]


@pytest.mark.parametrize("kind", ["coroutine", "function", "failing", "none"])
@asynchronous
async def test_consume_directly_request_calls_the_listener(mq: RunningBroker, kind: str) -> None:
    mq.create_topic("orders", queues=1)
    await send(mq, "orders", [b"1"], tags="other")
    (stored,) = mq.stored("orders")
    got: list[bytes] = []

    async def coroutine(message: ReceivedMessage) -> None:
        got.append(message.body)

    def function(message: ReceivedMessage) -> None:
        got.append(message.body)
        if kind == "failing":
            raise ValueError("no")

    consumer = PushConsumer("g", nameserver=mq.nameserver, subscribe={"orders": "mine"})
    if kind != "none":
        consumer.listen(coroutine if kind == "coroutine" else function)
    async with consumer:
        asked = ask(
            mq,
            RequestCode.CONSUME_MESSAGE_DIRECTLY,
            {"consumerGroup": "g", "clientId": consumer.client_id, "msgId": stored.offset_id},
        )
        if kind == "none":
            with pytest.raises(BrokerSystemError, match="no listener"):
                await asked
            return
        told = json.loads(await asked)
    assert got == [b"1"]
    assert told["consumeResult"] == ("CR_LATER" if kind == "failing" else "CR_SUCCESS")
    assert mq.stored("SCHEDULE_TOPIC_XXXX") == []
