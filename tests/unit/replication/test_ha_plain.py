"""Peers that do not greet: who may come, and what a slave has its master prove first."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from ha_pair import FakeLog, facts, stream
from ha_stores import FILE_BYTES, bodies, copy_to, open_store, put
from raft_trio import until

from tianzhou.base.kinds import PhysicalOffset
from tianzhou.replication.config import ReplicationConfig
from tianzhou.replication.errors import PeerRefused
from tianzhou.replication.ha_frames import FRAME, REPORT, Hello, LogBytes, Welcome
from tianzhou.replication.ha_plain import Overlap, PlainPeers, checked_plain_peers
from tianzhou.replication.ha_slave import GREET_S, PROVE_S, HaSlave, SlaveSettings
from tianzhou.replication.ha_state import log_bytes, matches, overlap_of, probe_of
from tianzhou.store.store import MessageStore


@pytest.mark.parametrize(
    ("listed", "host", "is_admitted"),
    [
        ("", "127.0.0.1", False),
        ("10.0.0.7", "10.0.0.7", True),
        ("10.0.0.7", "10.0.0.8", False),
        ("10.0.0.7, 192.168.1.0/24", "192.168.1.77", True),
        ("192.168.1.5/24", "192.168.1.77", True),
        ("10.0.0.7", "::ffff:10.0.0.7", True),
        ("fd00::/8", "fd12::1", True),
        ("fe80::/10", "fe80::1%eth0", True),
        ("0.0.0.0/0", "broker-a", False),
        ("0.0.0.0/0", "", False),
    ],
)
def test_plain_peers_admit_only_listed_addresses(listed: str, host: str, is_admitted: bool) -> None:
    assert PlainPeers.read(listed).admits(host) is is_admitted


def test_plain_peers_setting_rejects_names_and_the_former_true() -> None:
    assert checked_plain_peers("false") == ""
    assert checked_plain_peers("10.0.0.7") == "10.0.0.7"
    for wrong in ("true", "broker-a", "10.0.0.300", ",".join(["10.0.0.1"] * 65)):
        with pytest.raises(ValueError, match=r"address|network|peers"):
            checked_plain_peers(wrong)


def test_plain_peers_are_none_by_default_or_with_a_secret() -> None:
    assert not ReplicationConfig().plain_peers.admits("127.0.0.1")
    config = ReplicationConfig(ha_plain_peers="127.0.0.1", ha_secret="s3")
    assert not config.plain_peers.admits("127.0.0.1")


def test_plain_slave_counts_as_a_replica_only_if_configured() -> None:
    for told, counts in ((facts(), False), (facts(plain_copies=True), True)):
        master = FakeLog(end=2500).session(told)
        master.received(REPORT.pack(900), 0.0)
        stream(master)
        master.received(REPORT.pack(2500), 0.0)
        assert (master.acked, master.counts) == (2500, counts)


# The overlap


def test_overlap_strips_bytes_that_the_slave_has_in_any_chunking() -> None:
    ours, beyond = bytes(range(100)), b"more"
    data = ours + beyond
    for cut in (1, 7, 99, 100, 101, 104):
        overlap, found = Overlap(PhysicalOffset(50), ours), b""
        for at in range(0, len(data), cut):
            assert overlap.is_proven is (at >= 100)
            piece = LogBytes(PhysicalOffset(50 + at), data[at : at + cut])
            for offset, rest in overlap.strip([piece]):
                assert offset == 150 + len(found)
                found += rest
        assert found == beyond


@pytest.mark.parametrize("changed", [0, 50, 99])
def test_overlap_rejects_a_different_byte_anywhere(changed: int) -> None:
    data = bytearray(100)
    data[changed] = 1
    with pytest.raises(PeerRefused, match="differs from this slave's before 150"):
        Overlap(PhysicalOffset(50), bytes(100)).strip([LogBytes(PhysicalOffset(50), bytes(data))])


def test_overlap_rejects_a_master_that_starts_elsewhere() -> None:
    with pytest.raises(PeerRefused, match="from 60; 50 was requested"):
        Overlap(PhysicalOffset(50), bytes(100)).strip([LogBytes(PhysicalOffset(60), bytes(10))])


def test_overlap_of_a_log_that_ends_with_padding_holds_message_bytes() -> None:
    """Zeros at the end of a file are the same in every log."""
    one, other = open_store(), open_store()
    put(one, b"a" * 2500, b"b" * 3000)
    put(other, b"c" * 2500, b"d" * 3000)
    slave = open_store()
    copy_to(slave, one, end=FILE_BYTES)
    assert slave.log.end == FILE_BYTES
    tail = log_bytes(slave, FILE_BYTES - 1000, 1000)
    assert tail == bytes(1000), "the file ends with padding"
    overlap, probe = overlap_of(slave), probe_of(slave)
    assert overlap is not None
    assert probe is not None
    assert overlap.end == FILE_BYTES
    assert matches(one, probe)
    assert not matches(other, probe)
    data = log_bytes(other, overlap.start, FILE_BYTES - overlap.start)
    assert data is not None
    with pytest.raises(PeerRefused, match="differs"):
        overlap.strip([LogBytes(overlap.start, data)])


def test_overlap_of_an_empty_log_is_none_and_never_starts_at_zero() -> None:
    store = open_store()
    assert overlap_of(store) is None
    put(store, b"first")
    overlap = overlap_of(store)
    assert overlap is not None
    assert overlap.start == 1, "RocketMQ takes a report of 0 for an empty slave's"


# The slave on a socket


class Plain:
    """A master that knows no greeting: it reads eight bytes and sends its log from there."""

    def __init__(self, store: MessageStore) -> None:
        self._store = store
        self.reports: list[int] = []
        self.port = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        is_first = True
        try:
            while True:
                (offset,) = REPORT.unpack(await reader.readexactly(8))
                if offset < 0:
                    continue  # a greeting, to whom only offsets mean anything
                self.reports.append(offset)
                if is_first:
                    self._send_from(offset, writer)
                is_first = False
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    def _send_from(self, at: int, writer: asyncio.StreamWriter) -> None:
        end = self._store.log.end
        while at < end:
            room = FILE_BYTES - at % FILE_BYTES
            data = log_bytes(self._store, at, min(room, end - at, 100))
            assert data
            writer.write(FRAME.pack(at, len(data)) + data)
            at += len(data)
        writer.write(FRAME.pack(end, 0))


class Slave:
    """A `Follower` with a store on a simulated disk and a clock that can be moved."""

    def __init__(self, port: int, why_not: str) -> None:
        self.store = open_store()
        self._port = port
        self._why_not = why_not
        self.ahead_s = 0.0
        settings = SlaveSettings("", heartbeat_s=5, silence_s=500, retry_s_max=0.01)
        loop = asyncio.get_running_loop()
        self.side = HaSlave(self.store, self, settings, lambda: loop.time() + self.ahead_s)

    async def pass_time(self, seconds: float) -> None:
        await until(lambda: self.side.following is not None)
        self.ahead_s += seconds
        self.side.tick()

    def master_address(self) -> str:
        return f"127.0.0.1:{self._port}"

    def why_not_plain(self, host: str) -> str:
        return self._why_not if host == "127.0.0.1" else "another host"

    def hello(self) -> Hello:
        return Hello(cluster="DefaultCluster", name="broker-a", id=1, end=0)

    def agree(self, welcome: Welcome) -> None:
        raise AssertionError("this master does not greet")

    def appended(self) -> None: ...
    def lost(self) -> None: ...


def play(
    scene: Callable[[MessageStore, Plain, Slave], Awaitable[None]], *, why_not: str = ""
) -> None:
    async def run() -> None:
        store = open_store()
        master = Plain(store)
        server = await asyncio.start_server(master.serve, "127.0.0.1", 0)
        slave = Slave(server.sockets[0].getsockname()[1], why_not)
        try:
            await scene(store, master, slave)
        finally:
            await slave.side.stop()
            server.close()
            slave.store.close()
            store.close()

    asyncio.run(run())


def test_slave_greets_a_silent_master_again_and_never_follows_it() -> None:
    async def scene(store: MessageStore, master: Plain, slave: Slave) -> None:
        put(store, b"first")
        slave.side.start()
        for _ in range(5):
            await slave.pass_time(GREET_S + 1)
            await until(lambda: slave.side.following is None)
        assert "not listed" in slave.side.last_error
        assert "did not answer the greeting" in slave.side.last_error
        assert master.reports == []
        assert slave.store.log.end == 0

    play(scene, why_not="the address is not listed")


def test_slave_follows_a_listed_master_whose_log_continues_its_own() -> None:
    async def scene(store: MessageStore, master: Plain, slave: Slave) -> None:
        put(store, *(b"%d" % number * 100 for number in range(30)))
        copy_to(slave.store, store)
        held = int(slave.store.log.end)
        put(store, b"more", b"and more")
        slave.side.start()
        await slave.pass_time(GREET_S + 1)
        await until(lambda: slave.store.log.end == store.log.end)
        slave.store.dispatch_all()
        assert bodies(slave.store) == bodies(store)
        assert master.reports[0] < held
        await until(lambda: master.reports[-1] == store.log.end)
        assert all(offset >= held for offset in master.reports[1:])
        assert slave.side.is_streaming

    play(scene)


def test_slave_with_a_stale_tail_rejects_a_listed_master() -> None:
    async def scene(store: MessageStore, master: Plain, slave: Slave) -> None:
        put(store, *(b"%d" % number * 100 for number in range(10)))
        copy_to(slave.store, store)
        slave.store.begin_writing()
        put(slave.store, b"stale " * 20)
        put(store, b"acked " * 20, *(b"%d" % number * 100 for number in range(10)))
        held = int(slave.store.log.end)
        slave.side.start()
        await slave.pass_time(GREET_S + 1)
        await until(lambda: "differs from this slave's" in slave.side.last_error)
        assert slave.store.log.end == held
        assert all(offset < held for offset in master.reports), "nothing was confirmed"

    play(scene)


def test_slave_gives_up_on_a_listed_master_whose_log_is_shorter() -> None:
    async def scene(store: MessageStore, master: Plain, slave: Slave) -> None:
        put(store, *(b"%d" % number * 100 for number in range(10)))
        copy_to(slave.store, store)
        slave.store.begin_writing()
        put(slave.store, b"stale")
        slave.side.start()
        await slave.pass_time(GREET_S + 1)
        await until(lambda: bool(master.reports))
        assert not slave.side.is_streaming
        await slave.pass_time(PROVE_S + 1)
        await until(lambda: "its log may be shorter" in slave.side.last_error)

    play(scene)
