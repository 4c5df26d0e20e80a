"""What a producer sends arrives: one by one, in batches, ordered, delayed, compressed, one-way."""

import asyncio
import os
import random
from collections import defaultdict
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest
from loops import Run

from tianzhou.base.limits import PROPERTIES_BYTES_MAX
from tianzhou.broker.config import BrokerConfig
from tianzhou.client import (
    Batching,
    Compression,
    Message,
    MessageQueue,
    Producer,
    ProducerOptions,
    SendResult,
    SendStatus,
)
from tianzhou.client.core.routing import queue_for_key
from tianzhou.client.errors import (
    ClientClosed,
    MessageIllegal,
    RemoteError,
    TooManyInFlight,
    TopicNotFound,
    UsageError,
)
from tianzhou.record import flags
from tianzhou.record.ids import parts_of_unique_id
from tianzhou.testing import RunningBroker

GATHERED = ProducerOptions(batching=Batching())


def bodies(mq: RunningBroker, topic: str) -> list[bytes]:
    return [message.body for message in mq.stored(topic)]


def test_send_stores_every_field_of_the_message(mq: RunningBroker, run: Run) -> None:
    async def body() -> None:
        async with Producer("makers", nameserver=mq.nameserver) as producer:
            sent = await producer.send(
                Message(
                    "orders",
                    b"two apples",
                    tags="fruit",
                    keys=["T1", "T2"],
                    flag=7,
                    properties={"colour": "green"},
                )
            )
        (stored,) = mq.stored("orders")
        assert sent.status is SendStatus.SEND_OK
        assert sent.queue == MessageQueue(
            topic="orders", broker_name=mq.name, queue_id=stored.queue_id
        )
        assert sent.queue_offset == stored.queue_offset == 0
        assert sent.message_id == stored.unique_id
        assert sent.offset_id == stored.offset_id
        assert (stored.body, stored.tags, stored.keys) == (b"two apples", "fruit", ("T1", "T2"))
        assert (stored.flag, stored.properties["colour"]) == (7, "green")
        parts = parts_of_unique_id(sent.message_id)
        assert parts is not None
        assert parts.pid == os.getpid() & 0xFFFF

    run(body)


@pytest.mark.parametrize("options", [ProducerOptions(), GATHERED], ids=["alone", "gathered"])
def test_properties_too_long_with_the_unique_id_fail_their_own_message_only(
    mq: RunningBroker, run: Run, options: ProducerOptions
) -> None:
    long = Message("orders", b"x", properties={"a": "v" * (PROPERTIES_BYTES_MAX - 3)})

    async def body() -> None:
        async with Producer("makers", nameserver=mq.nameserver, options=options) as producer:
            sends = [producer.send(message) for message in (long, Message("orders", b"y"))]
            failed, sent = await asyncio.gather(*sends, return_exceptions=True)
            assert isinstance(failed, UsageError)
            assert isinstance(sent, SendResult)
            with pytest.raises(UsageError, match="properties take"):
                await producer.request(long)
        # Closing waits for sends in flight; the failed ones are not among them.

    run(body)
    assert bodies(mq, "orders") == [b"y"]


def test_send_alternates_between_queues(mq: RunningBroker, run: Run) -> None:
    async def body() -> None:
        mq.create_topic("round", queues=4)
        async with Producer("makers", nameserver=mq.nameserver) as producer:
            results = [await producer.send(Message("round", b"x")) for _ in range(8)]
        queues = [result.queue.queue_id for result in results]
        assert sorted(queues) == [0, 0, 1, 1, 2, 2, 3, 3]
        assert queues[:4] == queues[4:]

    run(body)


def test_send_async_needs_no_task_and_gets_its_response(mq: RunningBroker, run: Run) -> None:
    async def body() -> None:
        async with Producer("makers", nameserver=mq.nameserver) as producer:
            await producer.send(Message("many", b"first"))
            before = len(asyncio.all_tasks())
            futures = [producer.send_async(Message("many", b"%d" % n)) for n in range(500)]
            assert len(asyncio.all_tasks()) == before
            results = await asyncio.gather(*futures)
        by_id = {message.unique_id: message.body for message in mq.stored("many")}
        assert [by_id[result.message_id] for result in results] == [b"%d" % n for n in range(500)]

    run(body)


def test_send_batch_is_one_frame_and_keeps_each_message(mq: RunningBroker, run: Run) -> None:
    async def body() -> None:
        async with Producer("makers", nameserver=mq.nameserver) as producer:
            messages = [Message("batch", b"%d" % n, tags=f"t{n}", keys=f"k{n}") for n in range(50)]
            results = await producer.send_batch(messages)
        stored = mq.stored("batch")
        assert [m.body for m in stored] == [b"%d" % n for n in range(50)]
        assert [m.tags for m in stored] == [f"t{n}" for n in range(50)]
        assert [r.message_id for r in results] == [m.unique_id for m in stored]
        assert [r.offset_id for r in results] == [m.offset_id for m in stored]
        assert [r.queue_offset for r in results] == [m.queue_offset for m in stored]
        assert {r.queue.queue_id for r in results} == {m.queue_id for m in stored}

    run(body)


@pytest.mark.parametrize("linger_s", [0.0, 0.01])
def test_batching_sends_messages_together(mq: RunningBroker, run: Run, linger_s: float) -> None:
    async def body() -> None:
        options = ProducerOptions(batching=Batching(linger_s=linger_s, count_max=100))
        async with Producer("makers", nameserver=mq.nameserver, options=options) as producer:
            await producer.send(Message("gather", b"first"))
            futures = [producer.send_async(Message("gather", b"%d" % n)) for n in range(1000)]
            results = await asyncio.gather(*futures)
        stored = {m.unique_id: m for m in mq.stored("gather")}
        assert len(stored) == 1001
        for n, result in enumerate(results):
            found = stored[result.message_id]
            assert found.body == b"%d" % n
            assert (found.offset_id, found.queue_offset) == (result.offset_id, result.queue_offset)
        # Of a batch all go to one queue, in their order: 1,000 messages made about ten batches.
        places = [(r.queue.queue_id, r.queue_offset) for r in results]
        runs = 1 + sum(b != (a[0], a[1] + 1) for a, b in pairwise(places))
        assert runs <= 20

    run(body)


def test_batching_sends_other_messages_separately(mq: RunningBroker, run: Run) -> None:
    async def body() -> None:
        async with Producer("makers", nameserver=mq.nameserver, options=GATHERED) as producer:
            large = random.Random(1).randbytes(1 << 20)
            results = await asyncio.gather(
                producer.send(Message("mixed", large)),
                producer.send(Message("mixed", b"later", delay_level=1)),
                producer.send(Message("mixed", b"no wait", wait_store_ok=False)),
                producer.send(Message("mixed", b"small")),
            )
        assert {result.status for result in results} == {SendStatus.SEND_OK}
        assert sorted(bodies(mq, "mixed"), key=len) == [b"small", b"no wait", large]
        mq.clock.advance(seconds=2)
        assert len(bodies(mq, "mixed")) == 4

    run(body)


def test_send_with_a_key_uses_one_queue_in_order(mq: RunningBroker, run: Run) -> None:
    async def body() -> None:
        mq.create_topic("ordered", queues=8)
        options = ProducerOptions(batching=Batching(count_max=7))
        async with Producer("makers", nameserver=mq.nameserver, options=options) as producer:
            queues = await producer.queues("ordered")
            futures = [
                producer.send_async(
                    Message("ordered", f"{n}".encode(), sharding_key=f"order-{n % 5}")
                )
                for n in range(200)
            ]
            await asyncio.gather(*futures)
        seen: dict[str, list[int]] = defaultdict(list)
        for message in mq.stored("ordered"):
            key = message.properties["__SHARDINGKEY"]
            assert message.queue_id == queue_for_key(queues, key).queue_id
            seen[key].append(int(message.body))
        assert seen == {f"order-{k}": list(range(k, 200, 5)) for k in range(5)}

    run(body)


def test_send_uses_the_given_selector_or_queue(mq: RunningBroker, run: Run) -> None:
    async def body() -> None:
        mq.create_topic("chosen", queues=4)
        async with Producer("makers", nameserver=mq.nameserver) as producer:
            last = await producer.send(Message("chosen", b"x"), select=lambda qs, _: qs[-1])
            assert last.queue.queue_id == 3
            queues = await producer.queues("chosen")
            there = await producer.send(Message("chosen", b"x"), queue=queues[2])
            assert there.queue == queues[2]
            with pytest.raises(ZeroDivisionError):
                await producer.send(Message("chosen", b"x"), select=lambda qs, _: qs[1 // 0])
            with pytest.raises(UsageError, match="not of topic 'other'"):
                await producer.send(Message("other", b"x"), queue=queues[2])
            assert (await producer.send(Message("chosen", b"x"))).status is SendStatus.SEND_OK

    run(body)


@pytest.mark.parametrize("kind", list(Compression))
@pytest.mark.parametrize("size", [4095, 4096, 300_000])
def test_send_compresses_large_bodies(mq: RunningBroker, kind: Compression, size: int) -> None:
    async def body() -> None:
        options = ProducerOptions(compression=kind)
        async with Producer("makers", nameserver=mq.nameserver, options=options) as producer:
            await producer.send(Message("large", b"ab" * (size // 2) + b"c" * (size % 2)))
        (stored,) = mq.stored("large")
        assert len(stored.body) == size
        is_small = size < 4096 or kind is Compression.NONE
        assert stored.sys_flag & 0xF01 == (0 if is_small else kind.value)
        assert (len(stored.stored_body) < size) is not is_small

    asyncio.run(body())


def test_send_does_not_compress_a_body_that_does_not_shrink(mq: RunningBroker, run: Run) -> None:
    async def body() -> None:
        noise = random.Random(7).randbytes(10_000)
        async with Producer("makers", nameserver=mq.nameserver) as producer:
            await producer.send(Message("noise", noise))
        (stored,) = mq.stored("noise")
        assert stored.body == noise
        assert not stored.sys_flag & flags.COMPRESSED

    run(body)


def test_send_oneway_stores_every_message(mq: RunningBroker, run: Run) -> None:
    async def body() -> None:
        async with Producer("makers", nameserver=mq.nameserver) as producer:
            for n in range(100):
                await producer.send_oneway(Message("quiet", b"%d" % n))
            await mq.until(lambda: len(mq.stored("quiet")) == 100)
        assert {m.body for m in mq.stored("quiet")} == {b"%d" % n for n in range(100)}

    run(body)


def test_send_delays_by_level_duration_or_timestamp(mq: RunningBroker, run: Run) -> None:
    async def body() -> None:
        mq.clock.hold()
        now = datetime.fromtimestamp(mq.clock.now_ms() / 1000, UTC)
        async with Producer("makers", nameserver=mq.nameserver) as producer:
            await producer.send(Message("timed", b"level", delay_level=3))
            await producer.send(Message("timed", b"delay", delay=timedelta(seconds=20)))
            await producer.send(Message("timed", b"moment", deliver_at=now + timedelta(seconds=30)))
        seen: list[int] = []
        for _ in range(4):
            seen.append(len(bodies(mq, "timed")))
            mq.clock.advance(seconds=11)
        assert seen == [0, 1, 2, 3]
        assert bodies(mq, "timed") == [b"level", b"delay", b"moment"]

    run(body)


def test_recall_cancels_a_timed_message(mq: RunningBroker, run: Run) -> None:
    async def body() -> None:
        async with Producer("makers", nameserver=mq.nameserver) as producer:
            soon = Message("recall", b"no", delay=timedelta(minutes=5))
            sent = await producer.send(soon)
            kept = await producer.send(Message("recall", b"yes", delay=timedelta(minutes=5)))
            assert sent.recall_handle is not None
            assert kept.recall_handle is not None
            assert await producer.recall("recall", sent.recall_handle) == sent.message_id
            with pytest.raises(UsageError, match="topic 'recall', not 'other'"):
                await producer.recall("other", sent.recall_handle)
            with pytest.raises(UsageError, match="invalid recall handle"):
                await producer.recall("recall", "what is this")
            with pytest.raises(UsageError, match="only timed messages"):
                await producer.recall("recall", None)
            mq.clock.advance(minutes=6)
            with pytest.raises(RemoteError, match="delivered"):
                await producer.recall("recall", kept.recall_handle)
        assert bodies(mq, "recall") == [b"yes"]

    run(body)


def test_send_of_an_invalid_message_is_rejected(mq: RunningBroker, run: Run) -> None:
    async def body() -> None:
        async with Producer("makers", nameserver=mq.nameserver) as producer:
            with pytest.raises(UsageError, match="at least one"):
                await producer.send_batch([])
            with pytest.raises(UsageError, match="one topic"):
                await producer.send_batch([Message("a", b"x"), Message("b", b"x")])
            with pytest.raises(UsageError, match="delayed"):
                await producer.send_batch([Message("a", b"x", delay_level=1)])
            with pytest.raises(UsageError, match="wait_store_ok"):
                await producer.send_batch(
                    [Message("a", b"x"), Message("a", b"x", wait_store_ok=False)]
                )
            with pytest.raises(UsageError, match=r"\d+ bytes; at most"):
                await producer.send_batch([Message("a", bytes(3 << 20))] * 2)
            message, (first, *_) = Message("a", b"x"), await producer.queues("a")
            other = MessageQueue(topic="b", broker_name=mq.name, queue_id=0)
            for wrong in (0, -1):
                with pytest.raises(UsageError, match="timeout_s is"):
                    await producer.send(message, timeout_s=wrong)
                with pytest.raises(UsageError, match="timeout_s is"):
                    await producer.send_batch([message], timeout_s=wrong)
                with pytest.raises(UsageError, match="timeout_s is"):
                    await producer.request(message, timeout_s=wrong)
            with pytest.raises(UsageError, match="exclude each other"):
                await producer.send(message, queue=first, select=lambda queues, _: queues[0])
            with pytest.raises(UsageError, match="the selector chose None"):
                await producer.send(message, select=lambda queues, _: None)  # pyright: ignore[reportArgumentType] # is the mistake
            with pytest.raises(UsageError, match="which is not a queue of 'a'"):
                await producer.send(message, select=lambda queues, _: other)
            with pytest.raises(MessageIllegal, match="keys") as raised:
                await producer.send(Message("a", b"x", keys=[f"key-{n}" for n in range(100)]))
            assert raised.value.address == mq.broker
        assert not mq.stored("a")

    run(body)


def test_send_to_a_missing_topic_raises_topic_not_found(run: Run) -> None:
    async def body() -> None:
        async with (
            RunningBroker(config=BrokerConfig(auto_create_topics=False)) as mq,
            Producer("makers", nameserver=mq.nameserver) as producer,
        ):
            with pytest.raises(TopicNotFound, match="'missing'"):
                await producer.send(Message("missing", b"x"))
            mq.create_topic("missing")
            assert (await producer.send(Message("missing", b"x"))).queue_offset == 0

    run(body)


def test_producer_outside_start_and_close_raises(mq: RunningBroker, run: Run) -> None:
    async def body() -> None:
        producer = Producer("makers", nameserver=mq.nameserver)
        with pytest.raises(ClientClosed, match="not started"):
            await producer.send(Message("life", b"x"))
        async with producer:
            with pytest.raises(UsageError, match="once"):
                await producer.start()
            pending = [producer.send_async(Message("life", b"%d" % n)) for n in range(50)]
        # Leaving waited for all of them.
        assert all(future.done() and future.exception() is None for future in pending)
        with pytest.raises(ClientClosed, match="closed"):
            await producer.send(Message("life", b"x"))
        assert len(mq.stored("life")) == 50

    run(body)


def test_send_beyond_the_in_flight_limit_raises_or_waits(mq: RunningBroker, run: Run) -> None:
    async def body() -> None:
        options = ProducerOptions(in_flight_count_max=10)
        async with Producer("makers", nameserver=mq.nameserver, options=options) as producer:
            futures = [producer.send_async(Message("limit", b"x")) for _ in range(10)]
            with pytest.raises(TooManyInFlight, match="10 sends"):
                producer.send_async(Message("limit", b"x"))
            more = [producer.send(Message("limit", b"y")) for _ in range(30)]
            results: list[SendResult] = await asyncio.gather(*futures, *more)
        assert len({result.message_id for result in results}) == len(mq.stored("limit")) == 40

    run(body)


def test_producers_of_a_process_share_one_connection(mq: RunningBroker, run: Run) -> None:
    async def body() -> None:
        async with (
            Producer("one", nameserver=mq.nameserver) as one,
            Producer("two", nameserver=mq.nameserver) as two,
        ):
            assert one.client_id == two.client_id
            await one.send(Message("shared", b"1"))
            await two.send(Message("shared", b"2"))
            assert mq.faults.cut_connections(one.client_id) == 1

    run(body)


def test_send_batch_with_a_key_uses_the_queue_of_single_sends(mq: RunningBroker, run: Run) -> None:
    mq.create_topic("steps", queues=8)

    async def body() -> None:
        async with Producer("makers", nameserver=mq.nameserver) as producer:
            for key in ("a", "b", "order-1001"):
                single = await producer.send(Message("steps", b"1", sharding_key=key))
                for _ in range(3):  # in turn, they would go to three queues
                    batch = [Message("steps", b"2", sharding_key=key)] * 2
                    sent = await producer.send_batch(batch)
                    assert {result.queue for result in sent} == {single.queue}

    run(body)
