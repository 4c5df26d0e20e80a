"""Two brokers in processes of their own, one killed with -9 while sends are under way."""

import asyncio
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from loops import Run

from clients import server_process
from clients.server_process import ServerProcess, spare_port
from tianzhou.client import (
    Admin,
    Batching,
    ClientOptions,
    Message,
    Producer,
    ProducerOptions,
    SendResult,
)
from tianzhou.client.aio.send_engine import PendingSend
from tianzhou.client.core.send import Action, Event


@dataclass
class Cluster:
    directory: Path
    names: ServerProcess
    brokers: dict[str, ServerProcess]
    ports: dict[str, int]

    @property
    def nameserver(self) -> str:
        return self.names.nameserver

    def start_broker(self, name: str) -> None:
        settings = self.directory / f"{name}.toml"
        settings.write_text(f'name = "{name}"\n')
        self.brokers[name] = server_process.run(
            [
                "broker",
                "-n",
                self.nameserver,
                "-c",
                str(settings),
                "-p",
                str(self.ports[name]),
                "--data",
                str(self.directory / name / "data"),
            ],
            self.directory / name,
        )

    def end(self) -> None:
        for server in (*self.brokers.values(), self.names):
            server.end()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    port = spare_port()
    names = server_process.run(["nameserver", "-p", str(port)], tmp_path / "names")
    made = Cluster(tmp_path, names, {}, {"broker-a": spare_port(), "broker-b": spare_port()})
    try:
        for name in made.ports:
            made.start_broker(name)
        yield made
    finally:
        made.end()


async def make_topic(producer: Producer, cluster: Cluster, topic: str) -> None:
    """At both brokers at once: a route that shows it at one of them leads to no other."""
    async with Admin(nameserver=cluster.nameserver) as admin:
        await admin.topics.create(topic, queues=4)
    queues = await producer.queues(topic)
    assert {queue.broker_name for queue in queues} == {"broker-a", "broker-b"}
    for queue in queues:
        await producer.send(Message(topic, b"warm"), queue=queue)


@pytest.fixture
def failures(monkeypatch: pytest.MonkeyPatch) -> Counter[int]:
    """Failed tries of each send, noted as they happen."""
    counts: Counter[int] = Counter()
    original = PendingSend.handle

    def noted(self: PendingSend, event: Event, now_s: float, detail: object = None) -> Action:
        before = len(self.tries)
        action = original(self, event, now_s, detail)
        if len(self.tries) > before:
            counts[id(self._request)] += 1
            kept.append(self)
        return action

    kept: list[PendingSend] = []  # so that no id is used twice
    monkeypatch.setattr(PendingSend, "handle", noted)
    return counts


@pytest.mark.parametrize("batching", [None, Batching()])
def test_sends_after_a_broker_kill_have_at_most_one_failed_attempt(
    cluster: Cluster, run: Run, failures: Counter[int], batching: Batching | None
) -> None:
    # A dead broker fails a try at once; a try must not time out because the machine is crowded.
    options = ProducerOptions(batching=batching, send_timeout_s=60)

    async def body() -> None:
        async with Producer("makers", nameserver=cluster.nameserver, options=options) as producer:
            await make_topic(producer, cluster, "going")
            killed = asyncio.Event()

            async def work(rank: int) -> list[SendResult]:
                results: list[SendResult] = []
                for n in range(100):
                    if rank == 0 and n == 20:
                        cluster.brokers["broker-a"].kill()
                        killed.set()
                    results.append(await producer.send(Message("going", b"%d %d" % (rank, n))))
                return results

            done = await asyncio.gather(*(work(rank) for rank in range(16)))
            assert killed.is_set()
        assert [len(results) for results in done] == [100] * 16
        after = [result for results in done for result in results[60:]]
        assert {result.queue.broker_name for result in after} == {"broker-b"}

    run(body)
    assert failures, "the kill hit nobody; the test shows nothing"
    assert max(failures.values()) == 1


def test_sends_use_a_killed_broker_again_after_its_restart(cluster: Cluster) -> None:
    async def body() -> None:
        often = ClientOptions(route_interval_s=0.2)
        async with Producer("makers", nameserver=cluster.nameserver, client=often) as producer:
            await make_topic(producer, cluster, "back")
            cluster.brokers["broker-a"].kill()
            for _ in range(16):
                await producer.send(Message("back", b"without"))
            await asyncio.to_thread(cluster.start_broker, "broker-a")
            used = ""
            async with asyncio.timeout(120):  # it is left alone for ten seconds
                while used != "broker-a":
                    await asyncio.sleep(0.05)
                    used = (await producer.send(Message("back", b"with"))).queue.broker_name

    asyncio.run(body())
