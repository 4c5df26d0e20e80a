"""Flushing: one fdatasync for everything that waits, then the watermark advances.

`Flusher` does the work without threads; `FlushThread` calls it. A failed sync is final: the kernel
may have dropped the pages, so a second attempt could succeed without writing anything. The flusher
keeps the reason, nothing more is acknowledged, and only a restart finds out what is durable.
"""

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Generator
from dataclasses import replace
from typing import Final, NamedTuple

from tianzhou.base.clock import Clock
from tianzhou.base.kinds import PhysicalOffset
from tianzhou.base.probe import Histogram
from tianzhou.store.checkpoint import Checkpoint, CheckpointFile
from tianzhou.store.commit_log import CommitLog
from tianzhou.store.config import PAGE, StoreConfig
from tianzhou.store.descriptors import is_shortage, is_unopened, shortage_text
from tianzhou.store.errors import DiskFull, StoreClosed, StoreDamaged, StoreFenced
from tianzhou.store.failpoint import failpoint
from tianzhou.store.files import Files

MANY_FILES: Final = 1000
"""From this many files on, a stop first writes all of them back at once: separate syncs would each
make the file system commit its journal. Not used while clients wait for the log, whose sync would
wait as well. A start after a crash does not wait for this many syncs either."""


class Derivations(NamedTuple):
    """Derived files to sync, and the checkpoint that may be written afterwards."""

    files: set[str]
    directories: set[str]
    derived: int
    anchor: int
    queues: int
    units: int
    index_files: int
    index_name: str
    index_count: int
    timestamp: int


class Flusher:
    """Owner: the flush thread while there is one, else the store's writer.

    Invariant: flushed <= log.end, and it decreases only when the log is truncated
    """

    def __init__(self, files: Files, log: CommitLog, checkpoint: CheckpointFile) -> None:
        self._files = files
        self._log = log
        self._checkpoint = checkpoint
        self.flushed = log.min_offset
        self.error: StoreFenced | None = None
        self._owed: Derivations | None = None
        self._begin_wanted = log.min_offset
        self.errands: deque[Callable[[], None]] = deque()
        """Work on files that the writer does not wait for, in order. The log is flushed before
        each, and no checkpoint is written before all are done. The writer only appends."""
        self.thread: FlushThread | None = None
        """The thread that runs this, if there is one."""
        self.times = Histogram()
        """How long syncs of the log took; only those of the flush thread are measured."""

    def restart(self, flushed: int, *, checked: bool) -> None:
        """Restart the watermark here: recovery may have found less than the checkpoint recorded.
        `checked`: later records have checksums."""
        self.flushed = PhysicalOffset(max(min(flushed, self._log.end), self._log.min_offset))
        marked = replace(
            self._checkpoint.current,
            flushed=self.flushed,
            clean=False,
            checked=checked,
            log_begin=self._log.min_offset,
        )
        self._checkpoint.current = marked
        self._begin_wanted = self._log.min_offset

    def flush(self) -> bool:
        """Sync everything appended so far; returns whether the watermark advanced."""
        # Read before the sync: bytes appended meanwhile belong to the next one.
        end, timestamp = self._log.mark
        if end <= self.flushed or self.error is not None:
            return False
        try:
            failpoint("flush.before_sync")
            self._log.sync(self.flushed, end)
            failpoint("flush.after_sync")
            marked = replace(self._checkpoint.current, flushed=end, log_timestamp=timestamp)
            self._checkpoint.write(marked, sync=False)
        except OSError as error:
            self._fence("the commit log", error)
            return False
        self.flushed = end
        return True

    def save(
        self,
        made: Derivations,
        *,
        clean: bool = False,
        between: Callable[[], bool] = lambda: True,
    ) -> bool:
        """Sync derived files, then record that in the checkpoint; returns whether that was done.

        `between` is called after each sync, because the log must not wait for thousands of files;
        it returns whether to continue.
        """
        self.flush()
        if self.error is not None:
            return False
        made = self._with_owed(made)
        if not self.run_errands(between):
            return False
        try:
            if clean and len(made.files) >= MANY_FILES:
                self._files.write_back()
            for path in sorted(made.files):
                _sync(self._files, path)
                if not between():
                    return False
            for path in sorted(made.directories):
                with contextlib.suppress(FileNotFoundError):  # removed since
                    self._files.sync_dir(path)
                if not between():
                    return False
            failpoint("flush.before_checkpoint")
            self._checkpoint.write(self._with(made, clean=clean), sync=True)
            failpoint("flush.after_checkpoint")
        except OSError as error:
            if not is_unopened(error):
                self._fence("queues, index and checkpoint", error)
            return False
        self._owed = None
        return True

    def save_found(self) -> None:
        """Sync the log, and keep the checkpoint that the start found, which is no longer clean."""
        self.flush()
        if self.error is None:
            try:
                self._checkpoint.write(self._checkpoint.current, sync=True)
            except OSError as error:
                self._fence("the checkpoint", error)

    def record_begin(self, offset: PhysicalOffset) -> None:
        """Record in the checkpoint that log files below `offset` are removed. They may be removed
        once its `log_begin` is `offset`."""
        if offset > self._begin_wanted:
            self._begin_wanted = offset
            self.run_later(self._save_begin)

    def _save_begin(self) -> None:
        marked = replace(self._checkpoint.current, log_begin=self._begin_wanted)
        self._checkpoint.write(marked, sync=True)
        failpoint("retention.after_record")

    def run_later(self, errand: Callable[[], None]) -> None:
        """Queue this call for the flush thread; without one it runs now, see `begin_errands`."""
        self.errands.append(errand)
        self.begin_errands()

    def begin_errands(self) -> None:
        """Let the flush thread run the queued errands. Without one they run now; raises StoreFenced
        or DiskFull if they cannot."""
        if self.thread is not None:
            self.thread.wake_for_errands()
        elif not self.run_errands():
            raise self.error or DiskFull(
                f"{len(self.errands)} changes of files wait for room on the disk; free some space"
            )

    def run_errands(self, between: Callable[[], bool] = lambda: True) -> bool:
        """Run the errands of the writer; returns whether all are done. An errand that fails because
        the disk is full, or no file can be opened, stays queued."""
        while self.errands:
            try:
                self.flush()
                if self.error is not None:
                    return False
                self.errands[0]()
            except (OSError, MemoryError, DiskFull, StoreFenced) as error:
                if not isinstance(error, DiskFull) and not _is_short(error):
                    self._fence("deleted files and topics", error)
                return False
            self.errands.popleft()
            if not between():
                return not self.errands
        return True

    @property
    def is_owing(self) -> bool:
        """Whether a checkpoint was deferred because its files could not be opened, or is being
        written."""
        return self._owed is not None

    def _with_owed(self, made: Derivations) -> Derivations:
        """Add the files of an earlier checkpoint that could not be opened: they still have to be
        synced, and this checkpoint does not list them."""
        if self._owed is not None:
            made = made._replace(
                files=made.files | self._owed.files,
                directories=made.directories | self._owed.directories,
            )
        self._owed = made
        return made

    def _with(self, made: Derivations, *, clean: bool) -> Checkpoint:
        return replace(
            self._checkpoint.current,
            queues_timestamp=made.timestamp,
            index_timestamp=made.timestamp,
            derived=made.derived,
            anchor=made.anchor,
            queues=made.queues,
            units=made.units,
            index_files=made.index_files,
            index_name=made.index_name,
            index_count=made.index_count,
            clean=clean,
            exact=True,
        )

    def prepare_next(self) -> None:
        """Create the next log file early. A full disk is reported by the writer."""
        try:
            self._log.prepare_next()
        except OSError as error:
            if not is_shortage(error):
                self._fence("the next commit log file", error)

    def give_up(self) -> None:
        """Stop syncing."""
        if self.error is None:
            self.error = StoreFenced(
                "the flush thread ended because of a bug; its traceback is on standard error; "
                "nothing more is acknowledged, because nothing is synced; restart"
            )

    def _fence(self, what: str, error: Exception) -> None:
        self.error = StoreFenced(
            f"syncing {what} failed: {error}; nothing more is acknowledged, "
            "because the contents of the disk are unknown; check the disk and restart"
        )
        self.error.__cause__ = error


class Fence:
    """Whether a store accepts writes: after an error that is final it never does again, and while
    space or memory is short it refuses them.

    Owner: the store's writer.
    """

    def __init__(self, root: str, flusher: Flusher) -> None:
        self._root = root
        self._flusher = flusher
        self.is_closed = False
        self.refusal = ""
        """Why appends are currently refused; empty if they are not."""

    def raise_if_broken(self) -> None:
        """Raise StoreFenced after an error that is final, and StoreClosed after the end."""
        if self._flusher.error is not None:
            raise self._flusher.error
        if self.is_closed:
            raise StoreClosed(f"the store in {self._root} is closed")

    @contextlib.contextmanager
    def guard(self, what: str, *, final: bool = False) -> Generator[None]:
        """Translate errors. A lack of space or memory only refuses writes, unless the error is
        final."""
        try:
            yield
        except (OSError, MemoryError, StoreDamaged) as error:
            if final or isinstance(error, StoreDamaged) or not is_shortage(error):
                raise self.fenced(what, error) from error
            self.refusal = f"{what} failed in {self._root}: {shortage_text(error)}"
            raise DiskFull(self.refusal) from error

    def fenced(self, what: str, error: Exception) -> StoreFenced:
        """Accept no more writes after this error; returns what to raise."""
        fenced = StoreFenced(
            f"{what} failed: {str(error) or 'out of memory'}; the store accepts no more writes; "
            "check the disk and restart"
        )
        self._flusher.error = fenced
        return fenced


def _sync(files: Files, path: str) -> None:
    """Sync with a separate handle: the writer may close its own at any time, or remove the file."""
    try:
        file = files.open(path)
    except FileNotFoundError:
        return
    try:
        file.sync()
    finally:
        file.close()


def _is_short(error: Exception) -> bool:
    return isinstance(error, OSError | MemoryError) and is_shortage(error)


class FlushSchedule(NamedTuple):
    """When asynchronous flushing is due. Pure."""

    interval_s: float
    pages_min: int
    thorough_s: float

    def is_due(self, waiting_bytes: int, idle_s: float) -> bool:
        if waiting_bytes <= 0:
            return False
        return waiting_bytes >= self.pages_min * PAGE or idle_s >= self.thorough_s


_STOP_S: Final = 30.0
_NO_MEMORY_S: Final = 0.1
"""How long the flush thread waits before it retries work that failed for lack of memory."""


class FlushThread:
    """Runs the flusher in a thread. The writer requests syncs and may wait for them; it never syncs
    itself."""

    def __init__(
        self,
        flusher: Flusher,
        log: CommitLog,
        config: StoreConfig,
        clock: Clock,
        *,
        on_progress: Callable[[], None],
    ) -> None:
        self._flusher = flusher
        self._log = log
        self._schedule = FlushSchedule(
            config.flush_interval_ms / 1000,
            config.flush_pages_min,
            config.flush_max_delay_ms / 1000,
        )
        self._clock = clock
        self.on_progress = on_progress
        self._wake = threading.Condition()
        self._asked = False
        self._saving: Derivations | None = None
        self._has_errands = False
        self._stopping = False
        self._last_flush_s = clock.monotonic_s()
        self._thread = threading.Thread(target=self._run, name="tianzhou-flush", daemon=True)
        self._thread.start()
        flusher.thread = self  # last: a store whose thread did not start has none to stop

    def ask(self) -> None:
        """Request a flush now, combined with all other requests."""
        if self._asked:
            return  # the thread has not read the end of the log yet, and will include this
        with self._wake:
            self._asked = True
            self._wake.notify_all()

    def save(self, made: Derivations) -> None:
        with self._wake:
            assert self._saving is None, "a checkpoint is still being written"
            self._saving = made
            self._wake.notify_all()

    def wake_for_errands(self) -> None:
        """Let the thread run the errands of its flusher."""
        with self._wake:
            self._has_errands = True
            self._wake.notify_all()

    @property
    def is_saving(self) -> bool:
        return self._saving is not None

    def wait(self, offset: PhysicalOffset, timeout_s: float) -> bool:
        """Block until the log is durable up to `offset`, or until an error or the timeout."""
        done = lambda: self._flusher.flushed >= offset or self._flusher.error is not None  # noqa: E731
        with self._wake:
            self._asked = True
            self._wake.notify_all()
            self._wake.wait_for(done, timeout_s)
        return self._flusher.flushed >= offset

    def wait_saved(self, timeout_s: float) -> None:
        """Block until no checkpoint is being saved, or until an error or the timeout."""
        done = lambda: self._saving is None or self._flusher.error is not None  # noqa: E731
        with self._wake:
            self._wake.wait_for(done, timeout_s)

    def stop(self) -> Derivations | None:
        """Stop the thread; returns the checkpoint that it did not finish syncing, if any."""
        with self._wake:
            self._stopping = True
            self._wake.notify_all()
        self._thread.join(_STOP_S)
        assert not self._thread.is_alive(), "the disk does not respond; the flush thread hangs"
        self._flusher.thread = None
        return self._saving

    def _run(self) -> None:
        try:
            self._loop()
        finally:
            if not self._stopping:
                self._flusher.give_up()
                with self._wake:
                    self._wake.notify_all()

    def _loop(self) -> None:
        while not self._stopping:
            try:
                self._round()
            except MemoryError:
                # A failed allocation does not indicate a fault of the disk. The pending work,
                # including the files of a checkpoint, is kept and retried in a later round.
                self._asked = True
                time.sleep(_NO_MEMORY_S)

    def _round(self) -> None:
        with self._wake:
            self._wake.wait_for(self._has_work, self._schedule.interval_s)
            saving, self._has_errands = self._saving, False
        self._flush_if_due()
        if self._flusher.errands:
            self._flusher.run_errands(self._after_errand)
            self._tell()
        if saving is not None:
            if self._flusher.save(saving, between=self._between) or not self._stopping:
                self._saving = None
            self._tell()
        self._flusher.prepare_next()

    def _after_errand(self) -> bool:
        self._tell()
        return self._between()

    def _between(self) -> bool:
        self._flush_if_due()
        return not self._stopping

    def _flush_if_due(self) -> None:
        with self._wake:
            asked, self._asked = self._asked, False
        now_s = self._clock.monotonic_s()
        waiting = self._log.end - self._flusher.flushed
        if asked or self._schedule.is_due(waiting, now_s - self._last_flush_s):
            if self._flusher.flush():
                self._flusher.times.add(self._clock.monotonic_s() - now_s)
            self._last_flush_s = now_s
            self._tell()

    def _has_work(self) -> bool:
        return self._stopping or self._asked or self._has_errands or self._saving is not None

    def _tell(self) -> None:
        with self._wake:
            self._wake.notify_all()
        self.on_progress()
