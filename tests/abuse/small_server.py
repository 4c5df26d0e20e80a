"""A server in the test's own event loop, with short limits and without a broker."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

from tianzhou.net.acceptor import bind
from tianzhou.net.limits import CLIENT_PORT, NetLimits, PortLimits
from tianzhou.net.server import Server
from tianzhou.net.server_connection import ServerConnection
from tianzhou.wire.codec import Header, decode_header, encode_command, response_to
from tianzhou.wire.frame import FrameBatch

WAIT_S = 120.0
TRICKLE_PAUSE_S = 0.02
ECHO = 1
LARGE = 2
PARKED = 3
"""Request codes: respond at once; with a large body; only when the test calls `release`."""


@dataclass(slots=True)
class Echo:
    """Responds to requests, and counts them for the test."""

    large_bytes: int = 64 * 1024
    handled: int = 0
    opened_count: int = 0
    closed_count: int = 0
    parked: list[tuple[ServerConnection, Header]] = field(
        default_factory=list[tuple[ServerConnection, Header]]
    )

    def opened(self, connection: ServerConnection) -> None:
        self.opened_count += 1

    def received(self, connection: ServerConnection, batch: FrameBatch) -> None:
        for index in range(batch.count):
            if connection.has_enough:
                connection.leave(batch, index)
                return
            header = decode_header(batch.header(index), batch.serialise_types[index])
            self.handled += 1
            if header.code == PARKED:
                connection.wait(1, len(batch.body(index)))
                self.parked.append((connection, header))
            else:
                body = bytes(self.large_bytes) if header.code == LARGE else b""
                connection.send(encode_command(response_to(header, 0), body))

    def release(self, body_size: int = 0) -> None:
        parked, self.parked = self.parked, []
        for connection, header in parked:
            connection.send(encode_command(response_to(header, 0)))
            connection.waited(1, body_size)

    def closed(self, connection: ServerConnection) -> None:
        self.closed_count += 1


class World:
    def __init__(self, server: Server, service: Echo, port: int) -> None:
        self.server = server
        self.service = service
        self.port = port
        self.writers: list[asyncio.StreamWriter] = []

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        self.writers.append(writer)
        return reader, writer

    def count(self) -> int:
        return len(tuple(self.server.connections))


@asynccontextmanager
async def small_server(
    limits: NetLimits, service: Echo | None = None, port_limits: PortLimits = CLIENT_PORT
) -> AsyncGenerator[World]:
    service = service or Echo()
    server = Server(service, limits=limits, port=port_limits)
    bound = bind("127.0.0.1", 0)
    port: int = bound.getsockname()[1]
    server.listen(bound)
    world = World(server, service, port)
    try:
        async with asyncio.timeout(WAIT_S):
            yield world
    finally:
        for writer in world.writers:
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()
        await server.close()


def run(
    play: Callable[[World], Awaitable[None]],
    limits: NetLimits,
    service: Echo | None = None,
    port_limits: PortLimits = CLIENT_PORT,
) -> None:
    async def run_in_loop() -> None:
        async with small_server(limits, service, port_limits) as world:
            await play(world)

    asyncio.run(run_in_loop())


async def until(condition: Callable[[], bool]) -> None:
    """Wait for a condition; the timeout of the run_in_loop test applies."""
    while not condition():  # noqa: ASYNC110
        await asyncio.sleep(0.005)


async def trickle(world: World, data: bytes) -> int:
    """Connect and send one byte every `TRICKLE_PAUSE_S` until the server ends the connection.

    Returns how many bytes that were. They measure the server's deadline on any machine: server and
    client share a loop, which runs timers in the order in which they are due, so a slow machine
    delays the next byte as much as the deadline.
    """
    reader, writer = await world.connect()
    for sent, byte in enumerate(data):
        # If the server closes before it has read the last byte, the client gets a reset instead of
        # an end of file; asyncio keeps it as the exception of the reader.
        if reader.at_eof() or reader.exception() is not None:
            return sent
        writer.write(bytes([byte]))
        await asyncio.sleep(TRICKLE_PAUSE_S)
    raise AssertionError(f"the server accepted a trickle of {len(data)} bytes")


async def ended(reader: asyncio.StreamReader) -> bool:
    """Read until the connection ends, whatever is received before."""
    with suppress(ConnectionError):
        while await reader.read(1 << 20):
            pass
    return True
