"""Servers in processes of their own, killed with -9 while consumers are at work."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from consuming import Notes, consuming, until

from clients import server_process
from clients.server_process import ServerProcess, spare_port
from tianzhou.client import Admin, Message, Producer, PushConsumer
from tianzhou.client.options import ClientOptions

QUICK = ClientOptions(route_interval_s=1.0)
"""Routes are asked for every 30 s by default; a test has no time for that."""


class Servers:
    """A NameServer and two brokers, each always on the same port and data."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._ports = {name: spare_port() for name in ("names", "broker-a", "broker-b")}
        self.running: dict[str, ServerProcess] = {}
        for name in self._ports:
            self.start(name)

    @property
    def nameserver(self) -> str:
        return f"127.0.0.1:{self._ports['names']}"

    def start(self, name: str) -> None:
        place, port = self._directory / name, str(self._ports[name])
        command = ["nameserver", "-p", port]
        if name != "names":
            place.mkdir(exist_ok=True)
            (place / "broker.toml").write_text(f'name = "{name}"\n')
            command = [
                "broker",
                "-n",
                self.nameserver,
                "-c",
                str(place / "broker.toml"),
                "-p",
                port,
                "--data",
                str(place / "data"),
            ]
        self.running[name] = server_process.run(command, place)

    def kill(self, name: str) -> None:
        self.running.pop(name).kill()

    def end(self) -> None:
        for server in self.running.values():
            server.end()


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[Servers]:
    made = Servers(tmp_path)
    yield made
    made.end()


async def send(servers: Servers, numbers: range) -> None:
    async with Producer("senders", nameserver=servers.nameserver, client=QUICK) as producer:
        for number in numbers:
            await producer.send(Message("going", b"%d" % number))


async def make_topic(servers: Servers) -> None:
    """At both brokers."""
    async with Admin(nameserver=servers.nameserver) as admin:
        await admin.topics.create("going", queues=4)


def brokers_of(consumer: PushConsumer) -> set[str]:
    return {queue.broker_name for queue in consumer.assignment if queue.topic == "going"}


@pytest.mark.parametrize("orderly", [False, True])
def test_consumers_continue_when_a_broker_is_killed(servers: Servers, orderly: bool) -> None:
    async def play() -> None:
        await make_topic(servers)
        notes = Notes()
        async with consuming(
            servers.nameserver, "g", {"going": "*"}, notes.take, client=QUICK, orderly=orderly
        ) as consumer:
            await until(lambda: brokers_of(consumer) == {"broker-a", "broker-b"})
            sending = asyncio.ensure_future(send(servers, range(400)))
            await until(lambda: len(set(notes.values)) > 50)
            await asyncio.to_thread(servers.kill, "broker-b")
            await sending
            # What the killed broker has comes when it is back; everything else comes at once.
            await send(servers, range(1000, 1100))
            await until(lambda: set(range(1000, 1100)) <= set(notes.values), what="the living one")
            await asyncio.to_thread(servers.start, "broker-b")
            await until(lambda: set(range(400)) <= set(notes.values), what="the one that is back")
            await until(lambda: brokers_of(consumer) == {"broker-a", "broker-b"})
            await send(servers, range(2000, 2100))
            await until(lambda: set(range(2000, 2100)) <= set(notes.values), what="both again")

    asyncio.run(asyncio.wait_for(play(), 300))


def test_consumers_continue_without_the_nameserver(servers: Servers) -> None:
    async def play() -> None:
        await make_topic(servers)
        notes = Notes()
        producer = Producer("senders", nameserver=servers.nameserver, client=QUICK)
        async with (
            producer,
            consuming(
                servers.nameserver, "g", {"going": "*"}, notes.take, client=QUICK
            ) as consumer,
        ):
            await producer.send(Message("going", b"0"))
            await until(lambda: 0 in notes.values)
            await asyncio.to_thread(servers.kill, "names")
            for number in range(1, 50):
                await producer.send(Message("going", b"%d" % number))
            await until(lambda: set(range(50)) <= set(notes.values), what="without a name server")
            await asyncio.to_thread(servers.start, "names")
            await asyncio.sleep(2.5)  # routes are asked for again in this time
            for number in range(50, 100):
                await producer.send(Message("going", b"%d" % number))
            await until(lambda: set(range(100)) <= set(notes.values), what="with it again")
            await until(lambda: brokers_of(consumer) == {"broker-a", "broker-b"})

    asyncio.run(asyncio.wait_for(play(), 300))
