"""The disk of a test broker: real files in a temporary directory, a full disk on demand.

Nothing is synced: data must survive the broker, not the machine, and syncs would take most of the
time of starting and stopping a broker.
"""

import errno
import os
from typing import Final

from tianzhou.base.kinds import Bytes
from tianzhou.store.files import File, RealFiles, Usage

_PLENTY: Final = Usage(total=1 << 40, free=1 << 40)
"""Reported while the disk is not full: a test must not depend on the machine's free space."""
_NOTHING: Final = Usage(total=1 << 40, free=0)


class KitDisk:
    """Owner: one test broker. `is_full` may be set from any thread."""

    def __init__(self) -> None:
        self._files = RealFiles()
        self.is_full = False

    def check_room(self, path: str) -> None:
        if self.is_full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)

    def create(self, path: str, size: int) -> File:
        self.check_room(path)
        return KitFile(self._files.create(path, size), self)

    def open(self, path: str) -> File:
        return KitFile(self._files.open(path), self)

    def write_back(self) -> None:
        """No-op: this disk never waits."""

    def memory_bytes(self) -> int:
        return self._files.memory_bytes()

    def exists(self, path: str) -> bool:
        return self._files.exists(path)

    def list(self, path: str) -> list[str]:
        return self._files.list(path)

    def make_dirs(self, path: str) -> None:
        self._files.make_dirs(path)

    def rename(self, old: str, new: str) -> None:
        self._files.rename(old, new)

    def remove(self, path: str) -> None:
        self._files.remove(path)

    def remove_dir(self, path: str) -> None:
        self._files.remove_dir(path)

    def sync_dir(self, path: str) -> None:
        pass

    def usage(self, path: str) -> Usage:
        return _NOTHING if self.is_full else _PLENTY

    def lock(self, path: str) -> File:
        return self._files.lock(path)

    def lock_dir(self, path: str) -> File:
        return self._files.lock_dir(path)


class KitFile:
    """One file. On a full disk existing bytes can be overwritten, but no file can grow."""

    __slots__ = ("_disk", "_file", "path")

    def __init__(self, file: File, disk: KitDisk) -> None:
        self.path = file.path
        self._file = file
        self._disk = disk

    def size(self) -> int:
        return self._file.size()

    def next_data(self, at: int) -> int:
        return self._file.next_data(at)

    def pread(self, at: int, size: int) -> bytes:
        return self._file.pread(at, size)

    def pwrite(self, at: int, data: Bytes) -> None:
        self._file.pwrite(at, data)

    def view(self) -> memoryview:
        return self._file.view()

    def writable(self) -> memoryview:
        return self._file.writable()

    def reserve(self, start: int, end: int) -> None:
        self._disk.check_room(self.path)
        self._file.reserve(start, end)

    def truncate(self, size: int) -> None:
        self._file.truncate(size)

    def sync(self) -> None:
        pass

    def close(self) -> None:
        self._file.close()
