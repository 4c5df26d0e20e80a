"""Broadcasting: everything for everybody, with offsets of one's own in Java's file."""

from pathlib import Path

import pytest
from consuming import Notes, asynchronous, numbers, send, until

from tianzhou.base.errors import UsageError
from tianzhou.client.aio.push_consumer import PushConsumer
from tianzhou.client.consumer_options import ConsumerOptions
from tianzhou.client.core.offsets import StartPosition
from tianzhou.client.options import ClientOptions
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


def test_broadcast_offset_file_is_in_the_home_directory(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from tianzhou.client.consume.offsets import FileOffsets

    monkeypatch.setenv("HOME", str(tmp_path))
    store = FileOffsets(None, "1.2.3.4@x", "g")
    assert store._path == tmp_path / ".rocketmq_offsets" / "1.2.3.4@x" / "g" / "offsets.json"
