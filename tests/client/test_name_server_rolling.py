"""Three NameServers are replaced under load, one at a time: real processes, our clients, and the
C++ client with the one address that stays. No send fails, and every message arrives."""

import asyncio
import json
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from cli.conftest import run_command
from clients import server_process
from clients.cpp_client import Clients as CppClients
from clients.cpp_client import installed
from clients.server_process import ServerProcess
from tianzhou.client import Message, Producer, PushConsumer, StartPosition
from tianzhou.client.aio.admin import Admin
from tianzhou.client.consumer_options import ConsumerOptions
from tianzhou.testing.kit.server_process import TIANZHOU
from tianzhou.testing.kit.waiting import until

NAME = "broker-a"
PAUSE_S = 0.005


class World:
    """Three NameServers and a broker that registers with all of them."""

    def __init__(self, directory: Path, stack: ExitStack) -> None:
        self._directory = directory
        self._stack = stack
        self._count = 0
        self.names = {server.nameserver: server for server in (self.start() for _ in range(3))}
        data = ["--data", str(directory / "data"), "--set", f"brokerName={NAME}"]
        self.broker = self._run(["broker", "-n", self.text, "-p", "0", "--no-http", *data])

    @property
    def text(self) -> str:
        """The list of NameServers, as settings and clients spell it."""
        return ";".join(self.names)

    def start(self, port: str = "") -> ServerProcess:
        port = port or str(server_process.spare_port())
        return self._run(["nameserver", "-p", port])

    def _run(self, arguments: list[str]) -> ServerProcess:
        self._count += 1
        server = server_process.run(arguments, self._directory / f"process-{self._count}")
        self._stack.callback(server.end)
        return server

    def listed(self, nameserver: str) -> bool:
        said = run_command("cluster", "--json", "-n", nameserver)
        rows: list[dict[str, str]] = json.loads(said.out) if said.code == 0 else []
        return [row["broker"] for row in rows] == [NAME]

    async def tell_broker(self, known_at: str) -> None:
        async with Admin(nameserver=known_at) as admin:
            await admin.brokers.configure(NAME, {"namesrvAddr": self.text})
        for nameserver in self.names:
            await until(lambda at=nameserver: self.listed(at), str, within_s=30, what=nameserver)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with ExitStack() as stack:
        yield World(tmp_path, stack)


class Load:
    """Sends without a pause longer than PAUSE_S, and remembers what was acknowledged."""

    def __init__(self, producer: Producer) -> None:
        self._producer = producer
        self.sent: list[str] = []
        self.failed: list[str] = []
        self._is_over = False

    async def run(self) -> None:
        while not self._is_over:
            body = f"ours {len(self.sent)}"
            try:
                await self._producer.send(Message("orders", body.encode()))
            except Exception as error:  # every failure of a send is what this test looks for
                self.failed.append(f"{body}: {error}")
            self.sent.append(body)
            await asyncio.sleep(PAUSE_S)

    def stop(self) -> None:
        self._is_over = True


class Clients:
    """Our producer and consumer, whose lists change, and what they sent and received."""

    def __init__(self, producer: Producer, consumer: PushConsumer) -> None:
        self._ours = (producer, consumer)
        self.load = Load(producer)
        self.got: set[str] = set()
        self._consumer = consumer

    def tell(self, text: str) -> None:
        for client in self._ours:
            client.update_name_servers(text)

    async def read(self) -> None:
        async for message in self._consumer:
            self.got.add(message.body.decode())


async def replace(world: World, address: str, clients: Clients, *, in_place: bool) -> None:
    """Add a new one, remove the old one, kill the old one; or, in place, start it again at its
    address."""
    before, keeps = len(clients.load.sent), next(at for at in world.names if at != address)
    if not in_place:
        new = world.start()
        world.names[new.nameserver] = new
        await world.tell_broker(keeps)
    server = world.names.pop(address)
    clients.tell(world.text)
    await world.tell_broker(keeps)
    await until(lambda: not world.listed(address), str, within_s=30, what="it left")
    server.kill()
    if in_place:
        again = world.start(address.rpartition(":")[2])
        world.names[again.nameserver] = again
        await world.tell_broker(keeps)
        clients.tell(world.text)
    await until(lambda: len(clients.load.sent) > before + 20, str, within_s=30, what="it goes on")


async def replace_all(world: World, old: list[str], cpp: CppClients) -> None:
    begin = ConsumerOptions(start_from=StartPosition.FIRST)
    async with (
        Producer("ours", nameserver=world.text) as producer,
        PushConsumer(
            "readers", nameserver=world.text, subscribe={"orders": "*"}, options=begin
        ) as consumer,
    ):
        await producer.send(Message("orders", b"first"))
        clients = Clients(producer, consumer)
        reading = asyncio.create_task(clients.read())
        other = await asyncio.to_thread(cpp.producer)
        sending = asyncio.create_task(clients.load.run())
        for number, address in enumerate(old):
            await replace(world, address, clients, in_place=address == old[-1])
            await asyncio.to_thread(other.send, "sync", "orders", f"cpp {number}")
        clients.load.stop()
        await sending
        assert not clients.load.failed
        wanted = {*clients.load.sent, "first", "cpp 0", "cpp 1", "cpp 2"}
        await until(
            lambda: clients.got >= wanted or reading.done(), str, within_s=60, what="every message"
        )
        assert reading.cancel(), reading.exception()
        # A producer that starts now, and a topic that no client knows yet.
        async with Producer("late", nameserver=world.text) as late:
            await late.send(Message("created-later", b"one"))


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_nameservers_are_replaced_one_at_a_time_without_a_failed_send(
    world: World, tmp_path: Path
) -> None:
    old = list(world.names)
    cpp = CppClients(installed(), tmp_path / "cpp", old[-1])
    try:
        asyncio.run(replace_all(world, old, cpp))
    finally:
        cpp.end()
    assert set(world.names) & set(old) == {old[-1]}
    for nameserver in world.names:
        said = run_command("topic", "list", "--json", "-n", nameserver)
        assert {row["topic"] for row in said.json} >= {"orders", "created-later"}
    doctor = subprocess.run(
        [TIANZHOU, "doctor", "--json", "-n", world.text],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    found = json.loads(doctor.stdout)
    about = [f"{row['about']} {row['said']}" for row in found["findings"]]
    assert not [text for text in about if old[0] in text or old[1] in text]
    assert {row["about"] for row in found["findings"] if row["level"] == "fine"} >= {
        f"NameServer {at}" for at in world.names
    }
    assert not [text for text in about if "does not list" in text or "NameServers" in text]
