"""Our producer with a RocketMQ broker: everything that producers do. Java's consumer, unmodified,
reports what it received."""

import asyncio
from datetime import timedelta

import java_servers
import pytest
from client_probe import ClientProbe

from tianzhou.client import (
    Batching,
    Compression,
    Message,
    MessageView,
    Producer,
    ProducerOptions,
    SendStatus,
    TransactionState,
)
from tianzhou.client.core.trace import Published, decode_trace
from tianzhou.client.errors import NoPermission, SendFailed
from tianzhou.wire._generated_codes import RequestCode


def test_producer_sends_in_every_mode_to_rocketmq(nameserver: str, probe: ClientProbe) -> None:
    async def body() -> None:
        async with Producer("makers", nameserver=nameserver) as producer:
            sent = await producer.send(
                Message("Ways", b"plain", tags="T", keys=["K1", "K2"], properties={"x": "y"})
            )
            assert sent.status is SendStatus.SEND_OK
            future = producer.send_async(Message("Ways", b"future"))
            await producer.send_oneway(Message("Ways", b"one-way"))
            batch = await producer.send_batch([Message("Ways", b"b%d" % n) for n in range(3)])
            ids = {sent.message_id: "plain", (await future).message_id: "future"}
            ids |= {result.message_id: f"b{n}" for n, result in enumerate(batch)}
        probe.ask("consumer", "ways", group="ways", topic="Ways")
        probe.wait_bodies(["plain", "future", "one-way", "b0", "b1", "b2"], "ways")
        got = {event["msgId"]: event for event in probe.events("ways")}
        assert {key: got[key]["body"] for key in ids} == ids
        first = got[sent.message_id]
        assert (first["tags"], first["keys"], first["properties"]["x"]) == ("T", "K1 K2", "y")
        assert (first["queueId"], first["queueOffset"]) == (sent.queue.queue_id, sent.queue_offset)
        assert [got[r.message_id]["queueOffset"] for r in batch] == [r.queue_offset for r in batch]

    asyncio.run(body())
    probe.stop("ways")


def test_producer_sends_batched_and_ordered_messages_to_rocketmq(
    nameserver: str, probe: ClientProbe
) -> None:
    async def body() -> None:
        options = ProducerOptions(batching=Batching(count_max=16))
        async with Producer("makers", nameserver=nameserver, options=options) as producer:
            await producer.queues("Ordered")
            futures = [
                producer.send_async(Message("Ordered", b"%d" % n, sharding_key=f"k{n % 3}"))
                for n in range(90)
            ]
            results = await asyncio.gather(*futures)
        probe.ask("consumer", "ordered", group="ordered", topic="Ordered", model="orderly")
        probe.wait_bodies([str(n) for n in range(90)], "ordered")
        got = {event["msgId"]: event for event in probe.events("ordered")}
        assert [got[result.message_id]["body"] for result in results] == [str(n) for n in range(90)]
        for key in range(3):
            places = [got[results[n].message_id]["queueOffset"] for n in range(key, 90, 3)]
            assert places == sorted(places)

    asyncio.run(body())
    probe.stop("ordered")


@pytest.mark.parametrize("kind", [Compression.ZLIB, Compression.LZ4, Compression.ZSTD])
def test_producer_sends_compressed_bodies_to_rocketmq(
    nameserver: str, probe: ClientProbe, kind: Compression
) -> None:
    topic = f"Large-{kind.name}"

    async def body() -> None:
        options = ProducerOptions(compression=kind)
        async with Producer("makers", nameserver=nameserver, options=options) as producer:
            await producer.send(Message(topic, b"x" * 100_000))

    asyncio.run(body())
    probe.ask("consumer", topic, group=topic, topic=topic)
    (message,) = probe.wait_events(topic)
    assert message["bodySize"] == 100_000
    assert message["storeSize"] < 3_000
    probe.stop(topic)


def test_producer_transactions_and_checks_work_with_rocketmq(
    nameserver: str, probe: ClientProbe
) -> None:
    """RocketMQ 5 stores decisions every three seconds, and on a slow machine checks transactions
    whose decision it has not read yet. So the check returns the real decision, and a message may
    come twice; a rolled-back message must never come."""
    truth = {b"rolled back": TransactionState.ROLLBACK}

    async def body() -> None:
        asked: set[bytes] = set()

        def check(message: MessageView) -> TransactionState:
            asked.add(message.body)
            return truth.get(message.body, TransactionState.COMMIT)

        async with Producer("payers", nameserver=nameserver, check=check) as producer:
            async with producer.transaction(Message("Paid", b"committed")):
                pass
            with pytest.raises(ZeroDivisionError):
                async with producer.transaction(Message("Paid", b"rolled back")):
                    raise ZeroDivisionError
            async with producer.transaction(Message("Paid", b"checked")) as transaction:
                transaction.leave_undecided()
            probe.ask("consumer", "paid", group="paid", topic="Paid")
            await asyncio.to_thread(
                probe.wait_for,
                lambda: {"committed", "checked"} <= set(probe.bodies("paid")),
                "committed and checked are there",
            )
        assert b"checked" in asked
        assert set(probe.bodies("paid")) == {"committed", "checked"}

    asyncio.run(body())
    probe.stop("paid")


def test_producer_sends_delayed_messages_to_rocketmq(nameserver: str, probe: ClientProbe) -> None:
    async def body() -> None:
        async with Producer("makers", nameserver=nameserver) as producer:
            await producer.send(Message("Later", b"level", delay_level=1))
        probe.ask("consumer", "later", group="later", topic="Later")
        await asyncio.to_thread(probe.wait_bodies, ["level"], "later")

    asyncio.run(body())
    probe.stop("later")


def test_producer_sends_and_recalls_timed_messages_at_rocketmq(
    version: str, nameserver: str, probe: ClientProbe
) -> None:
    if version == java_servers.FOUR:
        pytest.skip("RocketMQ 4 delays by level only")

    async def body() -> None:
        async with Producer("makers", nameserver=nameserver) as producer:
            gone = await producer.send(Message("Timed", b"no", delay=timedelta(seconds=5)))
            await producer.send(Message("Timed", b"yes", delay=timedelta(seconds=6)))
            assert gone.recall_handle is not None
            assert await producer.recall("Timed", gone.recall_handle) == gone.message_id
        probe.ask("consumer", "timed", group="timed", topic="Timed")
        await asyncio.to_thread(probe.wait_bodies, ["yes"], "timed")

    asyncio.run(body())
    probe.stop("timed")


def test_producer_raises_on_rejections_by_rocketmq(nameserver: str) -> None:
    async def body() -> None:
        async with Producer("makers", nameserver=nameserver) as producer:
            with pytest.raises(SendFailed, match="3 tries") as raised:
                await producer.send(Message("SCHEDULE_TOPIC_XXXX", b"x"))
            assert isinstance(raised.value.__cause__, NoPermission)

    asyncio.run(body())


def test_producer_traces_reach_rocketmq(nameserver: str, probe: ClientProbe) -> None:
    """Java's consumer receives them; the mqadmin tests show that Java can read them."""

    async def body() -> None:
        options = ProducerOptions(trace=True)
        async with Producer("makers", nameserver=nameserver, options=options) as producer:
            sent = await producer.send(Message("Traced", b"x", keys="K"))
        probe.ask("consumer", "traces", group="traces", topic="RMQ_SYS_TRACE_TOPIC")
        (event,) = probe.wait_events("traces")
        (record,) = decode_trace(event["body"])
        assert isinstance(record, Published)
        assert (record.message_id, record.offset_id) == (sent.message_id, sent.offset_id)

    asyncio.run(body())
    probe.stop("traces")


def test_producer_replies_to_a_request_over_rocketmq(nameserver: str, probe: ClientProbe) -> None:
    """The broker forwards the reply. Java's client consumes the request and shows its properties;
    our producer sends the reply."""

    async def body() -> None:
        async with Producer("askers", nameserver=nameserver) as producer:
            asking = asyncio.create_task(producer.request(Message("Asked", b"?"), timeout_s=40))
            probe.ask("consumer", "asked", group="asked", topic="Asked")
            (event,) = await asyncio.to_thread(probe.wait_events, "asked")
            asked = event["properties"]
            assert asked["REPLY_TO_CLIENT"] == producer.client_id
            assert asked["TTL"] == "40000"
            reply = Message(f"{asked['CLUSTER']}_REPLY_TOPIC", b"!")
            added = {
                name.encode(): asked[name] for name in ("CORRELATION_ID", "REPLY_TO_CLIENT", "TTL")
            }
            outgoing = producer._running()
            await outgoing.send_with(
                reply, {**added, b"MSG_TYPE": "reply"}, code=RequestCode.SEND_REPLY_MESSAGE_V2
            )
            assert (await asking).body == b"!"

    asyncio.run(body())
    probe.stop("asked")
