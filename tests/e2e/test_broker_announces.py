"""A broker tells name servers of every topic, whenever it is made."""

import asyncio
from collections.abc import Callable

from tianzhou.broker.config import BrokerConfig
from tianzhou.broker.replica.registration import Registration
from tianzhou.broker.role import Role, RoleState
from tianzhou.broker.topics.permission import Permission
from tianzhou.broker.topics.topics import Topics
from tianzhou.store.tables import Tables
from tianzhou.testing.sim.clock import ManualClock
from tianzhou.testing.sim.disk import SimDisk
from tianzhou.wire.codec import decode_header, encode_command
from tianzhou.wire.frame import PREFIX
from tianzhou.wire.header import RESPONSE_FLAG, Header

WAIT_S = 10.0


class SlowNameServer:
    """Takes registrations; something may happen before it answers one."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.before_answer: list[Callable[[], None]] = []
        self.took = asyncio.Condition()
        self.left = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                size, word = PREFIX.unpack(await reader.readexactly(PREFIX.size))
                rest = await reader.readexactly(size - 4)
                header_size = word & 0xFFFFFF
                asked = decode_header(rest[:header_size], word >> 24)
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


def test_a_topic_that_is_made_during_a_registration_is_told_at_once() -> None:
    """1. The broker registers, for instance because of topic A. 2. Topic B is made before the name
    server has answered. 3. It must not wait for the next time, half a minute later."""

    async def play() -> None:
        names = SlowNameServer()
        listener = await asyncio.start_server(names.serve, "127.0.0.1", 0)
        port = listener.sockets[0].getsockname()[1]
        config = BrokerConfig(nameservers=f"127.0.0.1:{port}")
        tables = Tables(SimDisk(), "config")
        topics = Topics(tables.topics, config, ManualClock(), delay_levels=18)
        standing = RoleState(config.name, Role.MASTER, 0)
        permission = Permission(config.name, config.permission, standing)
        registration = Registration(
            config, topics, permission, standing, address="127.0.0.1:1", is_explicit=False,
            clock=ManualClock(),
        )  # fmt: skip
        await registration.start()
        names.before_answer.append(lambda: topics.ensure("topic-b", queues=4) and None)
        topics.ensure("topic-a", queues=4)
        await names.hears_of(b"topic-a")
        await names.hears_of(b"topic-b")
        await registration.close()
        await names.left.wait()
        listener.close()
        await listener.wait_closed()

    asyncio.run(play())
