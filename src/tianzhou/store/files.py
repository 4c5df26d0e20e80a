"""The only access to the disk: the file system interface of the store, and its implementation.

Everything the store does to files goes through these two protocols, so that tests can record the
calls, fail the n-th of them, and rebuild every state in which a crash may leave a disk.

Records are written with `pwrite` and read with `pread`. Memory mapping would not be
faster (the first access to a page costs a page fault), and it turns a full disk, a bad sector or a
truncated file into a signal that kills the process, where `pwrite` and `pread` raise an error.
"""

import contextlib
import errno
import fcntl
import mmap
import os
import shutil
from collections.abc import Generator
from typing import Final, NamedTuple, Protocol

from tianzhou.base.kinds import Bytes
from tianzhou.store.descriptors import PROCESS_SPARES, SPARES, not_opened
from tianzhou.store.errors import StoreLocked

LOST_AND_FOUND: Final = "lost+found"


class Usage(NamedTuple):
    total: int
    free: int

    @property
    def used_ratio(self) -> float:
        return 1 - self.free / self.total if self.total else 1.0


class File(Protocol):
    """An open file."""

    path: str

    def size(self) -> int: ...
    def next_data(self, at: int) -> int:
        """The first position from `at` on where something may be written; the size if nowhere.
        Looking for something in a file that is mostly hole takes seconds without it."""
        ...

    def pread(self, at: int, size: int) -> bytes: ...
    def pwrite(self, at: int, data: Bytes) -> None:
        """All of it, or an error."""
        ...

    def view(self) -> memoryview:
        """The whole file, read-only; shows what is written later. Valid until close."""
        ...

    def writable(self) -> memoryview:
        """The whole file, for scattered writes. Reserve first: a full disk is a signal here."""
        ...

    def reserve(self, start: int, end: int) -> None:
        """Take disk blocks for this range now; a full disk is an error here and not later."""
        ...

    def truncate(self, size: int) -> None: ...
    def sync(self) -> None:
        """Everything written so far is on the medium when this returns."""
        ...

    def close(self) -> None: ...


class Files(Protocol):
    """A file system. Paths are plain strings with `/`."""

    def create(self, path: str, size: int) -> File:
        """A new file of this length, sparse; an existing one is emptied. If this fails, the file
        does not exist. Call it through `creating`, which guarantees the same for the steps that
        follow."""
        ...

    def open(self, path: str) -> File: ...
    def exists(self, path: str) -> bool: ...
    def list(self, path: str) -> list[str]:
        """Names in a directory, sorted; empty when there is no such directory."""
        ...

    def make_dirs(self, path: str) -> None: ...
    def rename(self, old: str, new: str) -> None: ...
    def remove(self, path: str) -> None: ...
    def remove_dir(self, path: str) -> None: ...
    def sync_dir(self, path: str) -> None:
        """Names created, renamed and removed in this directory so far survive a crash."""
        ...

    def usage(self, path: str) -> Usage: ...
    def memory_bytes(self) -> int:
        """What may keep files in memory."""
        ...

    def write_back(self) -> None:
        """Start writing back the dirty pages of all files. Guarantees nothing, but makes the
        following syncs cheap."""
        ...

    def lock(self, path: str) -> File:
        """Hold the file exclusively until it is closed; StoreLocked if another process does."""
        ...

    def lock_dir(self, path: str) -> File:
        """The same for a directory; no file is created in it."""
        ...


@contextlib.contextmanager
def creating(files: Files, path: str, size: int) -> Generator[File]:
    """Create a file and complete it in the block; if the block fails, close and remove the file.

    Work that fails for lack of space, descriptors or memory is retried for as long as the shortage
    lasts, so a file left behind by each attempt would fill the disk. Raises NotOpened if memory ran
    out. When the block succeeds the file stays open."""
    file = files.create(path, size)
    try:
        yield file
    except BaseException as error:
        file.close()
        files.remove(path)
        if isinstance(error, MemoryError):
            raise not_opened(path) from error
        raise


def list_visible(files: Files, path: str) -> list[str]:
    """Names in a directory, without those that file browsers and NFS hide there, and without the
    directory that ext4 creates on an empty disk."""
    return [name for name in files.list(path) if name[0] != "." and name != LOST_AND_FOUND]


def make_lasting_dirs(files: Files, path: str) -> None:
    """Make a directory, and those it lies in, whose names survive a crash: files synced within
    them are lost with a name that was not."""
    missing: list[str] = []
    while path and not files.exists(path):
        missing.append(path)
        path = path.rpartition("/")[0]
    if path:
        # The process that created it may have died, or failed, before it was synced. In a directory
        # of another user a sync may not be permitted, and is not needed.
        with contextlib.suppress(PermissionError):
            files.sync_dir(parent_of(path))
    for new in reversed(missing):
        files.make_dirs(new)
        files.sync_dir(parent_of(new))


def parent_of(path: str) -> str:
    return path.rpartition("/")[0] or ("/" if path.startswith("/") else ".")


class RealFile:
    __slots__ = ("_fd", "_map", "_read_only", "path")

    def __init__(self, path: str, fd: int) -> None:
        self.path = path
        self._fd = fd
        self._map: mmap.mmap | None = None
        self._read_only = True

    def size(self) -> int:
        # Faster than fstat, which creates an object with all attributes; no code here uses the
        # position.
        return os.lseek(self._fd, 0, os.SEEK_END)

    def next_data(self, at: int) -> int:
        try:
            return os.lseek(self._fd, at, os.SEEK_DATA)
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
            return self.size()

    def pread(self, at: int, size: int) -> bytes:
        return os.pread(self._fd, size, at)

    def pwrite(self, at: int, data: Bytes) -> None:
        written = os.pwrite(self._fd, data, at)
        if written == len(data):
            return
        rest = memoryview(data).cast("B")
        while written < len(rest):  # a signal or a nearly full disk may cut a write short
            done = os.pwrite(self._fd, rest[written:], at + written)
            if done == 0:
                raise OSError(errno.ENOSPC, "the disk took no more bytes", self.path)
            written += done

    def view(self) -> memoryview:
        if self._map is None:
            self._map = PROCESS_SPARES.map(self.path, self._fd, mmap.PROT_READ)
        return memoryview(self._map)

    def writable(self) -> memoryview:
        if self._map is None or self._read_only:
            assert self._map is None, "a file is mapped for reading or for writing, not for both"
            access = mmap.PROT_READ | mmap.PROT_WRITE
            self._map = PROCESS_SPARES.map(self.path, self._fd, access)
            self._read_only = False
        return memoryview(self._map)

    def reserve(self, start: int, end: int) -> None:
        os.posix_fallocate(self._fd, start, end - start)

    def truncate(self, size: int) -> None:
        os.ftruncate(self._fd, size)

    def sync(self) -> None:
        # Never mmap.flush(): it keeps the interpreter lock during the whole msync. fdatasync
        # writes pages that were dirtied through a mapping as well.
        os.fdatasync(self._fd)

    def close(self) -> None:
        if self._map is not None:
            # A reader that still holds a view keeps the pages; they go when it lets go.
            with contextlib.suppress(BufferError):
                self._map.close()
            self._map = None
        if self._fd >= 0:
            PROCESS_SPARES.close(self._fd)
            self._fd = -1


# A link in place of a file would lead out of the store; an intact store has no links.
_LOOK: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW
_OPEN: Final = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW


class RealFiles:
    """The file system of this machine."""

    def create(self, path: str, size: int) -> RealFile:
        fd = PROCESS_SPARES.open(path, _OPEN | os.O_CREAT | os.O_TRUNC)
        try:
            os.ftruncate(fd, size)
            return RealFile(path, fd)
        except BaseException as error:
            PROCESS_SPARES.close(fd)
            os.unlink(path)
            if isinstance(error, MemoryError):
                raise not_opened(path) from error
            raise

    def open(self, path: str) -> RealFile:
        return RealFile(path, PROCESS_SPARES.open(path, _OPEN))

    def exists(self, path: str) -> bool:
        return os.path.exists(path)

    def list(self, path: str) -> list[str]:
        try:
            return sorted(PROCESS_SPARES.list(path))
        except (FileNotFoundError, NotADirectoryError):
            return []

    def make_dirs(self, path: str) -> None:
        os.makedirs(path, exist_ok=True)

    def rename(self, old: str, new: str) -> None:
        os.replace(old, new)

    def remove(self, path: str) -> None:
        os.unlink(path)

    def remove_dir(self, path: str) -> None:
        os.rmdir(path)

    def sync_dir(self, path: str) -> None:
        fd = PROCESS_SPARES.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            PROCESS_SPARES.close(fd)

    def usage(self, path: str) -> Usage:
        found = shutil.disk_usage(path)
        # Blocks kept back for root are not ours to use.
        return Usage(found.used + found.free, found.free)

    def write_back(self) -> None:
        os.sync()

    def memory_bytes(self) -> int:
        total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        try:  # in a container the limit of the container counts
            with open("/sys/fs/cgroup/memory.max", encoding="ascii") as file:
                allowed = file.read().strip()
        except OSError:
            return total
        return min(total, int(allowed)) if allowed.isdecimal() else total

    def lock(self, path: str) -> RealFile:
        PROCESS_SPARES.hold(SPARES)  # the process owns a store
        return _lock(path, _OPEN | os.O_CREAT, fcntl.LOCK_EX)

    def lock_dir(self, path: str) -> RealFile:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            # Unlike the lock of a file, this one also excludes a second handle of this process.
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(fd)
            raise StoreLocked(
                f"{path} belongs to the store of another running broker; set a different path for "
                "each broker: commit_log_path (storePathCommitLog), consume_queue_path "
                "(storePathConsumeQueue), index_path (storePathIndex), tables_path"
            ) from error
        except OSError:
            os.close(fd)
            raise
        return RealFile(path, fd)


class ReadOnlyFiles(RealFiles):
    """Read-only access: nothing can be changed, and a read-only disk, such as that of a backup, is
    enough."""

    def open(self, path: str) -> RealFile:
        return _ReadOnlyFile(path, PROCESS_SPARES.open(path, _LOOK))

    def lock(self, path: str) -> RealFile:
        """Exclude writers, but not other readers."""
        return _lock(path, _LOOK, fcntl.LOCK_SH)


class _ReadOnlyFile(RealFile):
    def writable(self) -> memoryview:
        return self.view()


def _lock(path: str, flags: int, kind: int) -> RealFile:
    if os.path.exists(path) and _node(os.stat(path)) in _locked:
        raise _already_locked(path, "a store of this very process")
    fd = os.open(path, flags, 0o644)
    try:
        # One byte at 0, as Java locks it: the two exclude each other.
        fcntl.lockf(fd, kind | fcntl.LOCK_NB, 1, 0)
    except (BlockingIOError, PermissionError) as error:
        os.close(fd)
        raise _already_locked(path, "another process") from error
    except OSError:  # a file system without locks
        os.close(fd)
        raise
    return _LockedFile(path, fd)


_locked: Final[set[tuple[int, int]]] = set()
"""Files that this process has locked. The system lets a process lock its own files again, and
unlocks a file as soon as any handle of it is closed; so no second handle is opened."""


def _node(found: os.stat_result) -> tuple[int, int]:
    return found.st_dev, found.st_ino


def _already_locked(path: str, by: str) -> StoreLocked:
    return StoreLocked(
        f"{path} is locked by {by}: a broker already runs on this directory; "
        "stop it, or give this one another directory"
    )


class _LockedFile(RealFile):
    __slots__ = ("_place",)

    def __init__(self, path: str, fd: int) -> None:
        super().__init__(path, fd)
        self._place = _node(os.fstat(fd))
        _locked.add(self._place)

    def close(self) -> None:
        super().close()
        _locked.discard(self._place)
