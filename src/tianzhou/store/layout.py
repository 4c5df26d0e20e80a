"""Names in a store directory, and the two marker files. The same as RocketMQ's."""

import os
from typing import Final

from tianzhou.store.files import File, Files

COMMIT_LOG: Final = "commitlog"
CONSUME_QUEUE: Final = "consumequeue"
INDEX: Final = "index"
CONFIG: Final = "config"
CHECKPOINT: Final = "checkpoint"
ABORT: Final = "abort"
LOCK: Final = "lock"

_SIGNATURE: Final = b" tianzhou"


def take_lock(files: Files, root: str) -> File:
    """Own the directory for the life of the process; StoreLocked if somebody else does."""
    lock = files.lock(f"{root}/{LOCK}")
    try:
        lock.pwrite(0, b"lock")
    except OSError:
        lock.close()
        raise
    return lock


def write_abort(files: Files, root: str) -> None:
    """Present while a store is open: found at start, it means that the last stop was none."""
    text = str(os.getpid()).encode() + _SIGNATURE
    abort = files.create(f"{root}/{ABORT}", 0)
    abort.pwrite(0, text)
    abort.sync()
    abort.close()
    files.sync_dir(root)


def was_used_by_another(files: Files, root: str, *, clean: bool) -> bool:
    """Whether Java ran here after us; `clean` is what our checkpoint says. A Java broker that was
    killed may have left no sign of itself but this marker, and records without a checksum."""
    path = f"{root}/{ABORT}"
    if not files.exists(path):
        return not clean
    abort = files.open(path)
    try:
        return not abort.pread(0, abort.size()).endswith(_SIGNATURE)
    finally:
        abort.close()


def remove_abort(files: Files, root: str) -> None:
    if files.exists(f"{root}/{ABORT}"):
        files.remove(f"{root}/{ABORT}")
        files.sync_dir(root)
