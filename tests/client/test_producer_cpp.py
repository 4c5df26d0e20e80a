"""RocketMQ's C++ consumer gets what our producer sends: plain, compressed, batched, ordered,
transactional, delayed. And a real process of our broker in between."""

import asyncio
import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from clients import server_process
from clients.cpp_client import Clients, Facts, clients_of, installed
from clients.server_process import ServerProcess
from tianzhou.client import Batching, Compression, Message, Producer, ProducerOptions


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    running = server_process.up(tmp_path_factory.mktemp("up"), "--ephemeral")
    yield running
    running.end()


@pytest.fixture
def clients(server: ServerProcess, tmp_path: Path) -> Iterator[Clients]:
    made = clients_of(server, installed(), tmp_path)
    yield made
    made.end()


async def make_topic(producer: Producer, topic: str) -> None:
    """So that the consumer finds its queues when it starts."""
    await producer.send(Message(topic, b"warm"))


def got(rows: list[Facts]) -> list[Facts]:
    return [row for row in rows if row["body"] != "warm"]


def test_producer_to_cpp_messages_keep_tags_keys_and_properties(
    server: ServerProcess, clients: Clients
) -> None:
    async def body() -> None:
        async with Producer("makers", nameserver=server.nameserver) as producer:
            await make_topic(producer, "plain")
            consumer = clients.push("plain-readers", "plain")
            sent = [
                await producer.send(
                    Message(
                        "plain",
                        f"body {n}".encode(),
                        tags="t",
                        keys=f"k{n}",
                        properties={"colour": "green"},
                    )
                )
                for n in range(20)
            ]
        rows = got(consumer.wait_lines("got", 21))
        by_id = {row["id"]: row for row in rows}
        for n, result in enumerate(sent):
            row = by_id[result.message_id]
            assert (row["body"], row["tags"], row["keys"]) == (f"body {n}", "t", f"k{n}")
            assert (row["queue"], row["offset"]) == (result.queue.queue_id, result.queue_offset)
            assert row["colour"] == "green"

    asyncio.run(body())


def test_producer_to_cpp_compressed_bodies_arrive(server: ServerProcess, clients: Clients) -> None:
    """The C++ client decompresses zlib only and ignores the type bits."""
    large = [b"%d " % n * 2_000 for n in range(10)] + [b"x" * 1_000_000]

    async def body() -> None:
        options = ProducerOptions(compression=Compression.ZLIB)
        async with Producer("makers", nameserver=server.nameserver, options=options) as producer:
            await make_topic(producer, "compressed")
            consumer = clients.push("compressed-readers", "compressed")
            for one in large:
                await producer.send(Message("compressed", one))
        rows = got(consumer.wait_lines("got", len(large) + 1))
        assert {row["sha"] for row in rows} == {hashlib.sha256(one).hexdigest() for one in large}

    asyncio.run(body())


def test_producer_to_cpp_batches_arrive(server: ServerProcess, clients: Clients) -> None:
    async def body() -> None:
        options = ProducerOptions(batching=Batching(count_max=40))
        async with Producer("makers", nameserver=server.nameserver, options=options) as producer:
            await make_topic(producer, "batched")
            consumer = clients.push("batched-readers", "batched")
            given = await producer.send_batch(
                [Message("batched", b"given %d" % n, tags=f"t{n}") for n in range(50)]
            )
            futures = [
                producer.send_async(Message("batched", b"gathered %d" % n)) for n in range(200)
            ]
            gathered = await asyncio.gather(*futures)
        rows = got(consumer.wait_lines("got", 251))
        assert len(rows) == 250
        by_id = {row["id"]: row for row in rows}
        for n, result in enumerate(given):
            assert by_id[result.message_id]["body"] == f"given {n}"
            assert by_id[result.message_id]["tags"] == f"t{n}"
        for n, result in enumerate(gathered):
            assert by_id[result.message_id]["body"] == f"gathered {n}"
            assert by_id[result.message_id]["offset"] == result.queue_offset

    asyncio.run(body())


def test_producer_to_cpp_ordered_messages_keep_their_order(
    server: ServerProcess, clients: Clients
) -> None:
    async def body() -> None:
        async with Producer("makers", nameserver=server.nameserver) as producer:
            await make_topic(producer, "ordered")
            consumer = clients.push("ordered-readers", "ordered", model="orderly")
            for n in range(60):
                key = f"key-{n % 3}"
                await producer.send(Message("ordered", f"{key} {n}".encode(), sharding_key=key))
        rows = got(consumer.wait_lines("got", 61))
        for key in ("key-0", "key-1", "key-2"):
            mine = [row for row in rows if row["body"].startswith(key)]
            assert [int(row["body"].split()[1]) for row in mine] == list(range(int(key[-1]), 60, 3))
            assert len({row["queue"] for row in mine}) == 1

    asyncio.run(body())


def test_producer_to_cpp_transactions_and_delayed_messages_arrive(
    server: ServerProcess, clients: Clients
) -> None:
    async def body() -> None:
        async with Producer("makers", nameserver=server.nameserver) as producer:
            await make_topic(producer, "decided")
            consumer = clients.push("decided-readers", "decided")
            rolled = producer.transaction(Message("decided", b"rolled back"))
            with pytest.raises(ZeroDivisionError):
                async with rolled:
                    raise ZeroDivisionError
            async with producer.transaction(Message("decided", b"committed", keys="T1")):
                pass
            await producer.send(Message("decided", b"delayed", delay_level=1))
        rows = got(consumer.wait_lines("got", 3))
        assert [row["body"] for row in rows] == ["committed", "delayed"]
        assert rows[0]["keys"] == "T1"

    asyncio.run(body())
