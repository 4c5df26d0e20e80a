"""The master's side on sockets: who counts as a copy."""

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Callable
from dataclasses import replace

from ha_pair import FIRST, facts
from ha_stores import KEY, open_store, put

from tianzhou.broker.replica.ack_policy import AckPolicy
from tianzhou.net.acceptor import bind
from tianzhou.net.limits import HA_PORT, PortLimits
from tianzhou.replication.durability import Outcome, durability_of
from tianzhou.replication.ha_frames import REPORT, Hello, encode_words
from tianzhou.replication.ha_master import HaMaster, SlaveEvents, Standing
from tianzhou.store.store import MessageStore
from tianzhou.testing.kit.patience import Patience

WAIT_S = 60.0


class Master:
    """Waits for two slaves."""

    def __init__(self) -> None:
        self.store: MessageStore = open_store()
        put(self.store, b"first", b"second")
        self.told = facts(admits_plain=False)._replace(file_bytes=self.store.log.file_bytes)
        loop = asyncio.get_running_loop()
        self.side = HaMaster(
            self.store,
            lambda: self.told,
            loop.time,
            behind_bytes_max=1 << 20,
        )
        self.side.require(2, hurries=False)
        self.slaves: list[socket.socket] = []

    async def slave(self, broker_id: int, address: str) -> None:
        """One that had nothing, and now says that it has everything."""
        made = socket.create_connection(("127.0.0.1", self.port))
        self.slaves.append(made)
        hello = Hello(
            cluster="DefaultCluster",
            name="broker-a",
            id=broker_id,
            end=0,
            marks=FIRST,
            address=address,
        )
        made.sendall(encode_words(hello) + REPORT.pack(0))
        await until(lambda: (address, 0) in self.acked())
        end = int(self.store.log.end)
        made.sendall(REPORT.pack(end))
        await until(lambda: (address, end) in self.acked() and (address, 0) not in self.acked())

    def stranger(self, data: bytes = b"") -> socket.socket:
        """One that has yet to show who it is."""
        made = socket.create_connection(("127.0.0.1", self.port))
        self.slaves.append(made)
        made.sendall(data)
        return made

    def acked(self) -> list[tuple[str, int]]:
        return [(row.address, row.acked) for row in self.side.rows()]

    def listen(self, limits: PortLimits) -> None:
        bound = bind("127.0.0.1", 0)
        self.port = bound.getsockname()[1]
        self.side.listen(bound, limits)


async def until(condition: Callable[[], bool]) -> None:
    patience = Patience(WAIT_S)
    while not condition():
        assert not patience.is_over(), "it did not come about in time"
        await asyncio.sleep(0.01)


def play(scene: Callable[[Master], Awaitable[None]], limits: PortLimits = HA_PORT) -> None:
    async def run() -> None:
        master = Master()
        master.listen(limits)
        try:
            await scene(master)
        finally:
            master.side.close()
            for slave in master.slaves:
                slave.close()
            master.store.close()

    asyncio.run(run())


def test_master_counts_a_reconnected_slave_once() -> None:
    """Its first connection is dead, which a master detects only by a timeout."""

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


def test_master_hides_messages_that_slaves_have_not_confirmed() -> None:
    """If there are too few slaves, messages become visible: senders get the status, and consumers
    must not wait."""

    async def scene(master: Master) -> None:
        store = master.store
        promise = AckPolicy(store, durability_of(store), master.side, store.dispatch_all)
        promise.begin(2, timeout_s=3.0)
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


async def read_end(stranger: socket.socket) -> bytes:
    """What it gets until the master closes."""
    loop, got = asyncio.get_running_loop(), b""
    stranger.setblocking(False)
    async with asyncio.timeout(WAIT_S):
        try:
            while data := await loop.sock_recv(stranger, 65536):
                got += data
        except ConnectionResetError:
            pass
    return got


def test_s32_report_without_a_greeting_gets_no_log_and_is_not_a_replica() -> None:
    async def scene(master: Master) -> None:
        master.side.require(1, hurries=False)
        assert await read_end(master.stranger(REPORT.pack(0))) == b""
        assert master.acked() == []
        assert master.side.refused_count == 1

    play(scene)


def test_master_counts_a_listed_plain_slave_only_if_configured() -> None:
    async def scene(master: Master) -> None:
        master.side.require(1, hurries=False)
        end = int(master.store.log.end)
        for counts in (False, True):
            plain = facts(plain_copies=counts)
            master.told = plain._replace(file_bytes=master.store.log.file_bytes)
            slave = master.stranger(REPORT.pack(0))
            await until(lambda: len(master.acked()) == 1)
            slave.sendall(REPORT.pack(end))
            await until(lambda: master.acked()[0][1] == end)
            assert [row.is_in_sync for row in master.side.rows()] == [counts]
            assert (master.side.missing() is None) is counts
            assert master.side.replicated == (end if counts else 0)
            slave.close()
            await until(lambda: not master.acked())

    play(scene)


def test_master_logs_a_slave_that_leaves_but_no_unproven_peer() -> None:
    async def scene(master: Master) -> None:
        left: list[int] = []
        master.side.events = SlaveEvents(left=lambda: left.append(len(master.side.rows())))
        stranger = master.stranger(b"?")
        await until(lambda: len(master.side.connections) == 1)
        stranger.close()
        await until(lambda: not master.side.connections)
        await master.slave(1, "a:1")
        assert left == []
        master.slaves[-1].close()
        await until(lambda: left == [0])

    play(scene)


def test_reports_confirm_nothing_while_the_master_may_have_been_replaced() -> None:
    """One slave was promoted and left; the other one still follows the old master."""

    async def scene(master: Master) -> None:
        side, store = master.side, master.store
        side.require(1, hurries=False)
        await master.slave(1, "a:1")
        confirmed = side.replicated
        side.stand(Standing.ASKING)
        put(store, b"third")
        side.pump()
        master.slaves[0].sendall(REPORT.pack(store.log.end))
        await until(lambda: master.acked()[0][1] == store.log.end)
        assert (side.replicated, side.missing()) == (confirmed, None)
        side.stand(Standing.ALONE)
        assert (side.replicated, side.missing()) == (confirmed, Outcome.SLAVE_NOT_AVAILABLE)
        side.stand(Standing.SURE)
        assert (side.replicated, side.missing()) == (store.log.end, None)

    play(scene)


IMPATIENT = replace(HA_PORT, prove_s=0.3)


def test_s32_slow_connections_do_not_keep_slaves_out() -> None:
    """They do not take slots of slaves, and are closed after an absolute time."""

    async def scene(master: Master) -> None:
        hello = encode_words(Hello(cluster="DefaultCluster", name="broker-a", id=9, end=0))
        strangers = [master.stranger(hello[:1]) for _ in range(HA_PORT.unproven_max)]
        await until(lambda: len(master.side.connections) == HA_PORT.unproven_max)
        await master.slave(1, "a:1")
        assert len(master.side.connections) == HA_PORT.unproven_max
        heard, at = strangers[-1], 1
        with contextlib.suppress(ConnectionError):
            while len(master.side.connections) > 1:
                heard.sendall(hello[at : at + 1])
                at += 1
                await asyncio.sleep(IMPATIENT.prove_s / 10)
        await until(lambda: len(master.side.connections) == 1)
        assert await read_end(heard) == b""
        await asyncio.sleep(IMPATIENT.prove_s)
        assert master.acked() == [("a:1", master.store.log.end)], "a slave may stay"

    play(scene, IMPATIENT)


def test_s32_connection_gets_a_slot_only_after_it_proves_the_secret() -> None:
    async def scene(master: Master) -> None:
        told = facts(secret="s3")
        master.told = told._replace(file_bytes=master.store.log.file_bytes)
        hello = Hello(cluster="DefaultCluster", name="broker-a", id=1, end=0, marks=FIRST)
        silent = master.stranger(encode_words(hello))
        liar = master.stranger(encode_words(hello) + REPORT.pack(0))
        assert b"refusal" in await read_end(liar)
        welcome = await read_end(silent)
        assert b"nonce" in welcome
        assert b"refusal" not in welcome
        assert not master.side.connections

    play(scene, IMPATIENT)


def test_master_rejects_slaves_beyond_the_limit_of_the_port() -> None:
    async def scene(master: Master) -> None:
        await master.slave(1, "a:1")
        await master.slave(2, "b:1")
        hello = Hello(cluster="DefaultCluster", name="broker-a", id=3, end=0, marks=FIRST)
        third = master.stranger(encode_words(hello) + REPORT.pack(0))
        await read_end(third)
        assert [address for address, _ in master.acked()] == ["a:1", "b:1"]

    play(scene, replace(HA_PORT, connections_max=2))
