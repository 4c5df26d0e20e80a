"""Opening files when descriptors or memory are short.

A process that has no free descriptor can't open the next file of the log, or the file that it is
about to sync. Nothing is wrong with the disk then: what was to be done is refused or put off, and
works again when connections close. A store that owns a directory also keeps a few descriptors in
reserve, so that others can take the last ones without stopping it.
"""

import errno
import mmap
import os
import threading
from collections.abc import Callable
from typing import Final, TypeVar

T = TypeVar("T")

SPARES: Final = 16
"""More than the store opens at a time besides what it keeps open: a file, its mapping and its
directory, in each of two threads."""
_SHORT: Final = (errno.EMFILE, errno.ENFILE)
_FULL: Final = (errno.ENOSPC, errno.EDQUOT)


class NotOpened(OSError):
    """A file could not be opened, created or mapped for want of descriptors or memory. Nothing
    happened to its bytes."""


Failure = OSError | MemoryError
"""What a step that uses files and memory may raise. The interpreter allocates a buffer before it
calls the system, so a MemoryError never says anything about the disk."""


def is_unopened(error: Failure) -> bool:
    """Whether this says that no file could be opened, and nothing about the disk."""
    return isinstance(error, MemoryError | NotOpened) or error.errno in _SHORT


def is_shortage(error: Failure) -> bool:
    """Whether trying again makes sense later: the disk is full, no file can be opened, or memory
    is short."""
    return is_unopened(error) or (isinstance(error, OSError) and error.errno in _FULL)


def not_opened(path: str) -> NotOpened:
    """The error to raise when memory ran out while the file was created or opened."""
    return NotOpened(errno.ENOMEM, os.strerror(errno.ENOMEM), path)


def shortage_text(error: Failure) -> str:
    """What is short, and what to do about it."""
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
    """Descriptors that are open only to be closed when a file needs one. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: list[int] = []
        self._wanted = 0

    def __len__(self) -> int:
        return len(self._held)

    def hold(self, count: int) -> None:
        """Keep so many in reserve from now on, or as many as there are."""
        with self._lock:
            self._wanted = count
        self.refill()

    def refill(self) -> None:
        """Take descriptors up to what is wanted; those that are not free now come later."""
        while len(self._held) < self._wanted:
            with self._lock:
                try:
                    self._held.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
                except OSError:  # they are short already
                    return

    def open(self, path: str, flags: int) -> int:
        """As os.open, with a spare descriptor if there is no other. Raises NotOpened."""
        return self._with_spares(path, lambda: os.open(path, flags, 0o644))

    def list(self, path: str) -> "list[str]":
        """As os.listdir, which needs a descriptor too."""
        return self._with_spares(path, lambda: os.listdir(path))

    def map(self, path: str, fd: int, access: int) -> mmap.mmap:
        """Map a whole file. A mapping of Python has a descriptor of its own."""
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
        """Close a file; what becomes free goes back to the reserve first."""
        os.close(fd)
        self.refill()

    def _give_up_one(self) -> bool:
        with self._lock:
            if not self._held:
                return False
            os.close(self._held.pop())
            return True


PROCESS_SPARES: Final = Spares()
