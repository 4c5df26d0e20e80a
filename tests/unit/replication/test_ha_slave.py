"""The slave's side on a socket: when it confirms."""

import asyncio
from pathlib import Path

from ha_pair import FIRST, facts
from ha_stores import FILE_BYTES, open_store, put
from raft_trio import BadDisk, until

from tianzhou.cmd.clock import SystemClock
from tianzhou.net.acceptor import bind
from tianzhou.replication.ha_frames import Hello, Welcome
from tianzhou.replication.ha_master import HaMaster
from tianzhou.replication.ha_slave import HaSlave, SlaveSettings
from tianzhou.replication.ha_state import settle_log
from tianzhou.store.config import StoreConfig
from tianzhou.store.store import MessageStore

ROUNDS = 20


class Slave:
    """A `Follower` with a log of its own."""

    def __init__(self, root: Path, port: int) -> None:
        self._port = port
        self.disk = BadDisk()
        config = StoreConfig(
            commit_log_file_bytes=FILE_BYTES,
            consume_queue_file_bytes=200,
            commit_log_preallocate_bytes=4096,
            index_slots=8,
            index_entries=40,
        )
        self.store = MessageStore(self.disk, str(root), config, SystemClock())
        loop = asyncio.get_running_loop()
        settings = SlaveSettings("", heartbeat_s=5, silence_s=20, retry_s_max=1)
        self.side = HaSlave(self.store, self, settings, loop.time)
        self.store.start(lambda: loop.call_soon_threadsafe(self.side.flushed) and None)

    def master_address(self) -> str:
        return f"127.0.0.1:{self._port}"

    def why_not_plain(self, host: str) -> str:
        return "not listed"

    def hello(self) -> Hello:
        return Hello(cluster="DefaultCluster", name="broker-a", id=1, end=0, address="slave:1")

    def agree(self, welcome: Welcome) -> None:
        settle_log(self.store, FIRST, welcome, from_last_file=False)

    def appended(self) -> None: ...
    def lost(self) -> None: ...


def test_slave_confirms_flushed_bytes_if_the_master_requires_it(tmp_path: Path) -> None:
    async def run() -> None:
        store = open_store()
        put(store, b"first")
        told = facts()._replace(file_bytes=FILE_BYTES, confirm_flushed=True)
        loop, bound = asyncio.get_running_loop(), bind("127.0.0.1", 0)
        master = HaMaster(store, lambda: told, loop.time, behind_bytes_max=1 << 20)
        master.listen(bound)
        slave = Slave(tmp_path, bound.getsockname()[1])
        slave.side.start()
        try:
            await until(lambda: master.replicated == store.log.end)
            slave.disk.may_sync.clear()
            before = store.log.end
            put(store, b"second")
            master.pump()
            await until(lambda: slave.store.log.end == store.log.end)
            for _ in range(ROUNDS):  # more than a report needs
                await asyncio.sleep(0.01)
                assert master.replicated == before
            slave.disk.may_sync.set()
            await until(lambda: master.replicated == store.log.end)
        finally:
            slave.disk.may_sync.set()
            await slave.side.stop()
            master.close()
            slave.store.close()
            store.close()

    asyncio.run(run())


def test_slave_without_a_known_master_keeps_asking_the_nameserver(tmp_path: Path) -> None:
    """The master may register slightly later; the next registration of the slave is 30 s away."""

    async def run() -> None:
        slave = Lonely(tmp_path, 0)
        slave.side.start()
        await until(lambda: slave.asked >= 3)
        await slave.side.stop()
        slave.store.close()

    asyncio.run(run())


class Lonely(Slave):
    asked = 0

    def master_address(self) -> str:
        return ""

    def lost(self) -> None:
        self.asked += 1
