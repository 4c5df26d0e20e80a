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

_NAME: Final = b"tianzhou"


def take_lock(files: Files, root: str) -> File:
    """Own the directory for the life of the process; StoreLocked if somebody else does."""
    return files.lock(f"{root}/{LOCK}")


def was_used_by_another(lock: File) -> bool:
    """Whether Java ran here after us. It writes the word `lock` over our name when it starts; if
    it was killed soon after, that may be its only trace besides the records."""
    return lock.pread(0, len(_NAME)) != _NAME


def sign_lock(lock: File) -> None:
    lock.pwrite(0, _NAME)
    lock.sync()


def write_abort(files: Files, root: str) -> None:
    """Present while a store is open: found at start, it means that the last stop was none."""
    text = str(os.getpid()).encode()
    abort = files.create(f"{root}/{ABORT}", 0)
    abort.pwrite(0, text)
    abort.sync()
    abort.close()
    files.sync_dir(root)


def remove_abort(files: Files, root: str) -> None:
    if files.exists(f"{root}/{ABORT}"):
        files.remove(f"{root}/{ABORT}")
        files.sync_dir(root)
