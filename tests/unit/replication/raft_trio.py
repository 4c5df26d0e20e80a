"""Three members in one process, on real files and sockets, with disks that can be made to fail."""

import asyncio
import errno
import socket
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path

from raft_logs import KEY, chunk

from tianzhou.base.kinds import Bytes
from tianzhou.cmd.clock import SystemClock
from tianzhou.record.message import decode_all
from tianzhou.replication.raft_group import RaftGroup
from tianzhou.replication.raft_member import open_member
from tianzhou.replication.raft_settings import RaftSettings
from tianzhou.store.config import FlushMode, StoreConfig
from tianzhou.store.files import RealFile, RealFiles, Usage
from tianzhou.store.read import ReadLimit
from tianzhou.testing.kit.patience import Patience

NAMES = ("n0", "n1", "n2")
WAIT_S = 60.0
FILE_BYTES = 64 * 1024
RESERVE_BYTES = 4096


class BadFile(RealFile):
    __slots__ = ("disk",)
    disk: "BadDisk"

    def sync(self) -> None:
        if self.disk.sync_fails:
            raise OSError(errno.EIO, "the disk is broken", self.path)
        if "commitlog" in self.path:
            self.disk.may_sync.wait(WAIT_S)
        super().sync()

    def pwrite(self, at: int, data: Bytes) -> None:
        if self.disk.queues_are_full and "consumequeue" in self.path:
            raise OSError(errno.ENOSPC, "the disk is full", self.path)
        super().pwrite(at, data)

    def reserve(self, start: int, end: int) -> None:
        self.disk.room_bytes -= end - start
        if self.disk.is_full or self.disk.room_bytes < 0:
            raise OSError(errno.ENOSPC, "the disk is full", self.path)
        super().reserve(start, end)


class BadDisk(RealFiles):
    """Real files on a disk that can be made to fail."""

    def __init__(self) -> None:
        self.sync_fails = False
        self.may_sync = threading.Event()
        """While it is not set, syncs of the log take their time."""
        self.may_sync.set()
        self.is_full = False
        self.queues_are_full = False
        """There is room in the files of the log, and nowhere else."""
        self.room_bytes = 1 << 40
        """So much can be reserved before it is full."""
        self.free = 90

    def create(self, path: str, size: int) -> RealFile:
        return self._bad(super().create(path, size))

    def open(self, path: str) -> RealFile:
        return self._bad(super().open(path))

    def _bad(self, file: RealFile) -> RealFile:
        made = BadFile(file.path, file._fd)
        made.disk = self
        return made

    def usage(self, path: str) -> Usage:
        return Usage(total=100, free=self.free)


class Member:
    """A member without a broker: takes messages by itself when it leads."""

    def __init__(
        self, name: str, root: Path, peers: str, group: str = "g", secret: str = ""
    ) -> None:
        self.disk = BadDisk()
        settings = RaftSettings(
            raft_enabled=True,
            raft_group=group,
            raft_peers=peers,
            raft_id=name,
            raft_new=True,
            raft_election_ms=300,
            raft_heartbeat_ms=60,
            raft_secret=secret,
        )
        config = StoreConfig(
            commit_log_file_bytes=FILE_BYTES,
            consume_queue_file_bytes=2000,
            commit_log_preallocate_bytes=RESERVE_BYTES,
            index_slots=8,
            index_entries=400,
            flush_mode=FlushMode.SYNC,
            flush_interval_ms=20,
        )
        opened = open_member(settings, self.disk, str(root / name), config, clock=SystemClock())
        self.store = opened.store
        self.fenced_because = ""
        self.group = RaftGroup(settings, opened, broker=name, serving=self)

    async def start(self) -> None:
        loop = asyncio.get_running_loop()
        self.store.start(lambda: loop.call_soon_threadsafe(self.group.flushed) and None)
        await self.group.start()

    async def close(self) -> None:
        await self.group.close()
        self.store.abandon()

    # Serving

    def lead(self) -> None:
        self.store.dispatch_all()
        self.store.begin_writing()

    def follow(self) -> None:
        self.store.stop_writing()

    def settle(self) -> None:
        self.store.dispatch_all()

    def fenced(self, reason: str) -> None:
        self.fenced_because = reason

    def shown(self) -> list[bytes]:
        start = self.store.min_offset(KEY)
        with self.store.read(KEY, start, ReadLimit(10_000, 1 << 24)) as found:
            return [view.body for span in found.spans for view in decode_all(span)]


class Trio:
    def __init__(self, root: Path, secret: str) -> None:
        with socket.socket() as one, socket.socket() as two, socket.socket() as three:
            for bound in (one, two, three):
                bound.bind(("127.0.0.1", 0))
            ports = [bound.getsockname()[1] for bound in (one, two, three)]
        named = zip(NAMES, ports, strict=True)
        self.peers = ";".join(f"{name}=127.0.0.1:{port}" for name, port in named)
        self.members = [Member(name, root, self.peers, secret=secret) for name in NAMES]

    def named(self, name: str | None) -> Member:
        return next(member for member in self.members if member.group.node.id == name)

    def crash(self, member: Member) -> None:
        self.members.remove(member)
        member.group.abort()
        member.store.abandon()

    async def leader(self) -> Member:
        await until(lambda: any(member.group.is_leading for member in self.members))
        return next(member for member in self.members if member.group.is_leading)

    async def send(self, *bodies: bytes) -> None:
        """Until a majority has them."""
        leader = await self.leader()
        end = leader.group.append(chunk(*bodies)).end
        await until(lambda: leader.group.replicated >= end)


async def until(condition: Callable[[], bool]) -> None:
    patience = Patience(WAIT_S)
    while not condition():
        assert not patience.is_over(), "it did not come about in time"
        await asyncio.sleep(0.01)


def play(root: Path, scene: Callable[[Trio], Awaitable[None]], *, secret: str = "") -> None:
    async def run() -> None:
        trio = Trio(root, secret)
        for member in trio.members:
            await member.start()
        try:
            await scene(trio)
        finally:
            for member in trio.members:
                await member.close()

    asyncio.run(run())
