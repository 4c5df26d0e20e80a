"""Traces of consumption, in RocketMQ's format, read back from the trace topic."""

import pytest
from consuming import Notes, asynchronous, consuming, send, until

from tianzhou.client.aio.push_consumer import PushConsumer
from tianzhou.client.consumer_options import ConsumerOptions
from tianzhou.client.core.received import ReceivedMessage
from tianzhou.client.core.trace import (
    ConsumeBegun,
    ConsumeEnded,
    ContextCode,
    TraceRecord,
    decode_trace,
)
from tianzhou.testing import RunningBroker
from tianzhou.wire.names import TRACE_TOPIC

ALL = {"orders": "*"}


def traces(mq: RunningBroker) -> list[TraceRecord]:
    return [record for message in mq.stored(TRACE_TOPIC) for record in decode_trace(message.body)]


@pytest.mark.parametrize("kind", ["coroutine", "function", "orderly", "loop"])
@asynchronous
async def test_consumer_trace_records_consumption(mq: RunningBroker, kind: str) -> None:
    mq.create_topic("orders", queues=1)
    mq.create_topic(TRACE_TOPIC, queues=1)
    await send(mq, "orders", [b"1"], keys=["K1", "K2"])
    notes = Notes()
    if kind == "loop":
        options = ConsumerOptions(trace=True)
        async with PushConsumer(
            "g", nameserver=mq.nameserver, subscribe=ALL, options=options
        ) as consumer:
            async for message in consumer:
                notes(message)
                break
    else:
        listener = notes if kind == "function" else notes.take
        async with consuming(mq, "g", ALL, listener, trace=True, orderly=kind == "orderly"):
            await until(lambda: notes.messages)
    (message,) = notes.messages
    begun, ended = traces(mq)
    assert isinstance(begun, ConsumeBegun)
    assert isinstance(ended, ConsumeEnded)
    assert begun.request_id == ended.request_id
    assert begun.message_id == ended.message_id == message.message_id
    assert (begun.group, begun.keys, begun.retry_times) == ("g", "K1 K2", 0)
    assert (ended.is_success, ended.context_code) == (True, ContextCode.SUCCESS)
    # Tools look for traces by the id of the message.
    assert message.message_id in mq.stored(TRACE_TOPIC)[0].keys


@asynchronous
async def test_consumer_trace_records_failures(mq: RunningBroker) -> None:
    mq.create_topic("orders", queues=1)
    mq.create_topic(TRACE_TOPIC, queues=1)
    await send(mq, "orders", [b"raise", b"retry"])

    async def listener(message: ReceivedMessage) -> None:
        if message.body == b"raise":
            raise ValueError("no")
        message.retry()

    async with consuming(mq, "g", ALL, listener, trace=True, concurrency=1):
        await until(lambda: len(mq.stored("SCHEDULE_TOPIC_XXXX")) == 2)
    codes = [one.context_code for one in traces(mq) if isinstance(one, ConsumeEnded)]
    assert codes == [ContextCode.EXCEPTION, ContextCode.FAILED]
