"""A client that exchanges frames with a name server inside the test's own event loop."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from tianzhou.nameserver.config import NameServerConfig
from tianzhou.nameserver.server import NameServer
from tianzhou.testing.sim.clock import ManualClock
from tianzhou.wire import registration
from tianzhou.wire.codec import ONEWAY_FLAG, Header, decode_header, encode_command
from tianzhou.wire.frame import PREFIX, SerialiseType
from tianzhou.wire.routes import TopicRouteData, decode_route
from tianzhou.wire.tables import DataVersion, RegisterBrokerBody, TopicConfig, TopicConfigTable

WAIT_S = 120.0


class NameClient:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._opaque = 0

    def send(
        self,
        code: int,
        ext: dict[str, str] | None = None,
        body: bytes = b"",
        *,
        flag: int = 0,
        version: int = 479,
        binary: bool = False,
    ) -> int:
        self._opaque += 1
        kind = SerialiseType.BINARY if binary else SerialiseType.JSON
        header = Header(
            code=code,
            opaque=self._opaque,
            flag=flag,
            version=version,
            ext=ext or {},
            serialise_type=kind,
        )
        self._writer.write(encode_command(header, body))
        return self._opaque

    def send_bytes(self, data: bytes) -> None:
        self._writer.write(data)

    async def receive(self) -> tuple[Header, bytes]:
        prefix = await self._reader.readexactly(PREFIX.size)
        size, word = PREFIX.unpack(prefix)
        rest = await self._reader.readexactly(size - 4)
        header_size = word & 0xFFFFFF
        return decode_header(rest[:header_size], word >> 24), rest[header_size:]

    async def ask(
        self,
        code: int,
        ext: dict[str, str] | None = None,
        body: bytes = b"",
        *,
        version: int = 479,
        binary: bool = False,
    ) -> tuple[Header, bytes]:
        opaque = self.send(code, ext, body, version=version, binary=binary)
        header, answer = await self.receive()
        assert header.opaque == opaque
        assert header.is_response
        return header, answer

    async def tell(self, code: int, ext: dict[str, str], body: bytes = b"") -> None:
        self.send(code, ext, body, flag=ONEWAY_FLAG)

    async def register(
        self, *topics: str, compressed: bool = False, counter: int = 1, **ext: str
    ) -> Header:
        body = body_of(*(topics or ("T", "U")), counter=counter)
        data = (
            registration.encode_compressed(body)
            if compressed
            else registration.encode_registration(body)
        )
        extra = {
            "haServerAddr": "10.0.0.1:10912",
            "compressed": str(compressed).lower(),
            "bodyCrc32": str(registration.checksum(data)),
        }
        header, _ = await self.ask(103, identity() | extra | ext, data)
        return header

    async def route(self, topic: str = "T") -> TopicRouteData | None:
        header, body = await self.ask(105, {"topic": topic})
        assert header.code in (0, 17), header
        return decode_route(body) if header.code == 0 else None

    async def ended(self) -> bool:
        """Wait until the server closes; whether it did so without another response."""
        return await self._reader.read() == b""

    async def close(self) -> None:
        self._writer.close()
        await self._writer.wait_closed()


def identity(**ext: str) -> dict[str, str]:
    return {
        "brokerName": "broker-a",
        "brokerAddr": "10.0.0.1:10911",
        "clusterName": "c",
        "brokerId": "0",
    } | ext


def body_of(*topics: str, counter: int = 1) -> RegisterBrokerBody:
    return RegisterBrokerBody(
        topic_config_serialize_wrapper=TopicConfigTable(
            data_version=DataVersion(counter=counter),
            topic_config_table={
                name: TopicConfig(topic_name=name, read_queue_nums=4, write_queue_nums=4)
                for name in topics
            },
        )
    )


class World:
    """A listening name server, and clients that are closed with it."""

    def __init__(self, server: NameServer, clock: ManualClock, port: int) -> None:
        self.server = server
        self.clock = clock
        self.port = port
        self.clients: list[NameClient] = []

    async def client(self, host: str = "127.0.0.1") -> NameClient:
        made = NameClient(*await asyncio.open_connection(host, self.port))
        self.clients.append(made)
        return made


@asynccontextmanager
async def name_server(config: NameServerConfig | None = None) -> AsyncGenerator[World]:
    clock = ManualClock()
    server = NameServer(config or NameServerConfig(scan_interval_ms=10), clock)
    world = World(server, clock, await server.start("127.0.0.1", 0))
    try:
        async with asyncio.timeout(WAIT_S):
            yield world
    finally:
        for client in world.clients:
            await client.close()
        await server.close()
