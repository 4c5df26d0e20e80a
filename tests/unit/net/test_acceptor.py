"""Places for connections: who gets one, who makes room, and when. With a loop and real sockets."""

import asyncio
import contextlib
import errno
import socket
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tianzhou.net import acceptor
from tianzhou.net.acceptor import Acceptor
from tianzhou.net.admission import DescriptorBudget, Slot, source_of
from tianzhou.net.limits import HTTP_PORT, RAFT_PORT, PortLimits

PORT = PortLimits(
    name="test",
    weight=1,
    connections_max=8,
    unproven_max=4,
    per_source_max=5,
    unproven_per_source_max=2,
    prove_s=30.0,
)
WAIT_S = 120.0


class Holding(asyncio.Protocol):
    """Holds a connection; the first byte proves the peer."""

    def __init__(self, slot: Slot, world: "World") -> None:
        self.slot = slot
        self._world = world
        self.is_admitted = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._world.open.append(self)

    def abort(self) -> None:
        self._transport.abort()

    def data_received(self, data: bytes) -> None:
        self.is_admitted = self.slot.prove()
        self._transport.write(b"y" if self.is_admitted else b"n")

    def connection_lost(self, exc: Exception | None) -> None:
        self._world.open.remove(self)
        self.slot.release()
        self.slot.release()  # may be said twice


class World:
    def __init__(self, limits: PortLimits, budget: int = 1_000) -> None:
        self.open: list[Holding] = []
        self.budget = DescriptorBudget(lambda: budget)
        self.acceptor = Acceptor(limits, lambda slot: Holding(slot, self), budget=self.budget)
        bound = socket.socket()
        bound.bind(("127.0.0.1", 0))
        self.port: int = bound.getsockname()[1]
        self.acceptor.listen(bound)
        self._writers: list[asyncio.StreamWriter] = []

    async def silent(self) -> asyncio.StreamReader:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        self._writers.append(writer)
        return reader

    async def speaking(self) -> bytes:
        reader = await self.silent()
        self._writers[-1].write(b"x")
        return await reader.read(1)

    async def until(self, condition: Callable[[], bool]) -> None:
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.005)

    def leave(self) -> None:
        for writer in self._writers:
            writer.close()

    async def end(self) -> None:
        """However the scene went, nothing is left open."""
        self.leave()
        for one in tuple(self.open):
            one.abort()
        for writer in self._writers:
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()


def play(
    scene: Callable[[World], Awaitable[None]], limits: PortLimits = PORT, budget: int = 1_000
) -> None:
    async def run() -> None:
        world = World(limits, budget)
        try:
            async with asyncio.timeout(WAIT_S):
                await scene(world)
                world.leave()
                await world.until(lambda: world.acceptor.admission.count == 0)
        finally:
            world.acceptor.close()
            await world.end()

    asyncio.run(run())


async def ended(reader: asyncio.StreamReader) -> bool:
    try:
        return await reader.read(1) == b""
    except ConnectionError:
        return True


def test_acceptor_over_the_unproven_limit_closes_the_oldest() -> None:
    async def scene(world: World) -> None:
        readers = [await world.silent() for _ in range(7)]
        for reader in readers[:3]:
            assert await ended(reader)
        await world.until(lambda: world.acceptor.admission.count == 4)
        assert world.acceptor.admission.refused_count == 3
        assert world.acceptor.admission.is_full
        assert world.budget.full_ports() == [world.acceptor.admission]
        assert await world.speaking() == b"y", "a port full of silent peers serves one that speaks"

    play(scene)


def test_acceptor_full_of_proven_connections_closes_new_ones() -> None:
    async def scene(world: World) -> None:
        for _ in range(8):
            assert await world.speaking() == b"y"
        assert await ended(await world.silent())
        assert world.acceptor.admission.proven_count == len(world.open) == 8
        assert all(one.is_admitted for one in world.open)

    play(scene)


def test_acceptor_that_serves_unproven_peers_keeps_slots_for_them() -> None:
    async def scene(world: World) -> None:
        for _ in range(4):
            assert await world.speaking() == b"y"
        for _ in range(20):
            assert await world.speaking() == b"n", "admitted, and told that there is no room"

    play(scene, replace(PORT, serves_unproven=True))


def test_acceptor_closes_an_unproven_connection_at_its_deadline() -> None:
    async def scene(world: World) -> None:
        assert await world.speaking() == b"y"
        silent = [await world.silent() for _ in range(3)]
        for reader in silent:
            assert await ended(reader)
        assert world.acceptor.admission.expired_count == 3
        assert world.acceptor.admission.refused_count == 0
        assert world.acceptor.admission.count == 1
        assert not world.acceptor.admission.is_full
        assert await ended(await world.silent()), "the deadline holds for later ones too"

    play(scene, replace(PORT, prove_s=0.1))


def test_acceptor_limits_connections_of_one_source(monkeypatch: pytest.MonkeyPatch) -> None:
    source = ["10.0.0.1"]

    def made_up(_host: str) -> str:
        return source[0]

    monkeypatch.setattr(acceptor, "source_of", made_up)

    async def scene(world: World) -> None:
        first = [await world.silent() for _ in range(3)]
        assert await ended(first[0]), "the oldest silent one of the address"
        for _ in range(4):
            assert await world.speaking() == b"y"
        assert world.acceptor.admission.count == 5
        assert await world.speaking() == b"y", "silent ones of the address make room"
        assert await ended(first[2])
        assert await ended(await world.silent()), "five proven ones are the bound"
        source[0] = "10.0.0.2"
        assert await world.speaking() == b"y", "other addresses have their own"

    play(scene)


def test_acceptor_that_serves_unproven_peers_keeps_slots_per_source(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An orchestrator's probes may come from the same address as a busy browser or proxy."""

    def made_up(_host: str) -> str:
        return "10.0.0.1"

    monkeypatch.setattr(acceptor, "source_of", made_up)

    async def scene(world: World) -> None:
        for _ in range(5):
            assert await world.speaking() == b"y"
        for _ in range(20):
            assert await world.speaking() == b"n", "admitted, and told that there is no room"
        assert world.acceptor.admission.proven_count == 5

    play(scene, replace(PORT, connections_max=40, serves_unproven=True))


def test_descriptor_budget_is_divided_by_weight() -> None:
    async def run() -> None:
        budget = DescriptorBudget(lambda: 100)
        with contextlib.ExitStack() as stack:
            made = [listening(weight, budget, stack) for weight in (8, 1, 1)]
            assert [budget.share(one.admission) for one in made] == [80, 10, 10]
            made[0].close()
            assert budget.share(made[1].admission) == 50

    asyncio.run(run())


def listening(weight: int, budget: DescriptorBudget, stack: contextlib.ExitStack) -> Acceptor:
    limits = replace(PORT, weight=weight)
    made = Acceptor(limits, lambda _slot: asyncio.Protocol(), budget=budget)
    bound = socket.socket()
    bound.bind(("127.0.0.1", 0))
    made.listen(bound)
    stack.callback(made.close)
    return made


def test_acceptor_never_exceeds_its_share_of_descriptors() -> None:
    async def scene(world: World) -> None:
        for _ in range(3):
            assert await world.speaking() == b"y"
        assert await ended(await world.silent())
        assert world.acceptor.admission.count == 3

    play(scene, budget=3)


def test_acceptor_resumes_after_the_system_ran_out_of_descriptors(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    accept, failures = socket.socket.accept, [errno.EMFILE, errno.ENFILE]

    def failing(self: socket.socket) -> tuple[socket.socket, object]:
        if failures:
            raise OSError(failures.pop(), "no descriptors")
        return accept(self)

    monkeypatch.setattr(socket.socket, "accept", failing)
    monkeypatch.setattr(acceptor, "RETRY_S", 0.01)

    async def scene(world: World) -> None:
        assert await world.speaking() == b"y"

    play(scene)
    assert [record.message for record in caplog.records] == ["accept.failed"] * 2


@pytest.mark.parametrize(
    ("host", "source"),
    [
        ("127.0.0.1", ""),
        ("127.9.9.9", ""),
        ("::1", ""),
        ("::ffff:127.0.0.1", ""),
        ("10.0.0.7", "10.0.0.7"),
        ("::ffff:10.0.0.7", "10.0.0.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("name", "name"),
    ],
)
def test_source_of_an_address_is_the_host_or_its_prefix(host: str, source: str) -> None:
    assert source_of(host) == source


def test_spare_ports_are_free_and_no_outgoing_connection_takes_them() -> None:
    first = acceptor.spare_ports("127.0.0.1", 5)
    lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    assert first + 5 <= lowest
    for port in range(first, first + 5):
        acceptor.bind_and_queue("127.0.0.1", port).close()


def test_spare_ports_of_another_machine_are_an_error() -> None:
    with pytest.raises(acceptor.CannotListen, match="5 consecutive free ports"):
        acceptor.spare_ports("192.0.2.250", 5)


def test_http_and_raft_ports_limit_unproven_peers_to_half() -> None:
    for port in (HTTP_PORT, RAFT_PORT):
        assert port.unproven_max <= port.connections_max // 2
        assert port.unproven_per_source_max < port.unproven_max
