"""MessageStore: appending, dispatch, reading and watermarks, and the order between them.

One writer owns it. All methods are called by that owner, except where a docstring says otherwise;
with `start` a thread syncs in the background, without it the owner calls `flush` itself.

This is one file because appending, dispatch and the watermarks must be read together: each step
relies on the order of the others.
"""

import contextlib
from collections.abc import Callable, Generator, Sequence
from typing import Final, NamedTuple

from tianzhou.base.clock import Clock
from tianzhou.base.kinds import PhysicalOffset, QueueKey
from tianzhou.base.probe import Histogram
from tianzhou.record.chunk import RecordChunk
from tianzhou.store import layout, opening, recovery
from tianzhou.store.checkpoint import CheckpointFile
from tianzhou.store.commit_log import Appended
from tianzhou.store.config import FlushMode, StoreConfig
from tianzhou.store.derive import QueueUnits
from tianzhou.store.descriptors import is_shortage, shortage_text
from tianzhou.store.dispatch import FRESH_BYTES_MAX, FreshRecords
from tianzhou.store.errors import DiskFull, FlushTimeout, StoreClosed, StoreDamaged, StoreFenced
from tianzhou.store.failpoint import failpoint
from tianzhou.store.files import File, Files, list_visible
from tianzhou.store.flush import MANY_FILES, Derivations, Flusher, FlushThread
from tianzhou.store.incidents import Incidents
from tianzhou.store.preflight import Shortfall
from tianzhou.store.queue_work import QueueWork
from tianzhou.store.removal import Removals
from tianzhou.store.replica_log import ReplicaStore
from tianzhou.store.retention import Pressure, Retention, pressure_of
from tianzhou.store.scan import NOWHERE
from tianzhou.store.start_report import StartReport
from tianzhou.store.tables import Tables

CHECKPOINT_BYTES: Final = 16 * 1024 * 1024
"""Bytes of log after a checkpoint that make a new one due: a restart has to scan them."""


class Watermarks(NamedTuple):
    """Invariant: minimum <= dispatched <= appended;  flushed <= appended"""

    minimum: PhysicalOffset
    dispatched: PhysicalOffset
    flushed: PhysicalOffset
    appended: PhysicalOffset


class MessageStore(ReplicaStore):
    """A directory of messages. Opening recovers it; `close` leaves it clean."""

    def __init__(
        self,
        files: Files,
        root: str,
        config: StoreConfig,
        clock: Clock,
        *,
        progress: recovery.Progress = recovery.no_progress,
        rebuild: bool = False,
        visible: PhysicalOffset = NOWHERE,
        is_repaired: bool = False,
    ) -> None:
        """`visible`: recovery makes nothing beyond this offset newly visible, for owners that learn
        only later, from peers, which part of the log to keep. `is_repaired`: peers have what this
        log lacks, so a log that ends too early is opened anyway.

        Raises StoreRefused, before anything is changed, if the log is missing or ends before what
        the checkpoint vouches for; `StoreConfig.accept_loss_at` overrides the latter."""
        super().__init__()
        self.files = files
        self.root = root
        self.paths = layout.paths_of(root, config)
        self.config = config
        self._clock = clock
        self._locks: list[File] = []
        try:
            shortfall = opening.take(
                files,
                self.paths,
                config,
                locks=self._locks,
                now_ms=clock.now_ms(),
                lenient=is_repaired,
            )
            self._open(progress, shortfall, rebuild=rebuild, visible=visible, repaired=is_repaired)
        except BaseException as error:
            for lock in self._locks:
                lock.close()
            if isinstance(error, OSError | MemoryError):
                kind = DiskFull if is_shortage(error) else StoreFenced
                why = str(error) or shortage_text(error)
                raise kind(f"opening {root} failed: {why}; check the disk and restart") from error
            raise
        self._thread = None
        self._closed = False
        self._refusal = ""
        self._last_save_s = self._last_clean_s = clock.monotonic_s()

    def _open(
        self,
        progress: recovery.Progress,
        shortfall: Shortfall | None,
        *,
        rebuild: bool,
        visible: PhysicalOffset,
        repaired: bool,
    ) -> None:
        files, paths = self.files, self.paths
        self.visible_bound: Callable[[], PhysicalOffset] | None = None
        """Nothing beyond this offset becomes visible, even if it is flushed. Set by replication."""
        self.on_expired: Callable[[], None] = lambda: None
        """Called when log files were deleted, before anything else happens."""
        self.incidents = Incidents(files, paths.tables)
        report = StartReport(self.incidents, self._clock.now_ms(), is_repaired=repaired)
        if shortfall is not None:
            report.log_ended_early(shortfall)
        late = opening.find_late_begin(files, paths, self.config, lock=self._locks[0])
        if late is not None:
            report.log_begins_late(late)
        layout.record_paths(files, paths)
        self.was_clean = not files.exists(paths.abort)
        self._checkpoint = CheckpointFile(files, paths.checkpoint)
        if layout.was_used_by_another(self._locks[0]):
            self._checkpoint.admit_another()
            layout.sign_lock(self._locks[0])
        found = self._checkpoint.current
        parts = opening.make_parts(
            files, paths, self.config, self._clock, checkpoint=self._checkpoint
        )
        self._parts = parts
        self.log, self.queues, self.index = parts.log, parts.queues, parts.key_index
        self.dispatcher = parts.dispatcher
        self._work = QueueWork(self.queues, self.index, self.dispatcher, self._clock)
        self.recovered = recovery.recover(
            self._parts, progress=progress, rebuild=rebuild, visible=visible
        )
        self.recovered.shortfall = shortfall
        recovery.keep_ends(self.queues, self.incidents)
        self._was_recovered(place.start for place in self.recovered.malformed)
        if found.exact:
            recovery.rewrite_unsynced(self.log, PhysicalOffset(found.flushed))
        self._flusher = Flusher(files, self.log, self._checkpoint)
        flushed = found.flushed if found.exact else self.log.min_offset
        self._flusher.restart(flushed, checked=self.config.record_crc)
        self.removals = Removals(files, self.queues, self.derivation, self._flusher)
        self.retention = Retention(self.log, self.config)
        self.tables = Tables(files, paths.tables)
        self.tables.run_later(self._flusher.run_later)
        beyond = self.tables.beyond(self.max_offset)
        self.recovered.clamped = len(beyond)
        set_aside = list_visible(files, paths.quarantine)
        report.recovered(self.recovered, found, set_aside=set_aside, beyond=beyond)
        self.tables.set_back(beyond)
        self._next_offsets = None
        if self.dispatcher.position == self.log.end:
            self.begin_writing()
        failpoint("recovery.before_abort")
        layout.write_abort(files, paths.abort)
        fits = found.exact and not self.recovered.rebuilt
        # The existing checkpoint is still valid for another start. A new one that needs thousands
        # of syncs is written while the store serves.
        self._is_checkpoint_owed = fits and len(self.queues.census().unwritten) >= MANY_FILES
        if self._is_checkpoint_owed:
            self._flusher.save_found()
        else:
            self._flusher.save(self._derivations(), clean=False)
        self._raise_if_broken()

    # Watermarks

    @property
    def watermarks(self) -> Watermarks:
        return Watermarks(
            self.log.min_offset, self.dispatcher.position, self._flusher.flushed, self.log.end
        )

    @property
    def flushed(self) -> PhysicalOffset:
        """Everything below this offset is durable. May be read from any thread."""
        return self._flusher.flushed

    @property
    def flush_times(self) -> Histogram:
        """How long syncs of the log took. May be read from any thread."""
        return self._flusher.times

    def _visible_limit(self) -> PhysicalOffset:
        """Return up to where messages may be visible: once they are as durable as configured.
        Otherwise a crash could lose a message that a consumer already acknowledged, and assign its
        offset to another."""
        limit = self._flusher.flushed if self.config.flush_mode is FlushMode.SYNC else self.log.end
        return limit if self.visible_bound is None else min(limit, self.visible_bound())

    def limit_visible(self, bound: Callable[[], PhysicalOffset] | None) -> None:
        """Keep messages behind this position invisible, whatever is flushed; None: no limit."""
        self.visible_bound = bound

    # Writing

    def append(self, chunk: RecordChunk) -> Appended:
        """Write records to the log. After DiskFull, StoreFenced or StoreClosed nothing of the chunk
        counts as stored. After a MemoryError it may be stored."""
        self._raise_if_broken()
        if self._refusal:
            raise DiskFull(self._refusal)
        assert chunk.has_crc or not self.config.record_crc, "recovery would take these for torn"
        try:
            offsets, ends = self._assign(chunk.queues)
            spans = self.log.append(chunk, queue_offsets=offsets, now_ms=self._clock.now_ms())
        except OSError as error:
            raise self._fence("writing the commit log", error) from error
        except MemoryError as error:
            raise DiskFull(f"nothing was stored: {shortage_text(error)}") from error
        assert self._next_offsets is not None
        self._next_offsets.update(ends)
        if len(spans) == 1:
            fresh, end = self.dispatcher.fresh, self.log.end
            if not fresh or end - fresh[0].offset <= FRESH_BYTES_MAX:
                fresh.append(FreshRecords(spans[0].offset, chunk.data, chunk.starts))
        if self._thread is not None and self.config.flush_mode is FlushMode.SYNC:
            self._thread.ask()
        return Appended(self.log.end, offsets, spans, chunk.starts)

    def _assign(self, queues: list[QueueKey | None]) -> tuple[Sequence[int], dict[QueueKey, int]]:
        """Return the queue offsets for a chunk, and the new ends of its queues. They take effect
        only when the chunk is in the log."""
        assert self._next_offsets is not None, "the log of a replica accepts no messages"
        get = self._next_offsets.get
        first = queues[0] if queues else None
        if first is not None and queues.count(first) == len(queues):
            offset = get(first)
            if offset is None:  # add the row now, while a MemoryError is harmless
                offset = self._next_offsets[first] = 0
            return range(offset, offset + len(queues)), {first: offset + len(queues)}
        ends: dict[QueueKey, int] = {}
        offsets: list[int] = []
        for queue in queues:
            if queue is None:
                offsets.append(0)
                continue
            offset = ends.get(queue)
            if offset is None and (offset := get(queue)) is None:
                offset = self._next_offsets[queue] = 0
            ends[queue] = offset + 1
            offsets.append(offset)
        return offsets, ends

    # Visibility

    def dispatch(self) -> list[QueueUnits]:
        """Run one slice of dispatch and return what became visible. Call it after appends and on
        progress of the flusher, until it returns nothing."""
        if self._closed:
            return []
        dispatcher = self.dispatcher
        try:
            while True:
                before = dispatcher.position
                runs = dispatcher.run(self._visible_limit())
                if dispatcher.damage or dispatcher.malformed:
                    self._note_damage()
                # A slice of half messages only makes nothing visible; continue.
                if runs or dispatcher.position == before:
                    return runs
        except (OSError, MemoryError, StoreDamaged) as error:
            if isinstance(error, StoreDamaged) or not is_shortage(error):
                raise self._fence("deriving queues and index", error) from error
            self._refuse(f"cannot write queues and index in {self.root}: {shortage_text(error)}")
            return []

    @property
    def has_undispatched(self) -> bool:
        """Whether a message that may be visible is not in its queue yet."""
        return self.dispatcher.position < self._visible_limit()

    def dispatch_all(self) -> None:
        while self.dispatch():
            pass

    # Durability

    def start(self, on_progress: Callable[[], None] = lambda: None) -> None:
        """Sync in a thread from now on. `on_progress` is called from that thread."""
        self._raise_if_broken()
        assert self._thread is None, "the flush thread runs already"
        self._thread = FlushThread(
            self._flusher, self.log, self.config, self._clock, on_progress=on_progress
        )

    def ask_flush(self) -> None:
        """Make the flush thread sync what was appended, whatever the mode."""
        if self._thread is not None:
            self._thread.ask()

    def flush(self) -> None:
        """Sync everything appended now, in the caller's thread or the flush thread."""
        timeout_ms = self.config.sync_flush_timeout_ms
        if not self.wait_flushed(self.log.end, timeout_ms / 1000):
            raise FlushTimeout(
                f"the disk of {self.root} did not sync within {timeout_ms} ms; "
                f"{self.log.end - self._flusher.flushed} bytes wait"
            )

    def wait_flushed(self, offset: PhysicalOffset, timeout_s: float) -> bool:
        """Block until the log is durable up to this offset; False after the timeout."""
        if self._thread is None:
            with self._guard("syncing the commit log"):
                self._flusher.flush()
        else:
            self._thread.wait(offset, timeout_s)
        self._raise_if_broken()
        return self._flusher.flushed >= offset

    def checkpoint(self, *, whole: bool = False) -> None:
        """Sync queues and index, then write a checkpoint: now, or in slices by `advance`."""
        self._raise_if_broken()
        if self._thread is not None and self._thread.is_saving:
            # Dirty files stay dirty until the flush thread can sync them.
            self._is_checkpoint_owed = True
            return
        self._work.begin()
        self._advance(whole=whole or not self._in_slices)

    @property
    def _in_slices(self) -> bool:
        """Whether to run in slices; an owner without a flush thread waits for the disk anyway."""
        return self._thread is not None

    def advance(self) -> None:
        """Continue a checkpoint, or the clean-up after expired files, by one slice. Call it about
        ten times a second; it does nothing if neither was started."""
        if self._work.is_unfinished and not (self._thread is not None and self._thread.is_saving):
            self._raise_if_broken()
            self._advance(whole=False)

    def _advance(self, *, whole: bool) -> None:
        with self._guard("writing queues"):
            made = self._work.whole() if whole else self._work.step()
            if made is None:
                return
            if self._thread is None:
                self._flusher.save(made)
            else:
                self._thread.save(made)
        self._is_checkpoint_owed = False
        self._last_save_s = self._clock.monotonic_s()
        self._raise_if_broken()

    def _derivations(self) -> Derivations:
        return self._work.whole()

    # Housekeeping

    def adopt(self, config: StoreConfig) -> None:
        """Apply new values of settings that may change while a store is open."""
        self.config = self.retention.config = config

    def maintain(self) -> None:
        """Run periodic work: checkpoints, retention, a check of the disk. Cheap when nothing is
        due; call it about every second."""
        self._raise_if_broken()
        now_s, config = self._clock.monotonic_s(), self.config
        if now_s - self._last_clean_s >= config.clean_interval_ms / 1000:
            self._last_clean_s = now_s
            self.clean()
        elif self._checkpoint.current.log_begin > self.log.min_offset:
            self._remove_expired()
        idle_s = now_s - self._last_save_s
        behind = self.dispatcher.position - self._checkpoint.current.derived
        busy = self._thread is not None and self._thread.is_saving
        is_owed = self._is_checkpoint_owed or self._flusher.is_owing
        if is_owed and not busy:
            self.checkpoint()
        elif self._work.is_unfinished:
            self.advance()
        elif behind > 0 and not busy and idle_s >= config.queue_flush_interval_ms / 1000:
            thorough = idle_s >= config.queue_flush_thorough_ms / 1000
            if behind >= CHECKPOINT_BYTES or thorough:
                self.checkpoint()

    def clean(self, *, by_hand: bool = False, wait: bool = False) -> int:
        """Remove expired log files if it is time, and what was derived from them; return how many
        were removed. Without `wait`, `maintain` removes those that the checkpoint does not cover
        yet."""
        self._raise_if_broken()
        fullest, usage = max(self.usages().items(), key=lambda found: found[1].used_ratio)
        pressure = pressure_of(usage.used_ratio, self.config)
        now_ms = self._clock.now_ms()
        due = self.retention.due(pressure, now_ms=now_ms, by_hand=by_hand)
        if due:
            # The next start takes a log that starts after the recorded offset for damaged. And only
            # the queues record the offsets of expired messages: they must be durable first, or a
            # crash would let the queues restart at 0.
            self._flusher.record_begin(self.retention.begin_after(due))
            self._wait_saved(wait)
            self.checkpoint(whole=wait)
            self._wait_saved(wait)
        removed = self._remove_expired(whole=wait)
        self._refusal = ""
        if pressure is Pressure.REFUSE:
            self._refuse(
                f"the disk of {fullest} is {usage.used_ratio:.0%} full, more than "
                f"{self.config.disk_refuse_ratio:.0%}; writes are rejected until space is freed"
            )
        return removed

    def _wait_saved(self, wait: bool) -> None:
        if wait and self._thread is not None:
            self._thread.wait_saved(self.config.sync_flush_timeout_ms / 1000)

    def _remove_expired(self, *, whole: bool = False) -> int:
        current = self._checkpoint.current
        settled = min(self._flusher.flushed, current.derived, current.log_begin)
        with self._guard("removing expired files", final=True):
            removed = self.retention.remove(below=settled)
            if removed:
                self.queues.log_min = self.log.min_offset
                self._work.expire()
                self.on_expired()
            if self.index is not None:
                self.index.remove_expired(self.log.min_offset)
        if removed:
            self.checkpoint(whole=whole)
        return removed

    @property
    def is_writing(self) -> bool:
        """Whether messages may be appended: the log does not follow another one."""
        return self._next_offsets is not None

    @property
    def is_broken(self) -> bool:
        """A write or sync failed; nothing will be acknowledged until a restart."""
        return self._flusher.error is not None

    @property
    def broken_reason(self) -> str:
        """Why the store is fenced; empty if it is not."""
        return str(self._flusher.error or "")

    def delete_topic(self, topic: str, *, before: PhysicalOffset | None = None) -> int:
        """Remove the queues of a topic. Its records stay in the log until that expires.

        With `before`, a queue whose newest message is at or after that offset is kept: the topic
        was deleted there and created again since. With a flush thread this does not wait for the
        disk; `removals` tells when the deletion is durable."""
        self._raise_if_broken()
        at = self.log.end if before is None else before
        with self._guard(f"removing topic {topic}", final=True):
            removed = self.removals.delete(topic, at, before=before)
            self.incidents.forget_topic(topic)
        self._forget_offsets(topic)
        self._flusher.begin_errands()
        self.checkpoint()
        return removed

    # Ending

    def close(self) -> None:
        """Flush everything and leave the directory clean."""
        if self._closed:
            return
        self._stop_thread()
        try:
            if self._flusher.error is None:
                with self._guard("closing"):
                    failpoint("close.before_flush")
                    self._close_cleanly()
                self._raise_if_broken()
        finally:
            self._release()

    def _close_cleanly(self) -> None:
        self._flusher.flush()
        self.dispatch_all()
        is_saved = self._flusher.save(self._derivations(), clean=not self._refusal)
        if is_saved:
            self.queues.remove_set_aside()
        failpoint("close.before_abort")
        if is_saved and not self._refusal:
            layout.remove_abort(self.files, self.paths.abort)

    def abandon(self) -> None:
        """Release the directory as a crash would: nothing is flushed, nothing marked clean."""
        self._stop_thread()
        self._release()

    def _release(self) -> None:
        self._closed = True
        for part in (self.log, self.queues, self.index, self._checkpoint, *self._locks):
            if part is not None:
                part.close()

    def _raise_if_broken(self) -> None:
        if self._flusher.error is not None:
            raise self._flusher.error
        if getattr(self, "_closed", False):
            raise StoreClosed(f"the store in {self.root} is closed")

    @contextlib.contextmanager
    def _guard(self, what: str, *, final: bool = False) -> Generator[None]:
        """Translate errors. A lack of space or memory only refuses writes, unless the error is
        final."""
        try:
            yield
        except (OSError, MemoryError, StoreDamaged) as error:
            if final or isinstance(error, StoreDamaged) or not is_shortage(error):
                raise self._fence(what, error) from error
            self._refuse(f"{what} failed in {self.root}: {shortage_text(error)}")
            raise DiskFull(self._refusal) from error

    def _fence(self, what: str, error: Exception) -> StoreFenced:
        fenced = StoreFenced(
            f"{what} failed: {str(error) or 'out of memory'}; the store accepts no more writes; "
            "check the disk and restart"
        )
        self._flusher.error = fenced
        return fenced
