"""Opening files when descriptors or memory are short.

A process that has no free descriptor can't open the next file of the log, or the file that it is
about to sync. The disk is not at fault then: the operation is refused or deferred, and works again
when connections close. A store that owns a directory also keeps a few descriptors in reserve, so
that it continues when other code has taken the last ones.
"""

import errno
import mmap
import os
import threading
from collections.abc import Callable
from typing import Final, TypeVar

T = TypeVar("T")

SPARES: Final = 16
"""More than the store opens at a time besides the files it keeps open: a file, its mapping and its
directory, in each of two threads."""
_SHORT: Final = (errno.EMFILE, errno.ENFILE)
_FULL: Final = (errno.ENOSPC, errno.EDQUOT)


class NotOpened(OSError):
    """A file could not be opened, created or mapped for lack of descriptors or memory. Its bytes
    are unchanged."""


Failure = OSError | MemoryError
"""Exceptions of a step that uses files and memory. The interpreter allocates a buffer before the
system call, so a MemoryError never indicates a fault of the disk."""


def is_unopened(error: Failure) -> bool:
    """Whether the error means that no file could be opened, not that the disk failed."""
    return isinstance(error, MemoryError | NotOpened) or error.errno in _SHORT


def is_shortage(error: Failure) -> bool:
    """Whether a later retry may succeed: the disk is full, no file can be opened, or memory is
    short."""
    return is_unopened(error) or (isinstance(error, OSError) and error.errno in _FULL)


def not_opened(path: str) -> NotOpened:
    """The error to raise when memory ran out while the file was created or opened."""
    return NotOpened(errno.ENOMEM, os.strerror(errno.ENOMEM), path)


def shortage_text(error: Failure) -> str:
    """Describe the shortage and its remedy."""
    if isinstance(error, MemoryError) or error.errno == errno.ENOMEM:
        return (
            "the broker is out of memory: raise its memory limit (ulimit -v, or that of the "
            "container), or let fewer clients connect"
        )
    if is_unopened(error):
        return (
            f"no more files can be opened ({error.strerror}): raise the limit of open files "
            "(ulimit -n), or let fewer clients connect"
        )
    return f"the disk is full ({error.strerror}): free space or lower retention_hours"


class Spares:
    """Spare descriptors, held open only to be closed when a file needs one. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: list[int] = []
        self._wanted = 0

    def __len__(self) -> int:
        return len(self._held)

    def hold(self, count: int) -> None:
        """Keep this many in reserve from now on, or as many as are available."""
        with self._lock:
            self._wanted = count
        self.refill()

    def refill(self) -> None:
        """Fill the reserve; descriptors that are not free now are added later."""
        while len(self._held) < self._wanted:
            with self._lock:
                try:
                    self._held.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
                except OSError:  # none are free
                    return

    def open(self, path: str, flags: int) -> int:
        """Like os.open, using a spare descriptor if no other is free. Raises NotOpened."""
        return self._with_spares(path, lambda: os.open(path, flags, 0o644))

    def list(self, path: str) -> "list[str]":
        """Like os.listdir, which needs a descriptor too."""
        return self._with_spares(path, lambda: os.listdir(path))

    def map(self, path: str, fd: int, access: int) -> mmap.mmap:
        """Map a whole file. Python's mmap duplicates the descriptor."""
        return self._with_spares(path, lambda: mmap.mmap(fd, 0, prot=access))

    def _with_spares(self, path: str, step: Callable[[], T]) -> T:
        while True:
            try:
                return step()
            except OSError as error:
                if error.errno not in (*_SHORT, errno.ENOMEM):
                    raise
                if error.errno == errno.ENOMEM or not self._give_up_one():
                    raise NotOpened(error.errno, error.strerror, path) from error
            except MemoryError as error:
                raise not_opened(path) from error

    def close(self, fd: int) -> None:
        """Close a file; its descriptor first refills the reserve."""
        os.close(fd)
        self.refill()

    def _give_up_one(self) -> bool:
        with self._lock:
            if not self._held:
                return False
            os.close(self._held.pop())
            return True


PROCESS_SPARES: Final = Spares()
