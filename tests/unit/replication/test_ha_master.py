"""The master's side on sockets: who counts as a copy."""

import asyncio
import socket
from collections.abc import Awaitable, Callable

from ha_pair import FIRST, facts
from ha_stores import KEY, open_store, put

from tianzhou.broker.promise import CopiesPromise
from tianzhou.net.server import bind
from tianzhou.replication.durability import Outcome, durability_of
from tianzhou.replication.ha_frames import REPORT, Hello, encode_words
from tianzhou.replication.ha_master import HaMaster
from tianzhou.store.store import MessageStore

WAIT_S = 20.0


class Master:
    """Waits for two slaves."""

    def __init__(self) -> None:
        self.store: MessageStore = open_store()
        put(self.store, b"first", b"second")
        told = facts()._replace(file_bytes=self.store.log.file_bytes)
        loop = asyncio.get_running_loop()
        self.side = HaMaster(self.store, lambda: told, loop.time, behind_bytes_max=1 << 20)
        self.side.needed = 2
        self.slaves: list[socket.socket] = []

    async def slave(self, broker_id: int, address: str) -> None:
        """One that had nothing, and now says that it has everything."""
        made = socket.create_connection(("127.0.0.1", self.port))
        self.slaves.append(made)
        hello = Hello(cluster="DefaultCluster", name="broker-a", id=broker_id, end=0, marks=FIRST,
                      address=address)  # fmt: skip
        made.sendall(encode_words(hello) + REPORT.pack(0))
        await until(lambda: (address, 0) in self.acked())
        end = int(self.store.log.end)
        made.sendall(REPORT.pack(end))
        await until(lambda: (address, end) in self.acked() and (address, 0) not in self.acked())

    def acked(self) -> list[tuple[str, int]]:
        return [(row.address, row.acked) for row in self.side.rows()]

    async def listen(self) -> None:
        bound = bind("127.0.0.1", 0)
        self.port = bound.getsockname()[1]
        await self.side.listen(bound)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not condition():  # noqa: ASYNC110 - whatever is waited for has no event of its own
            await asyncio.sleep(0.01)


def play(scene: Callable[[Master], Awaitable[None]]) -> None:
    async def run() -> None:
        master = Master()
        await master.listen()
        try:
            await scene(master)
        finally:
            master.side.close()
            for slave in master.slaves:
                slave.close()
            master.store.close()

    asyncio.run(run())


def test_a_slave_that_came_back_is_one_copy() -> None:
    """Its first connection is dead, which a master learns only by its silence."""

    async def scene(master: Master) -> None:
        await master.slave(1, "a:1")
        await master.slave(1, "a:1")
        assert len(master.acked()) == 1
        assert master.side.missing() is Outcome.SLAVE_NOT_AVAILABLE
        assert master.side.replicated == 0
        await master.slave(2, "b:1")
        assert master.side.missing() is None
        assert master.side.replicated == master.store.log.end

    play(scene)


def test_what_slaves_have_yet_to_confirm_is_not_seen() -> None:
    """Unless there are too few of them: senders are told so, and readers need not starve."""

    async def scene(master: Master) -> None:
        store = master.store
        promise = CopiesPromise(store, durability_of(store), master.side, store.dispatch_all)
        promise.begin(copies=2, timeout_s=3.0)
        await master.slave(1, "a:1")
        put(store, b"third")
        assert store.max_offset(KEY) == 2
        master.side.pump()
        master.slaves[0].sendall(REPORT.pack(store.log.end))
        await until(lambda: master.side.replicated == store.log.end)
        store.dispatch_all()
        assert store.max_offset(KEY) == 3
        put(store, b"fourth")
        assert store.max_offset(KEY) == 3
        master.slaves[0].close()
        await until(lambda: master.side.missing() is not None)
        store.dispatch_all()
        assert store.max_offset(KEY) == 4

    play(scene)
