"""Names in a store directory, and the two marker files. The same as RocketMQ's.

The log, the queues, the index and the tables may each have a separate path. `paths.json` in the
store directory records paths outside of it, for tools that know only the directory.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import Final

import msgspec

from tianzhou.base.errors import UsageError
from tianzhou.store.config import StoreConfig
from tianzhou.store.errors import StoreDamaged
from tianzhou.store.files import (
    File,
    Files,
    ReadOnlyFiles,
    creating,
    make_lasting_dirs,
    parent_of,
)

COMMIT_LOG: Final = "commitlog"
CONSUME_QUEUE: Final = "consumequeue"
INDEX: Final = "index"
CONFIG: Final = "config"
CHECKPOINT: Final = "checkpoint"
ABORT: Final = "abort"
LOCK: Final = "lock"
QUARANTINE: Final = "quarantine"
PATHS: Final = "paths.json"
MARKER: Final = ".tianzhou-store"
"""A file in directories of queues, index and tables that lie outside of the store directory: the
identity of the store, so that an empty mount point, or the directory of another store, is not taken
for them. Not in the log: older Java brokers accept only log files there."""

_NAME: Final = b"tianzhou"


@dataclass(frozen=True, slots=True, kw_only=True)
class Paths:
    """Paths of the parts of a store. Directories, except `checkpoint` and `abort`."""

    root: str
    commit_log: str
    consume_queue: str
    index: str
    tables: str
    checkpoint: str
    abort: str

    @property
    def directories(self) -> tuple[str, str, str, str]:
        """The directories that may each have a separate path."""
        return self.commit_log, self.consume_queue, self.index, self.tables

    @property
    def markable(self) -> tuple[str, str, str]:
        """Those that have a marker if they have a separate path."""
        return self.consume_queue, self.index, self.tables

    @property
    def quarantine(self) -> str:
        """Bytes of the log that recovery quarantined."""
        return f"{self.root}/{QUARANTINE}"

    @property
    def lock(self) -> str:
        return f"{self.root}/{LOCK}"


class Recorded(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """`paths.json`: settings that were not at their defaults when the store was last open."""

    commit_log_path: str = ""
    consume_queue_path: str = ""
    index_path: str = ""
    tables_path: str = ""
    checkpoint_path: str = ""
    abort_path: str = ""
    store: str = ""
    """The identity of the store, as in `MARKER`: when it first had such a path, and its place."""

    @property
    def settings(self) -> dict[str, str]:
        return {name: getattr(self, name) for name in PATH_SETTINGS}


PATH_SETTINGS: Final = tuple(name for name in Recorded.__struct_fields__ if name != "store")


def paths_of(root: str, config: StoreConfig) -> Paths:
    return Paths(
        root=root,
        commit_log=config.commit_log_path or f"{root}/{COMMIT_LOG}",
        consume_queue=config.consume_queue_path or f"{root}/{CONSUME_QUEUE}",
        index=config.index_path or f"{root}/{INDEX}",
        tables=config.tables_path or f"{root}/{CONFIG}",
        checkpoint=config.checkpoint_path or f"{root}/{CHECKPOINT}",
        abort=config.abort_path or f"{root}/{ABORT}",
    )


def with_recorded_paths(files: Files, root: str, config: StoreConfig) -> StoreConfig:
    """These settings, with the paths that a broker used when it last opened the directory."""
    return replace(config, **recorded_paths(files, root).settings)


def paths_in_use(root: str) -> Paths:
    """The paths of a store's parts when a broker last opened the directory, for readers that open
    no store."""
    return paths_of(root, with_recorded_paths(ReadOnlyFiles(), root, StoreConfig()))


def recorded_paths(files: Files, root: str) -> Recorded:
    path = f"{root}/{PATHS}"
    if not files.exists(path):
        return Recorded()
    file = files.open(path)
    try:
        return msgspec.json.decode(file.pread(0, file.size()), type=Recorded)
    except msgspec.DecodeError as error:
        raise StoreDamaged(path, f"cannot be read: {error}; repair or remove it") from error
    finally:
        file.close()


def record_paths(files: Files, paths: Paths, now_ms: int) -> None:
    """Save the paths that differ from their defaults, for tools that know only the directory, and
    mark the directories outside of it."""
    usual = paths_of(paths.root, StoreConfig())
    places = {
        f"{one.name}_path": getattr(paths, one.name)
        for one in fields(Paths)
        if getattr(paths, one.name) != getattr(usual, one.name)
    }
    known = recorded_paths(files, paths.root)
    marked = [path for path in paths.markable if is_outside(path, paths.root)]
    identity = known.store
    if marked and not identity:
        found = filter(None, (marker_of(files, path) for path in marked))
        identity = next(found, f"{now_ms} {paths.root}")
    # The markers come first: a path that is recorded must have one.
    for path in marked:
        if not marker_of(files, path):
            _write(files, f"{path}/{MARKER}", identity.encode())
    wanted = Recorded(**places, store=identity)
    if wanted != known:
        data = msgspec.json.format(msgspec.json.encode(wanted), indent=2)
        _write(files, f"{paths.root}/{PATHS}", data)


def marker_of(files: Files, directory: str) -> str:
    """The identity of the store that this directory belongs to; empty if it has no marker."""
    path = f"{directory}/{MARKER}"
    if not files.exists(path):
        return ""
    file = files.open(path)
    try:
        return file.pread(0, file.size()).decode("utf-8", "replace")
    finally:
        file.close()


def _write(files: Files, path: str, data: bytes) -> None:
    with creating(files, f"{path}.tmp", 0) as file:
        file.pwrite(0, data)
        file.sync()
        file.close()
    files.rename(f"{path}.tmp", path)
    files.sync_dir(parent_of(path))


def check_distinct(paths: Paths) -> None:
    """Refuse nested directories: files of one would be mistaken for the other's."""
    directories = {
        "commit_log_path": paths.commit_log,
        "consume_queue_path": paths.consume_queue,
        "index_path": paths.index,
        "tables_path": paths.tables,
    }
    for name, path in directories.items():
        for other, inner in (*directories.items(), ("the store directory", paths.root)):
            if name != other and f"{inner}/".startswith(f"{path}/"):
                raise UsageError(
                    f"{name} = {path!r} contains {other} ({inner}); use separate directories"
                )


def is_outside(path: str, root: str) -> bool:
    return not path.startswith(f"{root}/")


def make_directories(files: Files, paths: Paths) -> None:
    """Create directories outside of the store directory, durably."""
    for path in (*paths.directories, parent_of(paths.checkpoint), parent_of(paths.abort)):
        if is_outside(path, paths.root) and path != paths.root:
            make_lasting_dirs(files, path)


def take_lock(files: Files, root: str) -> File:
    """Lock the directory for the life of the process. Raises StoreLocked if another process has
    it."""
    return files.lock(f"{root}/{LOCK}")


def take_locks_outside(files: Files, paths: Paths) -> Iterator[File]:
    """Lock the directories outside of the store directory, and the store directories that they lie
    in: another broker may have one of them at its usual place. Raises StoreLocked."""
    owners: set[str] = set()
    for path in paths.directories:
        if is_outside(path, paths.root):
            yield files.lock_dir(path)
            owners.add(parent_of(path))
    for owner in sorted(owners):
        if files.exists(f"{owner}/{LOCK}") and owner != paths.root:
            yield take_lock(files, owner)


def was_used_by_another(lock: File) -> bool:
    """Whether a Java broker used the directory since. It overwrites the contents of the lock file
    with `lock` when it starts; if it was killed soon after, that may be its only trace besides the
    records."""
    return lock.pread(0, len(_NAME)) != _NAME


def sign_lock(lock: File) -> None:
    lock.pwrite(0, _NAME)
    lock.sync()


def write_abort(files: Files, path: str) -> None:
    """Create the marker of an open store: found at start, it means that the last stop was not
    clean."""
    text = str(os.getpid()).encode()
    abort = files.create(path, 0)  # never removed on an error: its absence means a clean stop
    try:
        abort.pwrite(0, text)
        abort.sync()
    finally:
        abort.close()
    files.sync_dir(parent_of(path))


def remove_abort(files: Files, path: str) -> None:
    if files.exists(path):
        files.remove(path)
        files.sync_dir(parent_of(path))
