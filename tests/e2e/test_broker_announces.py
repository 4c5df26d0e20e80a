"""A broker registers every topic with the name servers as soon as it is created, and reports the
change to the readers of the topic when the name servers know it."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

from tianzhou.broker.config import BrokerConfig
from tianzhou.broker.replica.registration import Registration
from tianzhou.broker.replica.standalone import Standalone
from tianzhou.broker.role import Permission
from tianzhou.broker.topics.topics import Topics
from tianzhou.store.config import StoreConfig
from tianzhou.store.store import MessageStore
from tianzhou.testing.sim.clock import ManualClock
from tianzhou.testing.sim.disk import SimDisk
from tianzhou.wire.codec import RESPONSE_FLAG, Header, decode_header, encode_command
from tianzhou.wire.frame import PREFIX

WAIT_S = 10.0


class SlowNameServer:
    """Accepts registrations; a test can act before it responds to one."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.before_answer: list[Callable[[], None]] = []
        self.took = asyncio.Condition()
        self.left = asyncio.Event()
        self.responds = asyncio.Event()
        self.responds.set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                size, word = PREFIX.unpack(await reader.readexactly(PREFIX.size))
                rest = await reader.readexactly(size - 4)
                header_size = word & 0xFFFFFF
                asked = decode_header(rest[:header_size], word >> 24)
                await self.responds.wait()
                if self.before_answer:
                    self.before_answer.pop(0)()
                answer = Header(code=0, opaque=asked.opaque, flag=RESPONSE_FLAG)
                writer.write(encode_command(answer))
                async with self.took:
                    self.bodies.append(rest[header_size:])
                    self.took.notify_all()
        except asyncio.IncompleteReadError:
            writer.close()
            await writer.wait_closed()
            self.left.set()

    async def hears_of(self, topic: bytes) -> None:
        async with asyncio.timeout(WAIT_S), self.took:
            await self.took.wait_for(lambda: any(topic in body for body in self.bodies))


@asynccontextmanager
async def registering(*servers: SlowNameServer) -> AsyncGenerator[Topics]:
    """The table of topics of a broker that is registered with these name servers."""
    listeners = [await asyncio.start_server(one.serve, "127.0.0.1", 0) for one in servers]
    ports = [listener.sockets[0].getsockname()[1] for listener in listeners]
    config = BrokerConfig(nameservers=";".join(f"127.0.0.1:{port}" for port in ports))
    clock = ManualClock()
    store = MessageStore(SimDisk(), "store", StoreConfig(), clock)
    mode = Standalone(config.name, store)
    topics = Topics(store.tables.topics, config, clock, delay_levels=18)
    permission = Permission(config.name, config.permission, mode.role_state)
    registration = Registration(
        config, topics, permission, mode, address="127.0.0.1:1", clock=clock
    )
    await registration.start()
    yield topics
    await registration.close()
    for server, listener in zip(servers, listeners, strict=True):
        await server.left.wait()
        listener.close()
        await listener.wait_closed()


def test_topic_created_during_a_registration_is_registered_at_once() -> None:
    """1. The broker registers, for instance because of topic A. 2. Topic B is created before the
    name server has responded. 3. B must not wait for the next registration, 30 s later."""

    async def play() -> None:
        names = SlowNameServer()
        async with registering(names) as topics:
            names.before_answer.append(lambda: topics.ensure("topic-b", queues=4) and None)
            topics.ensure("topic-a", queues=4)
            await names.hears_of(b"topic-a")
            await names.hears_of(b"topic-b")

    asyncio.run(play())


def test_change_is_reported_when_the_name_server_has_accepted_it() -> None:
    """A client that hears of a change earlier gets the old route from the name server."""

    async def play() -> None:
        names, reported = SlowNameServer(), asyncio.Queue[frozenset[str]]()
        async with registering(names) as topics:
            topics.announced.append(reported.put_nowait)
            seen: list[bool] = []
            names.before_answer.append(lambda: seen.append(reported.empty()))
            names.before_answer.append(lambda: topics.ensure("topic-b", queues=4) and None)
            topics.ensure("topic-a", queues=4)
            async with asyncio.timeout(WAIT_S):
                assert await reported.get() == {"topic-a"}
                topics.ensure("topic-c", queues=4)
                assert await reported.get() == {"topic-c"}  # b came after its registration began
                assert await reported.get() == {"topic-b"}
            assert seen == [True]

    asyncio.run(play())


def test_name_server_that_hangs_does_not_delay_the_report() -> None:
    """Clients that use the other one get the new route."""

    async def play() -> None:
        names, hung = SlowNameServer(), SlowNameServer()
        reported = asyncio.Queue[frozenset[str]]()
        async with registering(names, hung) as topics:
            topics.announced.append(reported.put_nowait)
            hung.responds.clear()
            topics.ensure("topic-a", queues=4)
            async with asyncio.timeout(WAIT_S):
                assert await reported.get() == {"topic-a"}
                assert not any(b"topic-a" in body for body in hung.bodies)
                hung.responds.set()
                assert await reported.get() == {"topic-a"}  # for the clients of this one

    asyncio.run(play())
