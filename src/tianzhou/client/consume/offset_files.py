"""Broadcasting consumers: their client id, which survives restarts, and the offsets stored with it.

    <directory>/<client id>/<group>/offsets.json    {"offsetTable":{{"brokerName":"b",...}:12}}
    <directory>/<client id>/<group>/lock            the id of the process that has it

Place and form of the first are the Java client's; a file with strings as keys can be read too. So
the client id must survive restarts (`ip@DEFAULT`), and no two consumers of a group may have the
same one: each holds a lock as long as it lives. A client id that comes from an address which the
machine no longer has is never used again, and its directory is removed some time after its last
use.
"""

import asyncio
import contextlib
import fcntl
import logging
import os
import threading
import time
from collections.abc import Generator, Iterable
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO, Final

from tianzhou.base.errors import UsageError
from tianzhou.client.core.offsets import OffsetTable, RepeatedFailures
from tianzhou.client.options import ClientOptions
from tianzhou.wire.errors import BodyError
from tianzhou.wire.queues import MessageQueue, decode_queue_offsets, encode_queue_offsets

log: Final = logging.getLogger("tianzhou.client")

DIRECTORY: Final = ".rocketmq_offsets"
FILE_NAME: Final = "offsets.json"
LOCK_NAME: Final = "lock"
FILES: Final = frozenset(
    (FILE_NAME, LOCK_NAME, "offsets.new", f"{FILE_NAME}.tmp", f"{FILE_NAME}.bak")
)
"""All that our client and Java's write there. A directory with anything else is left alone."""
TOUCH_S: Final = 600.0
"""How often a running consumer marks its lock as used. Consumers that received nothing write
nothing else, and the age of their directory must not count from the last message."""
LOCK_TRIES: Final = 100
"""Another process may remove the directory, as unused, while this one locks it."""


LASTING_INSTANCE: Final = "DEFAULT"
"""The instance name of Java's broadcasting consumers."""


def lasting_identity(options: ClientOptions) -> ClientOptions:
    """Return the options of a client whose id is the same after a restart."""
    if options.instance_name:
        return options
    return replace(options, instance_name=LASTING_INSTANCE)


class FileOffsets:
    """Offsets in a file, which is small and replaced as a whole.

    Owner: the event loop. `_write` runs in threads.
    """

    def __init__(self, directory: Path, client_id: str, group: str) -> None:
        """Lock and read the file. Raises UsageError if that is not possible."""
        self._path = directory / client_id / group / FILE_NAME
        self._lock = _locked(self._path.with_name(LOCK_NAME), client_id, group)
        self._table = OffsetTable(self._load())
        self._failures = RepeatedFailures()
        self._group = group
        self._writing = threading.Lock()
        self._used_s = time.monotonic()

    def _load(self) -> dict[MessageQueue, int]:
        try:
            return decode_queue_offsets(self._path.read_bytes())
        except FileNotFoundError:
            return {}
        except (OSError, BodyError) as error:
            self.close()
            raise UsageError(
                f"broadcast offsets in {self._path} can't be read: {error}; move the file away to "
                "start over"
            ) from error

    async def read(self, queue: MessageQueue) -> int | None:
        return self._table.get(queue)

    def put(self, queue: MessageQueue, offset: int) -> None:
        self._table.put(queue, offset)

    async def save(self) -> None:
        if time.monotonic() - self._used_s > TOUCH_S:
            self._touch()
        changed = self._table.changed()
        if not changed:
            return
        try:
            await asyncio.to_thread(self._write)
        except OSError as error:
            if self._failures.is_new(self._path, error):
                log.warning(
                    "group %s could not write its broadcast offsets: %s; it tries again with every "
                    "commit, and would receive messages a second time after a restart",
                    self._group,
                    error,
                    extra={"group": self._group},
                )
        else:
            self._table.saved(changed)
            if self._failures.end(self._path):
                log.info("group %s resumed writing %s", self._group, self._path)

    async def save_surely(self, queues: Iterable[MessageQueue]) -> None:
        await self.save()

    def _write(self) -> None:
        """Write the offsets as they are now: an earlier write may still run in its thread, because
        a cancelled task does not end it."""
        with self._writing:
            new = self._path.with_suffix(".new")
            with new.open("wb") as file:
                file.write(encode_queue_offsets(self._table.all()))
                file.flush()
                os.fsync(file.fileno())
            new.replace(self._path)

    def _touch(self) -> None:
        self._used_s = time.monotonic()
        with contextlib.suppress(OSError):
            os.utime(self._lock.fileno())

    def forget(self, queue: MessageQueue) -> None:
        """Keep the offset: the queue may come back, and no broker stores broadcast offsets."""

    def close(self) -> None:
        """Let another consumer have the client id."""
        if not self._lock.closed:
            _held.discard(self._lock)
            self._lock.close()


_held: Final[set[BinaryIO]] = set()
"""The locks of this process."""


def _after_fork() -> None:
    """A child process does not have the consumers of its parent, and must not keep their locks."""
    for lock in _held:
        lock.close()
    _held.clear()


os.register_at_fork(after_in_child=_after_fork)


def _locked(path: Path, client_id: str, group: str) -> BinaryIO:
    """Return the lock of a client id and group. Raises UsageError if another consumer has it."""
    try:
        for _ in range(LOCK_TRIES):
            path.parent.mkdir(parents=True, exist_ok=True)
            with contextlib.suppress(FileNotFoundError):
                lock = _try_lock(path)
                if lock is None:
                    raise UsageError(_in_use(path, client_id, group))
                if _is_at(lock, path):
                    break
                lock.close()
        else:
            raise UsageError(f"{path} was removed {LOCK_TRIES} times while it was being locked")
        lock.truncate(0)
        lock.write(b"%d\n" % os.getpid())
        lock.flush()
    except OSError as error:
        raise UsageError(
            f"broadcast offsets of group {group} cannot be stored in {path.parent}: {error}; pass "
            "a directory that this process can write: ConsumerOptions(offsets_directory=...)"
        ) from error
    _held.add(lock)
    return lock


def _is_at(lock: BinaryIO, path: Path) -> bool:
    """Whether the locked file is still there: its directory may have been removed meanwhile."""
    try:
        return os.path.samestat(path.stat(), os.fstat(lock.fileno()))
    except FileNotFoundError:
        return False


def _in_use(path: Path, client_id: str, group: str) -> str:
    number = path.read_text(errors="replace").strip()
    process = f"process {number}" if number.isdecimal() else "another process"
    return (
        f"a consumer of group {group} with client id {client_id} runs on this machine already, in "
        f"{process}; broadcasting consumers keep their offsets by client id, so give this one a "
        "name of its own that stays the same: ClientOptions(instance_name='...')"
    )


def _try_lock(path: Path) -> BinaryIO | None:
    """Return the locked file, or None if another one has the lock. Raises OSError."""
    file = path.open("a+b")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        return None
    except OSError:
        file.close()
        raise
    return file


# Directories of client ids that are no longer used


def remove_unused(directory: Path, before_s: float) -> None:
    """Remove the directories of client ids that no process holds, and in which nothing has changed
    since `before_s`, in seconds since 1970."""
    for place in _folders(directory):
        if "@" not in place.name:
            continue
        # Something else may have changed there meanwhile; the next consumer looks again.
        with contextlib.suppress(OSError):
            if _remove_unused(place, before_s):
                log.info("removed %s, which no consumer has used for long", place)


def _folders(directory: Path) -> list[Path]:
    with contextlib.suppress(OSError):
        return [place for place in directory.iterdir() if place.is_dir() and not place.is_symlink()]
    return []


def _remove_unused(client: Path, before_s: float) -> bool:
    """Remove a client's directory, if it is unused. Raises OSError."""
    groups = list(client.iterdir())
    files = [file for group in groups for file in group.iterdir()]  # raises if a group is a file
    if any(file.name not in FILES for file in files):
        return False
    if any(place.lstat().st_mtime >= before_s for place in (client, *groups, *files)):
        return False
    with _locks(groups) as are_free:
        # A consumer may have come and gone since they were looked at.
        is_unused = are_free and all(file.lstat().st_mtime < before_s for file in files)
        if is_unused:
            for file in [*files, *(group / LOCK_NAME for group in groups)]:
                file.unlink(missing_ok=True)
            for group in groups:
                group.rmdir()
            client.rmdir()
    return is_unused


@contextlib.contextmanager
def _locks(groups: Iterable[Path]) -> Generator[bool]:
    """Hold the locks of these groups; yields whether all of them were free."""
    held: list[BinaryIO] = []
    try:
        for group in groups:
            lock = _try_lock(group / LOCK_NAME)
            if lock is None:
                yield False
                return
            held.append(lock)
        yield True
    finally:
        for lock in held:
            lock.close()
