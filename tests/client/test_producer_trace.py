"""Traces of sends, as RocketMQ's tools read them."""

import asyncio
from datetime import timedelta

import pytest
from loops import Run

from tianzhou.client import Batching, Message, Producer, ProducerOptions
from tianzhou.client.core.trace import (
    MessageType,
    Published,
    Recalled,
    TraceRecord,
    TransactionEnded,
    decode_trace,
)
from tianzhou.client.errors import MessageIllegal
from tianzhou.testing import RunningBroker
from tianzhou.wire._generated_codes import ResponseCode

TRACED = ProducerOptions(trace=True)


def traces(mq: RunningBroker) -> list[TraceRecord]:
    return [
        record
        for message in mq.stored("RMQ_SYS_TRACE_TOPIC")
        for record in decode_trace(message.body)
    ]


def test_producer_trace_records_every_send(mq: RunningBroker, run: Run) -> None:
    async def body() -> None:
        async with Producer("makers", nameserver=mq.nameserver, options=TRACED) as producer:
            sent = await producer.send(Message("traced", b"hello", tags="t", keys=["k1", "k2"]))
            await producer.send(Message("traced", b"x", sharding_key="k"))
            await producer.send(Message("traced", b"x", delay_level=1))
            await producer.send_batch([Message("traced", b"a"), Message("traced", b"b")])
        first, *rest = traces(mq)
        assert isinstance(first, Published)
        assert (first.group, first.topic, first.message_id) == ("makers", "traced", sent.message_id)
        assert (first.tags, first.keys, first.body_length) == ("t", "k1 k2", 5)
        assert (first.store_host, first.offset_id) == (mq.broker, sent.offset_id)
        assert (first.region_id, first.is_success) == ("DefaultRegion", True)
        kinds = [record.message_type for record in rest if isinstance(record, Published)]
        assert kinds == [
            MessageType.ORDER,
            MessageType.DELAY,
            MessageType.NORMAL,
            MessageType.NORMAL,
        ]
        (told,) = mq.stored("RMQ_SYS_TRACE_TOPIC")
        assert {sent.message_id, "k1", "k2"} <= set(told.keys)

    run(body)


def test_producer_trace_records_failures_transactions_and_recalls(
    mq: RunningBroker, run: Run
) -> None:
    async def body() -> None:
        async with Producer("makers", nameserver=mq.nameserver, options=TRACED) as producer:
            with (
                mq.faults.refuse_sends(ResponseCode.MESSAGE_ILLEGAL, topic="traced"),
                pytest.raises(MessageIllegal),
            ):
                await producer.send(Message("traced", b"x"))
            async with producer.transaction(Message("traced", b"x")) as transaction:
                pass
            timed = await producer.send(Message("traced", b"x", delay=timedelta(hours=1)))
            assert timed.recall_handle is not None
            await producer.recall("traced", timed.recall_handle)
        failed, half, ended, _, recalled = traces(mq)
        assert isinstance(failed, Published)
        assert not failed.is_success
        assert len(failed.message_id) == 32
        assert isinstance(half, Published)
        assert half.message_type == MessageType.TRANSACTION_HALF
        assert isinstance(ended, TransactionEnded)
        assert (ended.state, ended.message_id) == ("COMMIT_MESSAGE", transaction.half.message_id)
        assert isinstance(recalled, Recalled)
        assert recalled.message_id == timed.message_id

    run(body)


def test_producer_traces_are_batched_and_do_not_affect_sends(mq: RunningBroker, run: Run) -> None:
    async def body() -> None:
        options = ProducerOptions(trace=True, batching=Batching())
        async with Producer("makers", nameserver=mq.nameserver, options=options) as producer:
            with mq.faults.refuse_sends(topic="RMQ_SYS_TRACE_TOPIC", count=3):
                futures = [producer.send_async(Message("traced", b"%d" % n)) for n in range(100)]
                results = await asyncio.gather(*futures)
        told = traces(mq)
        assert len(mq.stored("RMQ_SYS_TRACE_TOPIC")) == 10
        assert {record.message_id for record in told} == {result.message_id for result in results}

    run(body)
