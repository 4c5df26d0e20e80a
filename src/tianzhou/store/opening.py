"""Opening a store: acquire its directory and create its parts."""

from tianzhou.base.clock import Clock
from tianzhou.store import layout, preflight, recovery
from tianzhou.store.checkpoint import CheckpointFile
from tianzhou.store.commit_log import CommitLog
from tianzhou.store.config import StoreConfig
from tianzhou.store.derivation import Derivation
from tianzhou.store.dispatch import Dispatcher
from tianzhou.store.files import File, Files, make_lasting_dirs
from tianzhou.store.key_index import KeyIndex
from tianzhou.store.layout import Paths
from tianzhou.store.preflight import LateBegin, Shortfall
from tianzhou.store.queues import Queues


def take(
    files: Files,
    paths: Paths,
    config: StoreConfig,
    *,
    locks: list[File],
    now_ms: int,
    lenient: bool,
) -> Shortfall | None:
    """Lock the directory after checking that it may be opened. Returns what its log lacks. The
    locks are added to `locks`, that of the store directory first, even if this raises."""
    layout.check_distinct(paths)
    # A refused directory stays unchanged: not even a lock file is created there.
    if files.exists(paths.lock):
        locks.append(layout.take_lock(files, paths.root))
    shortfall = preflight.examine(files, paths, config, now_ms)
    if shortfall is not None and not (lenient or shortfall.may_open(config)):
        raise preflight.refuse(paths, shortfall)
    make_lasting_dirs(files, paths.root)
    if not locks:
        locks.append(layout.take_lock(files, paths.root))
    layout.make_directories(files, paths)
    if layout.is_outside(paths.commit_log, paths.root):
        locks.append(files.lock_dir(paths.commit_log))
    return shortfall


def find_late_begin(
    files: Files, paths: Paths, config: StoreConfig, *, lock: File
) -> LateBegin | None:
    """Whether the first files of the log are missing. A Java broker that had the directory since
    may have removed them as expired, without a trace in the checkpoint."""
    if layout.was_used_by_another(lock):
        return None
    return preflight.find_late_begin(files, paths, config)


def make_parts(
    files: Files, paths: Paths, config: StoreConfig, clock: Clock, *, checkpoint: CheckpointFile
) -> recovery.Parts:
    log = CommitLog(
        files,
        paths.commit_log,
        file_bytes=config.commit_log_file_bytes,
        reserve_bytes=config.commit_log_preallocate_bytes,
    )
    queues = Queues(files, paths.consume_queue, config.consume_queue_file_units)
    queues.remove_set_aside()
    index = None
    if config.index_enabled:
        index = KeyIndex(
            files, paths.index, clock, slots=config.index_slots, entries=config.index_entries
        )
    dispatcher = Dispatcher(log, queues, index, config.delay_levels_ms)
    dispatcher.derivation = Derivation(files, paths.tables, config.delay_levels_ms)
    return recovery.Parts(files, paths, log, queues, index, dispatcher, checkpoint)
