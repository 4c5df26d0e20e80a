"""Offsets in a store of the user: instead of the brokers, instead of the broadcast file, and in one
transaction with the results."""

import logging
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from consuming import Notes, asynchronous, consuming, numbers, send, until
from exactly_once_process import SqliteOffsets

from tianzhou.base.errors import UsageError
from tianzhou.client import ConsumerOptions, LitePullConsumer, StartPosition, sync
from tianzhou.testing import RunningBroker
from tianzhou.wire.queues import MessageQueue

ALL = {"orders": "*"}
SCRIPT = Path(__file__).with_name("exactly_once_process.py")


class Memory:
    """A store in memory, which fails on demand."""

    def __init__(self, offsets: Mapping[MessageQueue, int] | None = None) -> None:
        self.offsets = dict(offsets or {})
        self.failure: Exception | None = None
        self.groups: set[str] = set()

    def load(self, group: str, queue: MessageQueue) -> int | None:
        self._fail()
        self.groups.add(group)
        return self.offsets.get(queue)

    def save(self, group: str, offsets: Mapping[MessageQueue, int]) -> None:
        self._fail()
        self.groups.add(group)
        self.offsets.update(offsets)

    def _fail(self) -> None:
        if self.failure is not None:
            raise self.failure


class AsyncMemory:
    """The same with coroutine functions."""

    def __init__(self, inner: Memory) -> None:
        self._inner = inner

    async def load(self, group: str, queue: MessageQueue) -> int | None:
        return self._inner.load(group, queue)

    async def save(self, group: str, offsets: Mapping[MessageQueue, int]) -> None:
        self._inner.save(group, offsets)


def queue_of(mq: RunningBroker) -> MessageQueue:
    return MessageQueue(topic="orders", broker_name=mq.name, queue_id=0)


@pytest.mark.slow
@pytest.mark.parametrize("keeper", ["store", "broker"])
def test_results_and_offsets_in_one_sqlite_transaction_take_effect_exactly_once(
    mq: RunningBroker, tmp_path: Path, keeper: str
) -> None:
    """The consumer is killed after the transaction of message 2, before it knows that the message
    is done. With offsets at the brokers, messages are processed twice."""
    mq.create_topic("orders", queues=1)
    with sync.Producer("senders", nameserver=mq.nameserver) as producer:
        for body in numbers(6):
            producer.send(sync.Message("orders", body))
    path = str(tmp_path / "ledger.db")
    command = [sys.executable, str(SCRIPT), mq.nameserver, path]
    first = subprocess.run([*command, "3", keeper], timeout=120, capture_output=True, text=True)
    assert first.returncode == -signal.SIGKILL, first.stderr
    results = SqliteOffsets(path).results
    assert results() == [0, 1, 2]
    second = subprocess.Popen([*command, "0", keeper])
    try:
        mq.wait_until(lambda: 5 in results(), within_s=60)
    finally:
        second.kill()
        second.wait(60)
    assert (results() == [0, 1, 2, 3, 4, 5]) is (keeper == "store"), results()


@pytest.mark.parametrize("is_async", [False, True])
def test_store_decides_where_a_clustering_consumer_starts(
    mq: RunningBroker, is_async: bool
) -> None:
    @asynchronous
    async def play() -> None:
        mq.create_topic("orders", queues=1)
        await send(mq, "orders", numbers(10))
        store, notes = Memory({queue_of(mq): 7}), Notes()
        given = AsyncMemory(store) if is_async else store
        async with consuming(mq, "g", ALL, notes.take, offset_store=given, commit_interval_s=0.05):
            await until(lambda: notes.values == [7, 8, 9])
            await until(lambda: store.offsets.get(queue_of(mq)) == 10)
        assert store.groups == {"g"}
        # The brokers learn the offsets with the pulls, so that tools can show the lag.
        assert mq.committed("g", "orders").keys() <= {0}

    play()


@asynchronous
async def test_queue_that_the_store_does_not_have_starts_at_the_offset_of_the_brokers(
    mq: RunningBroker,
) -> None:
    mq.create_topic("orders", queues=1)
    await send(mq, "orders", numbers(5))
    first = Notes()
    async with consuming(mq, "g", ALL, first.take, start_from=StartPosition.FIRST):
        await until(lambda: len(first.messages) == 5)
    await send(mq, "orders", [b"5"])
    notes, store = Notes(), Memory()
    async with consuming(mq, "g", ALL, notes.take, offset_store=store):
        await until(lambda: notes.values == [5])
    assert store.offsets.get(queue_of(mq)) == 6


@asynchronous
async def test_store_replaces_the_file_of_a_broadcasting_consumer(
    mq: RunningBroker, tmp_path: Path
) -> None:
    mq.create_topic("orders", queues=1)
    store = Memory()
    options: dict[str, Any] = {
        "broadcasting": True,
        "offset_store": store,
        "offsets_directory": tmp_path,
    }
    async with consuming(mq, "g", ALL, Notes().take, **options):
        assert store.offsets.get(queue_of(mq)) == 0, "the start is stored at once"
    await send(mq, "orders", numbers(3))
    notes = Notes()
    async with consuming(mq, "g", ALL, notes.take, **options):
        await until(lambda: notes.values == [0, 1, 2])
    assert store.offsets.get(queue_of(mq)) == 3
    assert os.listdir(tmp_path) == []


@asynchronous
async def test_polling_consumer_starts_and_commits_in_the_store(mq: RunningBroker) -> None:
    mq.create_topic("orders", queues=1)
    await send(mq, "orders", numbers(6))
    store, queue = Memory({queue_of(mq): 4}), queue_of(mq)
    options = ConsumerOptions(offset_store=store, auto_ack=False)
    async with LitePullConsumer("g", nameserver=mq.nameserver, options=options) as consumer:
        await consumer.assign([queue])
        assert [message.body for message in await consumer.poll()] == [b"4", b"5"]
        await consumer.commit({queue: 5})
        assert await consumer.committed(queue) == 5
    assert store.offsets == {queue: 5}


@asynchronous
async def test_failing_store_is_called_again_and_logged_once(
    mq: RunningBroker, caplog: pytest.LogCaptureFixture
) -> None:
    mq.create_topic("orders", queues=1)
    store, notes = Memory({queue_of(mq): 1}), Notes()
    store.failure = OSError("the database is locked")

    def warnings() -> list[str]:
        rows = caplog.records
        return [row.getMessage() for row in rows if row.levelno == logging.WARNING]

    async with consuming(mq, "g", ALL, notes.take, offset_store=store, commit_interval_s=0.05):
        await until(warnings)
        await send(mq, "orders", numbers(3))
        store.failure = None
        await until(lambda: notes.values == [1, 2])
        await until(lambda: store.offsets.get(queue_of(mq)) == 3)
        caplog.clear()
        store.failure = OSError("the disk is full")
        await send(mq, "orders", [b"3"])
        await until(warnings)
        store.failure = None
        await until(lambda: store.offsets.get(queue_of(mq)) == 4)
    (line,) = warnings()
    assert line.startswith("group g: the offset store failed in Memory.save: OSError(")


def test_blocking_consumer_uses_the_store(mq: RunningBroker) -> None:
    mq.create_topic("orders", queues=1)
    with sync.Producer("senders", nameserver=mq.nameserver) as producer:
        for body in numbers(3):
            producer.send(sync.Message("orders", body))
    store = Memory({queue_of(mq): 2})
    options = ConsumerOptions(offset_store=store)
    with sync.PushConsumer("g", nameserver=mq.nameserver, subscribe=ALL, options=options) as mine:
        assert next(iter(mine)).body == b"2"
    assert store.offsets.get(queue_of(mq)) == 3


def test_store_without_a_method_is_rejected() -> None:
    wrong: Any = {}
    with pytest.raises(UsageError, match=r"offset_store \{\} has no method load; it needs load"):
        ConsumerOptions(offset_store=wrong)
