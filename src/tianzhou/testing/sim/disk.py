"""SimDisk: a file system in memory that can fail, fill up, and lose unsynced data.

It implements the store's `Files` protocol in full. Every call that changes something is counted
and logged; the n-th can be made to fail; after each one a test may examine what a crash at this
point would leave (`crash_point`, see `disk_images`).
"""

import errno
import os
from collections.abc import Callable
from typing import Final, NamedTuple

from tianzhou.base.kinds import Bytes
from tianzhou.store.errors import StoreLocked
from tianzhou.store.files import Usage
from tianzhou.testing.sim.disk_images import CrashPoint, Image, crash_point
from tianzhou.testing.sim.disk_nodes import SECTOR, Directory, Inode

UNLIMITED: Final = 1 << 40


class Call(NamedTuple):
    """One call that changes the disk, in the order of the log."""

    kind: str
    path: str
    at: int
    size: int


Cause = int | type[MemoryError]
"""Why a call fails: an `errno`, or the interpreter had no memory for the call."""


class _Fault(NamedTuple):
    first: int
    cause: Cause
    onward: bool

    def error(self, path: str) -> Exception:
        if isinstance(self.cause, int):
            return OSError(self.cause, os.strerror(self.cause), path)
        return self.cause(path)


class SimFile:
    """An open file. Several may be open on the same contents."""

    __slots__ = ("_disk", "_inode", "_life", "_locks", "_mapped", "path")

    def __init__(self, disk: "SimDisk", path: str, inode: Inode, *, locks: bool = False) -> None:
        self.path = path
        self._disk = disk
        self._inode = inode
        self._life = disk.life
        self._locks = locks
        self._mapped = ""

    def size(self) -> int:
        self._check_open()
        return self._inode.size

    def next_data(self, at: int) -> int:
        self._check_open()
        written = self._inode.content[at:].lstrip(b"\0")
        position = self._inode.size - len(written)
        return max(at, position // SECTOR * SECTOR) if written else self._inode.size

    def pread(self, at: int, size: int) -> bytes:
        self._check_open()
        inode = self._inode
        return bytes(inode.buffer[at : min(at + size, inode.size)])

    def pwrite(self, at: int, data: Bytes) -> None:
        self._check_open()
        disk, inode, size = self._disk, self._inode, len(data)
        try:
            number = disk.enter("pwrite", self.path, at, size)
        except OSError:
            # The worst a failed write can do: the first half arrived.
            inode.write(len(disk.calls), at, bytes(data)[: size // 2])
            raise
        disk.take_room(self.path, at + size - inode.allocated)
        inode.write(number, at, data)
        disk.leave()

    def view(self) -> memoryview:
        self._map("for reading")
        return memoryview(self._inode.buffer)[: self._inode.size].toreadonly()

    def writable(self) -> memoryview:
        self._map("for writing")
        inode = self._inode
        if inode.shadow is None:
            inode.shadow = inode.content
            self._disk.mapped.append(inode)
        return memoryview(inode.buffer)[: inode.size]

    def _map(self, how: str) -> None:
        self._check_open()
        assert self._mapped in ("", how), "a file is mapped for reading or for writing, not both"
        if not self._inode.size:
            raise ValueError("cannot mmap an empty file")
        self._mapped = how

    def reserve(self, start: int, end: int) -> None:
        self._check_open()
        disk, inode = self._disk, self._inode
        number = disk.enter("reserve", self.path, start, end - start)
        disk.take_room(self.path, end - inode.allocated)
        inode.allocated = max(inode.allocated, end)
        if end > inode.size:
            inode.resize(number, end)
        disk.leave()

    def truncate(self, size: int) -> None:
        self._check_open()
        self._inode.resize(self._disk.enter("truncate", self.path, size), size)
        self._disk.leave()

    def sync(self) -> None:
        self._check_open()
        disk = self._disk
        try:
            number = disk.enter("sync", self.path)
        except OSError:
            if disk.failed_sync_drops:
                self._inode.drop_pending(len(disk.calls))
            raise
        self._inode.sync(number)
        disk.leave()

    def close(self) -> None:
        if self._life == self._disk.life and self._locks:
            self._inode.locked = False
        self._life = -1

    def _check_open(self) -> None:
        if self._life != self._disk.life:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF), self.path)


class SimDisk:
    """A file system of its own. Paths are plain strings with `/`.

    Owner: the thread of the test.
    """

    def __init__(self, image: Image | None = None, *, capacity: int = UNLIMITED) -> None:
        self.capacity = capacity
        self.calls: list[Call] = []
        """Every call that changes something, failed ones included."""
        self.on_call: Callable[[], None] | None = None
        """Called after each successful call of the log."""
        self.failed_sync_drops = False
        """Whether a failed sync leaves pages that look clean but are not on the medium."""
        self.life = 0
        """The process that has the files open; handles of dead processes do nothing."""
        self.mapped: list[Inode] = []
        self.root = Directory()
        self._directories: dict[str, Directory] = {"": self.root}
        self._directory_locks: dict[str, Inode] = {}
        self._fault: _Fault | None = None
        self._failures = 0
        for path, content in sorted(image.items()) if image else ():
            self._restore(path, content)

    # Faults

    def fail_at(self, number: int, error: Cause, *, onward: bool = False) -> None:
        """Make the `number`-th call from now (1 is the next) fail, optionally all later ones."""
        self._fault = _Fault(len(self.calls) + number, error, onward)
        self._failures = 0

    def heal(self) -> None:
        """End injected failures."""
        self._fault = None

    @property
    def failures(self) -> int:
        """Return how many calls failed since `fail_at`."""
        return self._failures

    def kill(self) -> None:
        """Kill the process that has files open; its writes stay, synced or not."""
        self.life += 1
        for inode in self._inodes():
            inode.collect(len(self.calls))
            inode.shadow = None
            inode.locked = False
        self._directory_locks.clear()
        self.mapped.clear()

    def crash_point(self) -> CrashPoint:
        """Return what a power loss now could leave."""
        for inode in self.mapped:
            inode.collect(len(self.calls))
        return crash_point(self.root, len(self.calls))

    def enter(self, kind: str, path: str, at: int = 0, size: int = 0) -> int:
        """Count a call, fail it if a failure is due, and return its number."""
        self.calls.append(Call(kind, path, at, size))
        number, fault = len(self.calls), self._fault
        if fault is not None and (number == fault.first or (fault.onward and number > fault.first)):
            self._failures += 1
            raise fault.error(path)
        return number

    def leave(self) -> None:
        if self.on_call is not None:
            self.on_call()

    def take_room(self, path: str, size: int) -> None:
        # Adding up is slow, so a disk without a limit does not.
        if size > 0 and self.capacity < UNLIMITED and size > self.capacity - self._used():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)

    # Files

    def create(self, path: str, size: int) -> SimFile:
        directory, name = self._place(path)
        number = self.enter("create", path, 0, size)
        self.take_room(path, 1)
        inode = directory.names.get(name)
        if inode is None:
            inode = Inode()
            directory.change(number, (name, inode))
        assert isinstance(inode, Inode), f"{path} is a directory"
        if inode.size:
            inode.resize(number, 0)
        if size:
            inode.resize(number, size)
        self.leave()
        return SimFile(self, path, inode)

    def open(self, path: str) -> SimFile:
        return SimFile(self, path, self._inode(path))

    def exists(self, path: str) -> bool:
        parent, _, name = _split(path)
        directory = self._directories.get(parent)
        return directory is not None and (not name or name in directory.names)

    def list(self, path: str) -> list[str]:
        directory = self._directories.get(_normal(path))
        return sorted(directory.names) if directory is not None else []

    def make_dirs(self, path: str) -> None:
        number = self.enter("make_dirs", path)
        at = ""
        for part in _normal(path).split("/"):
            parent, at = self._directories[at], f"{at}/{part}" if at else part
            if at not in self._directories:
                assert part not in parent.names, f"{at} is a file"
                made = self._directories[at] = Directory()
                parent.change(number, (part, made))
        self.leave()

    def rename(self, old: str, new: str) -> None:
        (source, old_name), (target, new_name) = self._place(old), self._place(new)
        inode = self._inode(old)
        number = self.enter("rename", f"{old} {new}")
        if source is target:
            source.change(number, (old_name, None), (new_name, inode))
        else:
            target.change(number, (new_name, inode))
            source.change(number, (old_name, None))
        self.leave()

    def remove(self, path: str) -> None:
        self._inode(path)
        directory, name = self._place(path)
        directory.change(self.enter("remove", path), (name, None))
        self.leave()

    def remove_dir(self, path: str) -> None:
        directory = self._directories.get(_normal(path))
        if directory is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        if directory.names:
            raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), path)
        parent, name = self._place(path)
        parent.change(self.enter("remove_dir", path), (name, None))
        del self._directories[_normal(path)]
        self.leave()

    def sync_dir(self, path: str) -> None:
        directory = self._directories.get(_normal(path))
        if directory is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        self.enter("sync_dir", path)
        directory.sync()
        self.leave()

    def write_back(self) -> None:
        """Start write-back. It makes nothing durable: a crash may still lose all of it."""

    def memory_bytes(self) -> int:
        return 1 << 30

    def usage(self, path: str) -> Usage:
        assert self.exists(path), f"there is no {path}"
        return Usage(self.capacity, self.capacity - self._used())

    def lock(self, path: str) -> SimFile:
        directory, name = self._place(path)
        inode = directory.names.get(name)
        if inode is None:
            inode = Inode()
            directory.change(self.enter("lock", path), (name, inode))
            self.leave()
        assert isinstance(inode, Inode), f"{path} is a directory"
        if inode.locked:
            raise StoreLocked(f"{path} is locked by another process")
        inode.locked = True
        return SimFile(self, path, inode, locks=True)

    def lock_dir(self, path: str) -> SimFile:
        directory = self._directories.get(_normal(path))
        if directory is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        lock = self._directory_locks.setdefault(_normal(path), Inode())
        if lock.locked:
            raise StoreLocked(f"{path} is locked by another process")
        lock.locked = True
        return SimFile(self, path, lock, locks=True)

    # Nodes

    def _place(self, path: str) -> tuple[Directory, str]:
        parent, _, name = _split(path)
        directory = self._directories.get(parent)
        if directory is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return directory, name

    def _inode(self, path: str) -> Inode:
        directory, name = self._place(path)
        inode = directory.names.get(name)
        if inode is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        if isinstance(inode, Directory):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        return inode

    def _inodes(self) -> "list[Inode]":
        directories = self._directories.values()
        nodes = [node for directory in directories for node in directory.names.values()]
        return [node for node in nodes if isinstance(node, Inode)]

    def _used(self) -> int:
        return sum(inode.allocated for inode in self._inodes())

    def _restore(self, path: str, content: bytes | None) -> None:
        parent, _, name = _split(path)
        directory = self._directories[parent]
        if content is None:
            node = self._directories[path] = Directory()
        else:
            node = Inode(content)
        directory.names[name] = directory.durable[name] = node


def _normal(path: str) -> str:
    return "" if path in (".", "/") else path.strip("/")


def _split(path: str) -> tuple[str, str, str]:
    return _normal(path).rpartition("/")
