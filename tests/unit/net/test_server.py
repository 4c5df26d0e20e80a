"""Listening and stopping. Who is let in and cut off: tests/abuse/test_abuse_connections.py."""

import asyncio

import pytest

from tianzhou.net.acceptor import bind
from tianzhou.net.dial import dial
from tianzhou.net.limits import NetLimits
from tianzhou.net.server import Server
from tianzhou.net.server_connection import ServerConnection
from tianzhou.wire.codec import Header, decode_headers, encode_command, response_to
from tianzhou.wire.frame import FrameBatch

WAIT_S = 120.0


class Answering:
    def __init__(self) -> None:
        self.connections: list[ServerConnection] = []
        self.closed_count = 0

    def opened(self, connection: ServerConnection) -> None:
        self.connections.append(connection)

    def received(self, connection: ServerConnection, batch: FrameBatch) -> None:
        for header in decode_headers(batch):
            connection.send(encode_command(response_to(header, 0)))

    def closed(self, connection: ServerConnection) -> None:
        self.closed_count += 1


def test_server_responds_over_a_real_socket() -> None:
    async def play() -> None:
        service = Answering()
        server = Server(service)
        bound = bind("127.0.0.1", 0)
        server.listen(bound)
        connection = await dial("127.0.0.1", bound.getsockname()[1])
        answered = asyncio.Event()
        answers: list[Header | None] = []

        def take(header: Header | None, _: bytes) -> None:
            answers.append(header)
            answered.set()

        connection.ask(1, {}, b"", take, timeout_s=5.0)
        async with asyncio.timeout(WAIT_S):
            await answered.wait()
        assert answers[0] is not None
        assert answers[0].code == 0
        assert list(server.connections) == service.connections
        await server.close()
        assert service.closed_count == 1
        assert not list(server.connections)

    asyncio.run(play())


def test_server_stop_flushes_responses() -> None:
    async def play() -> None:
        service = Answering()
        server = Server(service, limits=NetLimits(close_s=5.0))
        bound = bind("127.0.0.1", 0)
        server.listen(bound)
        reader, writer = await asyncio.open_connection("127.0.0.1", bound.getsockname()[1])
        writer.write(encode_command(Header(code=1, opaque=1)))
        assert await reader.readexactly(4)
        service.connections[0].send(bytes(2**20))
        closing = asyncio.ensure_future(server.close())
        assert len(await reader.read(-1)) > 2**20
        await closing
        writer.close()

    asyncio.run(play())


def test_server_names_a_port_in_use() -> None:
    bound = bind("127.0.0.1", 0)
    bound.listen()
    port = bound.getsockname()[1]
    with bound, pytest.raises(OSError, match=str(port)):
        bind("127.0.0.1", port)


def test_server_requests_to_peers_time_out() -> None:
    class Silent(Answering):
        def received(self, connection: ServerConnection, batch: FrameBatch) -> None:
            pass

    async def play() -> None:
        service = Silent()
        server = Server(service, limits=NetLimits(sweep_s=0.01))
        bound = bind("127.0.0.1", 0)
        server.listen(bound)
        _, writer = await asyncio.open_connection("127.0.0.1", bound.getsockname()[1])
        expired = asyncio.Event()
        async with asyncio.timeout(WAIT_S):
            while not service.connections:  # noqa: ASYNC110
                await asyncio.sleep(0.005)
            service.connections[0].ask(1, {}, b"", lambda _, __: expired.set(), timeout_s=0.05)
            await expired.wait()
        writer.close()
        await server.close()

    asyncio.run(play())
