"""Consumers restarted one after the other, and killed, under load: nothing is lost.

Where a message may be delivered twice, and why, when all stop in order:

- A consumer that leaves commits before it leaves, so whoever takes over begins behind it: none.
- When queues move between members that stay, the old owner commits as soon as it hears of the
  change, and the new one waits a moment (`HANDOVER_S`) before it reads the offset. What the old one
  has in hand for longer than that is delivered to both.

When a consumer is killed, everything since its last commit comes again; it commits with each pull.
"""

import asyncio
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest
from consumer_process import ConsumerProcess
from consuming import until

from clients import server_process
from clients.server_process import ServerProcess
from tianzhou.client import Message, Producer, ProducerOptions
from tianzhou.client.options import Batching

COUNT = 100_000
DUPLICATES_MAX = COUNT // 50
"""Two in a hundred; a calm machine sees none at all."""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    running = server_process.up(tmp_path / "server", "--ephemeral")
    yield running
    running.end()


async def send_all(nameserver: str, topic: str, count: int) -> None:
    # On a crowded machine a thousand sends take longer than the default of three seconds.
    options = ProducerOptions(batching=Batching(), send_timeout_s=60)
    async with Producer("senders", nameserver=nameserver, options=options) as producer:
        for first in range(0, count, 1000):
            await asyncio.gather(
                *(producer.send(Message(topic, b"%d" % n)) for n in range(first, first + 1000))
            )


class Fleet:
    """Consumer processes of one group."""

    def __init__(self, server: ServerProcess, directory: Path, mode: str) -> None:
        self._server = server
        self._directory = directory
        self._mode = mode
        self.all: list[ConsumerProcess] = []

    def start(self) -> ConsumerProcess:
        output = self._directory / f"consumer-{len(self.all)}.txt"
        process = ConsumerProcess(self._server.nameserver, "g", "rolling", output, self._mode)
        self.all.append(process)
        return process

    def lines(self) -> int:
        """How many deliveries there were: a quick look."""
        written = [process.output for process in self.all if process.output.exists()]
        return sum(path.read_bytes().count(b"\n") for path in written)

    async def has_all(self, count: int) -> None:
        await until(lambda: self.lines() >= count, within_s=60, what=f"{count} deliveries")
        await until(lambda: len(self.counts()) == count, within_s=30, what="every message")

    def counts(self) -> Counter[int]:
        return Counter(number for process in self.all for _, _, number in process.rows())

    def end(self) -> None:
        for process in self.all:
            process.end()


@pytest.mark.parametrize("mode", ["concurrent", "orderly"])
def test_rolling_restart_of_consumers_loses_nothing(
    server: ServerProcess, tmp_path: Path, mode: str, capsys: pytest.CaptureFixture[str]
) -> None:
    fleet = Fleet(server, tmp_path, mode)

    async def roll() -> None:
        living = [fleet.start() for _ in range(3)]
        for process in living:
            await until(process.is_ready)
        sending = asyncio.ensure_future(send_all(server.nameserver, "rolling", COUNT))
        for old in list(living):
            await until(lambda: fleet.lines() > 0)
            await asyncio.to_thread(old.stop)
            await until(fleet.start().is_ready)
        await sending
        await fleet.has_all(COUNT)
        for process in fleet.all[3:]:
            await asyncio.to_thread(process.stop)

    try:
        asyncio.run(roll())
    finally:
        fleet.end()
    counts = fleet.counts()
    assert set(counts) == set(range(COUNT))
    again = sum(counts.values()) - COUNT
    with capsys.disabled():
        print(f"\n{mode}: {COUNT} messages, {again} of them twice")  # noqa: T201 - the count
    assert again <= (0 if mode == "orderly" else DUPLICATES_MAX)
    if mode == "orderly":
        assert_in_order(fleet)


def assert_in_order(fleet: Fleet) -> None:
    """Each process saw each queue in order, and no two saw the same of it."""
    for process in fleet.all:
        offsets = defaultdict[int, list[int]](list)
        for queue_id, offset, _ in process.rows():
            offsets[queue_id].append(offset)
        assert all(found == sorted(found) for found in offsets.values())


def test_killed_consumers_lose_nothing(server: ServerProcess, tmp_path: Path) -> None:
    fleet, count = Fleet(server, tmp_path, "concurrent"), 20_000

    async def roll() -> None:
        living = [fleet.start() for _ in range(2)]
        for process in living:
            await until(process.is_ready)
        sending = asyncio.ensure_future(send_all(server.nameserver, "rolling", count))
        for old in list(living):
            before = fleet.lines()
            await until(lambda seen=before: fleet.lines() > min(seen + 500, count - 1))
            old.kill()
            await until(fleet.start().is_ready)
        await sending
        await fleet.has_all(count)

    try:
        asyncio.run(roll())
    finally:
        fleet.end()
    assert set(fleet.counts()) == set(range(count))
