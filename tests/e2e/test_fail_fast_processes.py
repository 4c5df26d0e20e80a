"""A broker that cannot store in time rejects sends before it stores them, so that producers send
them elsewhere: real processes, a disk that stalls, a process that is paused."""

import asyncio
import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from two_brokers import TwoBrokers

from tianzhou.client import Message, Producer, ProducerOptions
from tianzhou.testing.kit.server_process import TIANZHOU

pytestmark = pytest.mark.slow

Start = Callable[..., TwoBrokers]
RATE_S = 0.005
"""One send this often."""


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    made: list[TwoBrokers] = []

    def started(*settings: str) -> TwoBrokers:
        made.append(TwoBrokers(tmp_path / str(len(made)), *settings))
        return made[-1]

    yield started
    for one in made:
        one.end()


def shown(brokers: TwoBrokers, *words: str) -> Any:
    done = subprocess.run(
        [TIANZHOU, *words, "-n", brokers.nameserver, "--json"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return json.loads(done.stdout)


async def wait_rejected(brokers: TwoBrokers, count: int) -> int:
    async with asyncio.timeout(60):
        while (found := await brokers.rejected()) < count:  # noqa: ASYNC110 - another process
            await asyncio.sleep(0.05)
    return found


def test_sends_go_to_another_broker_while_the_disk_stalls(start: Start) -> None:
    brokers = start(
        "flushDiskType=SYNC_FLUSH", "waitTimeMillsInSendQueue=0", "syncFlushTimeout=60000"
    )
    options = ProducerOptions(send_timeout_s=60, try_timeout_s=50, tries_max=20)

    async def body() -> None:
        await brokers.create("orders")
        sends: dict[str, asyncio.Task[Any]] = {}
        is_over = asyncio.Event()
        async with Producer("makers", nameserver=brokers.nameserver, options=options) as producer:

            async def produce() -> None:
                while not is_over.is_set():
                    text = str(len(sends))
                    message = Message("orders", text.encode())
                    sends[text] = asyncio.create_task(producer.send(message))
                    await asyncio.sleep(RATE_S)

            producing = asyncio.create_task(produce())
            async with asyncio.timeout(60):
                while sum(task.done() for task in sends.values()) < 100:  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
            brokers.stall.begin()
            try:
                await wait_rejected(brokers, 1)
            finally:
                brokers.stall.end()
            is_over.set()
            await producing
            results = {text: await task for text, task in sends.items()}
        status = await asyncio.to_thread(shown, brokers, "broker", "status", "broker-a")
        found = await asyncio.to_thread(shown, brokers, "doctor")
        assert status["rejected_busy"] > 0
        (alarm,) = [one for one in status["alarms"] if one["kind"] == "sends_rejected_busy"]
        assert "for the disk" in alarm["said"]
        assert "sends with SYSTEM_BUSY" in json.dumps(found)
        assert {result.status.name for result in results.values()} == {"SEND_OK"}
        stored = await brokers.stored("orders")
        assert dict(stored) == dict.fromkeys(results, 1), "each message once"

    asyncio.run(body())


@pytest.mark.parametrize("is_on", [True, False], ids=["fail_fast", "off"])
def test_sends_that_arrived_during_a_pause_are_not_stored_twice(
    start: Start, *, is_on: bool
) -> None:
    brokers = start(f"brokerFastFailureEnable={str(is_on).lower()}")
    options = ProducerOptions(send_timeout_s=60, try_timeout_s=1.5)
    count = 40

    async def body() -> None:
        await brokers.create("orders")
        async with Producer("makers", nameserver=brokers.nameserver, options=options) as producer:
            for queue in await producer.queues("orders"):
                await producer.send(Message("orders", b"first"), queue=queue)
            brokers.a.pause()
            try:
                texts = [str(number) for number in range(count)]
                sends = [producer.send(Message("orders", text.encode())) for text in texts]
                results = await asyncio.gather(*sends)
            finally:
                brokers.a.resume()
            assert {result.queue.broker_name for result in results} == {"broker-b"}
            twice = count // 2  # every other message went to the paused broker first
            if is_on:
                assert await wait_rejected(brokers, twice) == twice
            stored = await brokers.stored("orders")
            if not is_on:
                async with asyncio.timeout(60):
                    while stored.total() < count + 8 + twice:
                        stored = await brokers.stored("orders")
        del stored["first"]
        assert sorted(stored) == sorted(texts)
        assert stored.total() == (count if is_on else count + twice)

    asyncio.run(body())
