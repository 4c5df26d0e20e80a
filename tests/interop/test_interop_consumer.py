"""Our consumers with a RocketMQ broker, and our consumer and Java's in one group."""

import asyncio
import contextlib
import functools
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from client_probe import ClientProbe

from tianzhou.client import (
    Admin,
    ClientOptions,
    ConsumerOptions,
    LitePullConsumer,
    Message,
    Producer,
    PullConsumer,
    PullStatus,
    PushConsumer,
    ReceivedMessage,
    Sql92,
    StartPosition,
)
from tianzhou.client.core import assignment
from tianzhou.client.errors import RemoteError, TianzhouError

BROKER = "broker-java"
SHARE_S = 40.0


def play(body: Callable[[], Awaitable[None]]) -> None:
    async def within() -> None:
        await asyncio.wait_for(body(), 90)

    asyncio.run(within())


async def until(look: Callable[[], object], what: str, within_s: float = SHARE_S) -> None:
    try:
        async with asyncio.timeout(within_s):
            while not look():  # noqa: ASYNC110 - the condition depends on another process
                await asyncio.sleep(0.02)
    except TimeoutError:
        raise AssertionError(f"not within {within_s} s: {what}") from None


async def send(nameserver: str, topic: str, bodies: list[str], tags: str | None = None) -> None:
    async with Producer("makers", nameserver=nameserver) as producer:
        for body in bodies:
            await producer.send(Message(topic, body.encode(), tags=tags))


def numbered(count: int, first: int = 0) -> list[str]:
    return [f"{n:04}" for n in range(first, first + count)]


def consumer_of(
    nameserver: str, topic: str, expression: str = "*", **options: object
) -> PushConsumer:
    made = ConsumerOptions(start_from=StartPosition.FIRST, **options)  # pyright: ignore[reportArgumentType] # the class checks them
    return PushConsumer(
        f"{topic}-group", nameserver=nameserver, subscribe={topic: expression}, options=made
    )


@pytest.mark.parametrize("orderly", [False, True])
def test_consumer_loop_gets_messages_from_rocketmq(nameserver: str, orderly: bool) -> None:
    topic = f"Loop-{orderly}"

    async def body() -> None:
        await send(nameserver, topic, numbered(40), tags="wanted")
        await send(nameserver, topic, numbered(40, first=100), tags="other")
        got: list[str] = []
        async with consumer_of(nameserver, topic, "wanted", orderly=orderly) as consumer:
            async for message in consumer:
                got.append(message.body.decode())
                if len(got) == 40:
                    break
        assert sorted(got) == numbered(40)
        # The consumer committed before it left: nothing is delivered again.
        await send(nameserver, topic, ["last"], tags="wanted")
        async with consumer_of(nameserver, topic, "wanted", orderly=orderly) as consumer:
            assert (await anext(aiter(consumer))).body == b"last"

    play(body)


def test_failed_message_is_retried_and_becomes_a_dead_letter_at_rocketmq(nameserver: str) -> None:
    async def body() -> None:
        await send(nameserver, "Fails", ["stubborn"])
        seen: list[ReceivedMessage] = []
        consumer = consumer_of(nameserver, "Fails", max_reconsume_times=1)

        @consumer.listen
        async def fail(message: ReceivedMessage) -> None:  # pyright: ignore[reportUnusedFunction] # the consumer has it
            seen.append(message)
            message.retry(1)

        async with consumer:
            await until(lambda: len(seen) == 2, "the second delivery")
            async with PullConsumer("reader", nameserver=nameserver) as reader:
                dead = await _dead_letters(reader, "%DLQ%Fails-group")
        assert [message.reconsume_times for message in seen] == [0, 1]
        assert {message.topic for message in seen} == {"Fails"}
        assert [message.body for message in dead] == [b"stubborn"]

    play(body)


async def _dead_letters(reader: PullConsumer, topic: str) -> list[ReceivedMessage]:
    async with asyncio.timeout(SHARE_S):
        while True:
            try:
                (queue,) = await reader.queues(topic)
                found = await reader.pull(queue, 0)
            except TianzhouError:  # the first dead letter creates the topic
                found = None
            if found is not None and found.status is PullStatus.FOUND:
                return list(found.messages)
            await asyncio.sleep(0.1)


def test_consumer_polls_and_seeks_at_rocketmq(nameserver: str) -> None:
    async def body() -> None:
        await send(nameserver, "Polled", numbered(20))
        options = ConsumerOptions(start_from=StartPosition.FIRST)
        async with LitePullConsumer("polls", nameserver=nameserver, options=options) as consumer:
            queues = await consumer.queues("Polled")
            await consumer.assign(queues)
            got: list[str] = []
            while len(got) < 20:
                got += [message.body.decode() for message in await consumer.poll()]
            assert sorted(got) == numbered(20)
            await consumer.seek(queues[0], await consumer.offset_at(queues[0], 0))
            again = await consumer.poll()
            assert {message.queue for message in again} == {queues[0]}
            await consumer.commit()
            assert await consumer.committed(queues[0]) == again[-1].queue_offset + 1

    play(body)


def test_sql_filter_is_rejected_while_disabled_and_works_when_enabled(nameserver: str) -> None:
    """RocketMQ disables SQL filters by default, and its error says so."""

    async def body() -> None:
        await send(nameserver, "Filtered", ["before"])
        wanted = {"Filtered": Sql92("a > 1 AND region IN ('east', 'west')")}
        options = ConsumerOptions(start_from=StartPosition.FIRST)
        with pytest.raises(RemoteError, match=r"(?i)filter|support"):
            await PushConsumer("filters", nameserver=nameserver, subscribe=wanted).start()
        async with Admin(nameserver=nameserver) as admin:
            await admin.brokers.configure(BROKER, {"enablePropertyFilter": "true"})
        async with Producer("makers", nameserver=nameserver) as producer:
            for rank in range(12):
                properties = {"a": str(rank % 4), "region": ("east", "south", "west")[rank % 3]}
                await producer.send(Message("Filtered", b"%d" % rank, properties=properties))
        expected = {rank for rank in range(12) if rank % 4 > 1 and rank % 3 != 1}
        got: set[int] = set()
        async with PushConsumer(
            "filters", nameserver=nameserver, subscribe=wanted, options=options
        ) as consumer:
            async for message in consumer:
                got.add(int(message.body))
                if got >= expected:
                    break
        assert got == expected

    play(body)


def test_broadcast_from_rocketmq_reaches_every_member(nameserver: str, tmp_path: Path) -> None:
    async def body() -> None:
        await send(nameserver, "Broadcast", numbered(12))
        seen: tuple[set[str], set[str]] = (set(), set())
        async with contextlib.AsyncExitStack() as stack:
            for rank, got in enumerate(seen):
                consumer = PushConsumer(
                    "everybody",
                    nameserver=nameserver,
                    subscribe={"Broadcast": "*"},
                    options=ConsumerOptions(
                        start_from=StartPosition.FIRST,
                        broadcasting=True,
                        offsets_directory=tmp_path,
                    ),
                    client=ClientOptions(instance_name=f"member-{rank}"),
                )
                consumer.listen(functools.partial(_note, got))
                await stack.enter_async_context(consumer)
            await until(lambda: seen == (set(numbered(12)), set(numbered(12))), "twelve each")

    play(body)


def _note(got: set[str], message: ReceivedMessage) -> None:
    got.add(message.body.decode())


@pytest.mark.parametrize("model", ["concurrent", "orderly"])
def test_group_with_a_java_member_splits_the_queues(
    nameserver: str, probe: ClientProbe, model: str
) -> None:
    topic, name = f"Mixed-{model}", f"java-{model}"
    more = {"model": "orderly"} if model == "orderly" else {}

    async def body() -> None:
        await send(nameserver, topic, ["first"])
        ours: list[ReceivedMessage] = []
        consumer = consumer_of(
            nameserver, topic, orderly=model == "orderly", strategy=assignment.average
        )

        @consumer.listen
        async def note(message: ReceivedMessage) -> None:  # pyright: ignore[reportUnusedFunction] # the consumer has it
            ours.append(message)

        def assigned_count() -> int:
            return sum(queue.topic == topic for queue in consumer.assignment)

        async with consumer:
            await until(lambda: len(ours) == 1, "the first message")
            await asyncio.to_thread(
                probe.ask, "consumer", name, group=f"{topic}-group", topic=topic, **more
            )
            await until(lambda: assigned_count() == 2, "two queues each")
            await _java_has_begun(nameserver, f"{topic}-group", topic, but=consumer.client_id)
            await send(nameserver, topic, numbered(100))
            await until(
                lambda: (
                    {m.body.decode() for m in ours} | set(probe.bodies(name))
                    == {"first", *numbered(100)}
                ),
                "everything for both",
            )
            theirs = {event["queueId"] for event in probe.events(name)}
            mine = {m.queue_id for m in ours if m.body != b"first"}
            assert len(mine) == len(theirs) == 2
            assert not mine & theirs
            await asyncio.to_thread(probe.stop, name)
            await until(lambda: assigned_count() == 4, "all four again")
            await send(nameserver, topic, numbered(40, first=1000))
            await until(
                lambda: set(numbered(40, first=1000)) <= {m.body.decode() for m in ours},
                "everything for us",
            )

    play(body)


async def _java_has_begun(nameserver: str, group: str, topic: str, *, but: str) -> None:
    """A Java consumer without a committed offset starts with messages sent after its first pull."""
    async with Admin(nameserver=nameserver) as admin, asyncio.timeout(SHARE_S):
        while True:
            connected = await admin.groups.consumers(group)
            assert connected is not None
            others = [one.client_id for one in connected.connection_set if one.client_id != but]
            assigned_count = [
                queue
                for client_id in others
                for queue in (await admin.groups.running(group, client_id)).queues
                if queue.topic == topic
            ]
            if len(assigned_count) == 2:
                return
            await asyncio.sleep(0.05)
