"""Broadcasting: everything for everybody, with offsets of one's own in Java's file."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from consuming import Notes, asynchronous, numbers, send, until

from tianzhou.base.errors import UsageError
from tianzhou.client.aio.lite_pull import LitePullConsumer
from tianzhou.client.aio.push_consumer import PushConsumer
from tianzhou.client.consumer_options import ConsumerOptions
from tianzhou.client.core.offsets import StartPosition
from tianzhou.client.options import ClientOptions
from tianzhou.client.transport.connect import local_address
from tianzhou.testing import RunningBroker
from tianzhou.wire.queues import MessageQueue, decode_queue_offsets

ALL = {"orders": "*"}


def broadcast(mq: RunningBroker, directory: Path, name: str, notes: Notes) -> PushConsumer:
    consumer = PushConsumer(
        "g",
        nameserver=mq.nameserver,
        subscribe=ALL,
        options=ConsumerOptions(
            broadcasting=True,
            offsets_directory=directory,
            start_from=StartPosition.FIRST,
            commit_interval_s=0.1,
        ),
        client=ClientOptions(instance_name=name, client_ip="10.0.0.9"),
    )
    consumer.listen(notes.take)
    return consumer


def file_of(directory: Path, name: str) -> Path:
    return directory / f"10.0.0.9@{name}" / "g" / "offsets.json"


@asynchronous
async def test_broadcast_members_each_get_every_message(mq: RunningBroker, tmp_path: Path) -> None:
    mq.create_topic("orders", queues=3)
    await send(mq, "orders", numbers(20))
    one, two = Notes(), Notes()
    async with broadcast(mq, tmp_path, "one", one), broadcast(mq, tmp_path, "two", two):
        await until(lambda: one.values == two.values == list(range(20)))
    # Nothing of it is known to the broker.
    assert mq.committed("g", "orders") == {}


@asynchronous
async def test_broadcast_offsets_are_stored_in_the_java_file(
    mq: RunningBroker, tmp_path: Path
) -> None:
    mq.create_topic("orders", queues=2)
    await send(mq, "orders", numbers(10))
    notes = Notes()
    async with broadcast(mq, tmp_path, "one", notes):
        await until(lambda: len(notes.messages) == 10)
        path = file_of(tmp_path, "one")
        await until(
            lambda: path.exists() and sum(decode_queue_offsets(path.read_bytes()).values()) == 10
        )
    queues = [MessageQueue(topic="orders", broker_name=mq.name, queue_id=n) for n in (0, 1)]
    assert decode_queue_offsets(path.read_bytes()) == dict.fromkeys(queues, 5)
    assert path.read_text().startswith('{"offsetTable":{{"brokerName":')
    # The same instance goes on where it was; another one begins anew.
    await send(mq, "orders", [b"10"])
    again, other = Notes(), Notes()
    async with broadcast(mq, tmp_path, "one", again), broadcast(mq, tmp_path, "two", other):
        await until(lambda: again.values == [10] and other.values == list(range(11)))


@asynchronous
async def test_broadcast_with_a_damaged_offset_file_fails_to_start(
    mq: RunningBroker, tmp_path: Path
) -> None:
    mq.create_topic("orders")
    path = file_of(tmp_path, "one")
    path.parent.mkdir(parents=True)
    path.write_bytes(b"{")
    with pytest.raises(UsageError, match=r"offsets\.json can't be read"):
        await broadcast(mq, tmp_path, "one", Notes()).start()
    # And the consumer can be made again once that is put right.
    path.unlink()
    await (await broadcast(mq, tmp_path, "one", Notes()).start()).stop()


class BroadcastProcess:
    """A broadcasting consumer in a process of its own, as a user writes it: without a name, and
    with its offsets below the home directory."""

    def __init__(self, mq: RunningBroker, home: Path, *more: str) -> None:
        self.output = home / "output"
        with self.output.open("ab") as output:
            self.process = subprocess.Popen(
                [sys.executable, str(SCRIPT), mq.nameserver, *more],
                env={**os.environ, "HOME": str(home)},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )

    def text(self) -> str:
        return self.output.read_text()

    def received(self) -> list[int]:
        lines = self.text().splitlines()
        return [int(line.split()[1]) for line in lines if line.startswith("got ")]

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(60)


SCRIPT = Path(__file__).with_name("broadcast_process.py")


@pytest.fixture
def processes(mq: RunningBroker, tmp_path: Path) -> Iterator[Callable[..., BroadcastProcess]]:
    started: list[BroadcastProcess] = []

    def start(*more: str) -> BroadcastProcess:
        started.append(BroadcastProcess(mq, tmp_path, *more))
        return started[-1]

    yield start
    for one in started:
        one.kill()


def offsets_file(home: Path) -> Path:
    (path,) = (home / ".rocketmq_offsets").glob("*@DEFAULT/g/offsets.json")
    return path


@pytest.mark.slow
@pytest.mark.parametrize("client", ["asyncio", "blocking"])
def test_messages_sent_while_a_broadcasting_consumer_was_killed_are_delivered(
    mq: RunningBroker, processes: Callable[..., BroadcastProcess], tmp_path: Path, client: str
) -> None:
    mq.create_topic("orders", queues=2)
    first = processes(client)
    mq.wait_until(lambda: "started" in first.text())
    first.kill()  # before its first message: only the start position is stored
    asyncio.run(send(mq, "orders", numbers(10)))
    second = processes(client)
    mq.wait_until(lambda: sorted(second.received()) == list(range(10)))
    mq.wait_until(
        lambda: sum(decode_queue_offsets(offsets_file(tmp_path).read_bytes()).values()) == 10
    )
    second.kill()
    asyncio.run(send(mq, "orders", numbers(10, first=10)))
    third = processes(client)
    mq.wait_until(lambda: sorted(third.received()) == list(range(20)))


@pytest.mark.slow
def test_second_broadcasting_process_of_a_group_is_told_to_name_itself(
    mq: RunningBroker, processes: Callable[..., BroadcastProcess]
) -> None:
    mq.create_topic("orders")
    first = processes("asyncio")
    mq.wait_until(lambda: "started" in first.text())
    second = processes("asyncio")
    assert second.process.wait(60) == 1
    error = second.text().splitlines()[-1]
    assert f"@DEFAULT runs on this machine already, in process {first.process.pid};" in error
    assert error.endswith("ClientOptions(instance_name='...')")
    named = processes("asyncio", "two")
    mq.wait_until(lambda: named.text().count("started") == 2)
    asyncio.run(send(mq, "orders", numbers(4)))
    mq.wait_until(lambda: sorted(named.received()) == [0, 0, 1, 1, 2, 2, 3, 3])


@asynchronous
async def test_broadcasting_consumers_start_with_the_client_id_of_java(
    mq: RunningBroker, tmp_path: Path
) -> None:
    mq.create_topic("orders")
    options = ConsumerOptions(broadcasting=True, offsets_directory=tmp_path)
    async with PushConsumer("g", nameserver=mq.nameserver, subscribe=ALL, options=options) as mine:
        assert mine.client_id == f"{local_address()}@DEFAULT"
        polling = LitePullConsumer("g", nameserver=mq.nameserver, subscribe=ALL, options=options)
        with pytest.raises(UsageError, match=r"give this one a name of its own"):
            await polling.start()
        # Members of clustering groups still need no name.
        async with (
            PushConsumer("c", nameserver=mq.nameserver, subscribe=ALL) as one,
            PushConsumer("c", nameserver=mq.nameserver, subscribe=ALL) as two,
        ):
            assert one.client_id != two.client_id
    async with LitePullConsumer("g", nameserver=mq.nameserver, subscribe=ALL, options=options):
        pass


@asynchronous
async def test_polling_broadcast_consumer_keeps_its_place(
    mq: RunningBroker, tmp_path: Path
) -> None:
    mq.create_topic("orders", queues=1)
    options = ConsumerOptions(broadcasting=True, offsets_directory=tmp_path)
    queue = MessageQueue(topic="orders", broker_name=mq.name, queue_id=0)

    def polling() -> LitePullConsumer:
        return LitePullConsumer("g", nameserver=mq.nameserver, subscribe=ALL, options=options)

    async with polling() as consumer:
        assert await consumer.committed(queue) == 0
    await send(mq, "orders", numbers(3))
    async with polling() as consumer:
        assert [message.body for message in await consumer.poll()] == numbers(3)
    async with polling() as consumer:
        assert await consumer.committed(queue) == 3


@asynchronous
async def test_starting_consumer_removes_directories_of_dead_client_ids(
    mq: RunningBroker, tmp_path: Path
) -> None:
    mq.create_topic("orders")
    dead, kept = tmp_path / "10.9.9.9@DEFAULT", tmp_path / "10.9.9.8@DEFAULT"
    for place in (dead, kept):
        (place / "g").mkdir(parents=True)
        (place / "g" / "offsets.json").write_bytes(b'{"offsetTable":{}}')
    for path in (dead, *dead.rglob("*")):
        os.utime(path, (0, 0))
    forever = ConsumerOptions(broadcasting=True, offsets_directory=tmp_path, offsets_keep_days=0)
    async with PushConsumer("g", nameserver=mq.nameserver, subscribe=ALL, options=forever):
        pass
    assert dead.exists()
    options = ConsumerOptions(broadcasting=True, offsets_directory=tmp_path)
    async with PushConsumer("g", nameserver=mq.nameserver, subscribe=ALL, options=options):
        await until(lambda: not dead.exists())
    assert kept.exists()
    with pytest.raises(UsageError, match=r"offsets_keep_days is 0\.5; it must be at least 1, or 0"):
        ConsumerOptions(offsets_keep_days=0.5)
