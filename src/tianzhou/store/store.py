"""MessageStore: appending, dispatch, reading and watermarks, and the order between them.

One writer owns it. All methods are called by that owner, except where a docstring says otherwise;
with `start` a thread syncs in the background, without it the owner calls `flush` itself.

The three protocols of `protocols.py` are its sections: reading queues, appending, and the log of a
replica. The log of a replica accepts no messages, because the master assigns their queue offsets;
`begin_writing` and `stop_writing` change that.

This is one file because appending, dispatch and the watermarks must be read together: each step
relies on the order of the others.
"""

from collections.abc import Callable, Collection, Iterable
from itertools import islice
from typing import Final, NamedTuple

from tianzhou.base.clock import Clock
from tianzhou.base.errors import UsageError
from tianzhou.base.kinds import Bytes, PhysicalOffset, QueueKey, QueueOffset
from tianzhou.base.probe import Histogram
from tianzhou.record.chunk import RecordChunk
from tianzhou.store import layout, opening, read, recovery, replica_log, search
from tianzhou.store.commit_log import Appended, NextOffsets
from tianzhou.store.config import FlushMode, StoreConfig
from tianzhou.store.consume_queue import ConsumeQueue
from tianzhou.store.derivation import Derivation
from tianzhou.store.derive import Malformed, QueueUnits
from tianzhou.store.descriptors import NotOpened, is_shortage, shortage_text
from tianzhou.store.dispatch import FRESH_BYTES_MAX, Dispatcher, FreshRecords
from tianzhou.store.errors import DiskFull, FlushTimeout, RawRefused, StoreDamaged, StoreFenced
from tianzhou.store.failpoint import failpoint
from tianzhou.store.files import File, Files, Usage
from tianzhou.store.flush import Fence, FlushThread
from tianzhou.store.incidents import Incidents
from tianzhou.store.key_index import QUERY_COUNT_MAX, KeyIndex
from tianzhou.store.layout import Paths
from tianzhou.store.read import ReadLimit, ReadResult, ReadStatus
from tianzhou.store.retention import Retention, usages_of_parts
from tianzhou.store.scan import NOWHERE
from tianzhou.store.search import Boundary
from tianzhou.store.tables import Tables
from tianzhou.store.upkeep import Upkeep

DAMAGED_MAX: Final = 10_000
"""Damaged records that are remembered, so that each is reported only once."""


class Watermarks(NamedTuple):
    """Invariant: minimum <= dispatched <= appended;  flushed <= appended"""

    minimum: PhysicalOffset
    dispatched: PhysicalOffset
    flushed: PhysicalOffset
    appended: PhysicalOffset


class DamageReports:
    """Records that are not delivered, each reported once. Owner: the store's writer."""

    def __init__(self, known: Iterable[int]) -> None:
        """`known`: offsets of records that recovery left out and reported."""
        self.offsets: set[int] = set(islice(known, DAMAGED_MAX))
        self.on_damage: Callable[[int], None] = lambda _offset: None
        """Called once for each record that was found damaged when it was read."""
        self.on_malformed: Callable[[Malformed], None] = lambda _record: None
        """Called once for each intact record that belongs to no queue."""

    def read(self, offsets: Iterable[int]) -> None:
        """Report damaged records that a read left out."""
        for offset in offsets:
            self._report(offset, self.on_damage)

    def skipped(self, dispatcher: Dispatcher) -> None:
        """Report the records that dispatch had to skip."""
        self.read(damage.start for damage in dispatcher.take_damage())
        for record in dispatcher.take_malformed():
            self._report(record.offset, lambda _, record=record: self.on_malformed(record))

    def _report(self, offset: int, report: Callable[[int], None]) -> None:
        if offset not in self.offsets and len(self.offsets) < DAMAGED_MAX:
            self.offsets.add(offset)
            report(offset)


class MessageStore:
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
        self.config = config
        self._clock = clock
        locks: list[File] = []
        try:
            start = opening.Start(progress, rebuild, visible, is_repaired)
            paths = layout.paths_of(root, config)
            opened = opening.open_parts(files, paths, config, clock, locks=locks, start=start)
            self._opened = opened
            self._begin(opened)
        except BaseException as error:
            for lock in locks:
                lock.close()
            if isinstance(error, OSError | MemoryError):
                kind = DiskFull if is_shortage(error) else StoreFenced
                why = str(error) or shortage_text(error)
                raise kind(f"opening {root} failed: {why}; check the disk and restart") from error
            raise

    def _begin(self, opened: opening.Opened) -> None:
        """Accept messages, unless some are to stay invisible, and leave a mark in the directory."""
        parts = opened.parts
        self.log, self.queues, self.dispatcher = parts.log, parts.queues, parts.dispatcher
        self.damage = DamageReports(place.start for place in opened.recovered.malformed)
        self._flusher = opened.flusher
        self._fence = Fence(parts.paths.root, opened.flusher)
        self._upkeep = Upkeep(
            parts, self.config, self._clock, flusher=opened.flusher, fence=self._fence
        )
        self.removals = self._upkeep.removals
        """Deletions of topics, and how many are durable."""
        self._next_offsets: NextOffsets | None = None
        """None on a replica."""
        if self.dispatcher.position == self.log.end:
            self.begin_writing()
        failpoint("recovery.before_abort")
        layout.write_abort(parts.files, parts.paths.abort)
        self._upkeep.begin(fits=opened.found.exact and not opened.recovered.rebuilt)
        self._fence.raise_if_broken()

    # Parts

    @property
    def files(self) -> Files:
        """The disk that the store is on."""
        return self._opened.parts.files

    @property
    def paths(self) -> Paths:
        """Where the parts of the store are on it."""
        return self._opened.parts.paths

    @property
    def root(self) -> str:
        """The directory of the store."""
        return self._opened.parts.paths.root

    @property
    def tables(self) -> Tables:
        """Tables of the broker, which are stored beside the log."""
        return self._opened.tables

    @property
    def incidents(self) -> Incidents:
        """Losses that an operator has not acknowledged."""
        return self._opened.incidents

    @property
    def recovered(self) -> recovery.Report:
        """What the start found and did."""
        return self._opened.recovered

    @property
    def was_clean(self) -> bool:
        """Whether the last owner of the directory closed it."""
        return self._opened.was_clean

    @property
    def index(self) -> KeyIndex | None:
        """None if it is switched off."""
        return self._opened.parts.key_index

    @property
    def retention(self) -> Retention:
        """Decides which log files are deleted."""
        return self._upkeep.retention

    @property
    def derivation(self) -> Derivation:
        """Inputs of queue derivation besides the log."""
        assert self.dispatcher.derivation is not None
        return self.dispatcher.derivation

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
        bound = self.dispatcher.visible_bound
        return limit if bound is None else min(limit, bound())

    def limit_visible(self, bound: Callable[[], PhysicalOffset] | None) -> None:
        """Keep messages behind this position invisible, whatever is flushed; None: no limit."""
        self.dispatcher.visible_bound = bound

    # State

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

    @property
    def refusal(self) -> str:
        """Why appends are currently refused; empty if they are not."""
        return self._fence.refusal

    @property
    def usage(self) -> Usage:
        """Usage of the disk with the log."""
        return self.files.usage(self.paths.commit_log)

    def usages_of_parts(self) -> dict[str, Usage]:
        """Usage of the disk that each part is on, by `log`, `queues`, `index` and `tables`."""
        return usages_of_parts(self.files, self.paths)

    # Appending

    def append(self, chunk: RecordChunk) -> Appended:
        """Write records to the log. After DiskFull, StoreFenced or StoreClosed nothing of the chunk
        counts as stored. After a MemoryError it may be stored."""
        flusher, fence = self._flusher, self._fence
        if flusher.error is not None or fence.is_closed:
            fence.raise_if_broken()
        if fence.refusal:
            raise DiskFull(fence.refusal)
        assert chunk.has_crc or not self.config.record_crc, "recovery would take these for torn"
        next_offsets = self._next_offsets
        assert next_offsets is not None, "the log of a replica accepts no messages"
        try:
            offsets, ends = next_offsets.assign(chunk.queues)
            if chunk.rooms:
                next_offsets.assign_light(chunk, ends)
            spans = self.log.append(chunk, queue_offsets=offsets, now_ms=self._clock.now_ms())
        except OSError as error:
            raise fence.fenced("writing the commit log", error) from error
        except MemoryError as error:
            raise DiskFull(f"nothing was stored: {shortage_text(error)}") from error
        next_offsets.update(ends)
        end = self.log.end
        if len(spans) == 1:
            fresh = self.dispatcher.fresh
            if not fresh or end - fresh[0].offset <= FRESH_BYTES_MAX:
                fresh.append(FreshRecords(spans[0].offset, chunk.data, chunk.starts))
        if flusher.thread is not None and self.config.flush_mode is FlushMode.SYNC:
            flusher.thread.ask()
        return Appended(end, offsets, spans, chunk.starts)

    def assigned_end(self, key: QueueKey) -> int:
        """Return the queue offset of the next message; earlier ones may not be visible yet."""
        assigned = self._next_offsets.get(key, 0) if self._next_offsets is not None else 0
        return max(assigned, self.max_offset(key))

    @property
    def light_queue_count(self) -> int:
        """Light queues that exist, or will as soon as their first message is visible."""
        return self._next_offsets.light_count if self._next_offsets is not None else 0

    # Visibility

    def dispatch(self) -> list[QueueUnits]:
        """Run one slice of dispatch and return what became visible. Call it after appends and on
        progress of the flusher, until it returns nothing."""
        if self._fence.is_closed:
            return []
        dispatcher = self.dispatcher
        try:
            while True:
                before = dispatcher.position
                runs = dispatcher.run(self._visible_limit())
                if dispatcher.damage or dispatcher.malformed:
                    self.damage.skipped(dispatcher)
                # A slice of half messages only makes nothing visible; continue.
                if runs or dispatcher.position == before:
                    return runs
        except (OSError, MemoryError, StoreDamaged) as error:
            if isinstance(error, StoreDamaged) or not is_shortage(error):
                raise self._fence.fenced("deriving queues and index", error) from error
            why = shortage_text(error)
            self._fence.refusal = f"cannot write queues and index in {self.root}: {why}"
            return []

    @property
    def has_undispatched(self) -> bool:
        """Whether a message that may be visible is not in its queue yet."""
        return self.dispatcher.position < self._visible_limit()

    def dispatch_all(self) -> None:
        while self.dispatch():
            pass

    # Reading

    def read(
        self,
        key: QueueKey,
        start: QueueOffset,
        limit: ReadLimit = ReadLimit(),  # noqa: B008 - frozen
        *,
        tags_codes: Collection[int] | None = None,
    ) -> ReadResult:
        """Read stored records of a queue from an offset on. The caller releases the result."""
        queue = self.queues.get(key)
        if queue is None:
            zero = QueueOffset(0)
            status = ReadStatus.NO_MATCHED_LOGIC_QUEUE
            return ReadResult(status, next_offset=zero, min_offset=zero, max_offset=zero)
        try:
            result = read.read(self.log, queue, start, limit, tags_codes=tags_codes)
        except NotOpened as error:
            raise DiskFull(f"the queue cannot be read now; {shortage_text(error)}") from error
        if result.damaged:
            self.damage.read(result.damaged)
        return result

    def min_offset(self, key: QueueKey) -> QueueOffset:
        """Return the oldest offset that can be read; 0 for an unknown queue."""
        queue = self.queues.get(key)
        return queue.min_offset if queue else QueueOffset(0)

    def max_offset(self, key: QueueKey) -> QueueOffset:
        """Return the queue offset of the next visible message."""
        queue = self.queues.get(key)
        return queue.end if queue else QueueOffset(0)

    def offset_by_time(
        self, key: QueueKey, timestamp: int, boundary: Boundary = Boundary.LOWER
    ) -> QueueOffset:
        """Return the offset of the message that was stored at a timestamp, or next to it."""
        queue = self.queues.get(key)
        if queue is None:
            return QueueOffset(0)
        return search.offset_by_time(self.log, queue, timestamp, boundary)

    def find(
        self,
        topic: str,
        key: str,
        *,
        begin_ms: int = 0,
        end_ms: int = 1 << 62,
        count_max: int = QUERY_COUNT_MAX,
    ) -> ReadResult:
        """Find messages with this key or unique id, newest first; one span each. The caller
        releases the result."""
        index = self.index
        if index is None:
            raise UsageError("index_enabled is off, so messages cannot be found by key")
        result = search.find(
            self.log,
            index,
            topic=topic,
            key=key,
            begin_ms=begin_ms,
            end_ms=end_ms,
            count_max=count_max,
        )
        self.damage.read(result.damaged)
        return result

    def record_at(self, offset: int) -> ReadResult:
        """Read the record at this log offset, as in an offset id. The caller releases the
        result."""
        result = search.record_at(self.log, offset, limit=self.dispatcher.position)
        self.damage.read(result.damaged)
        return result

    @property
    def damaged(self) -> set[int]:
        """Records that were found damaged or malformed, at the start or since."""
        return self.damage.offsets

    def report_damage(
        self,
        *,
        on_damage: Callable[[int], None],
        on_malformed: Callable[[Malformed], None],
        on_index_damage: Callable[[str, str], None],
    ) -> None:
        """Call these for damage that reading finds: in the log, in its structure, in the index."""
        self.damage.on_damage, self.damage.on_malformed = on_damage, on_malformed
        if self.index is not None:
            self.index.on_damage = on_index_damage

    # The log of a replica

    def append_raw(self, offset: PhysicalOffset, data: Bytes) -> PhysicalOffset:
        """Append bytes of another log unchanged, including blank records and ends of files; returns
        the new end.

        Only complete and intact records are appended. If the new end is before the end of the
        bytes, the rest is an incomplete record: pass it again, with the bytes that follow. An empty
        log starts at the offset of the first bytes, if that is the start of a file. `dispatch`
        updates queues and index, as far as `limit_visible` allows; queue offsets are those in the
        records. Raises RawRefused, DiskFull, StoreFenced or StoreClosed.
        """
        self._fence.raise_if_broken()
        log = self.log
        if offset != log.end:
            if log.end != log.min_offset or offset % log.file_bytes:
                raise RawRefused(f"the log ends at {log.end}; bytes for {offset} do not fit")
            self.begin_again(offset)
        found = replica_log.whole(memoryview(data), offset=offset, file_bytes=log.file_bytes)
        self._next_offsets = None
        if not found.is_checked:
            self._opened.parts.checkpoint_file.admit_unchecked()
        self.append_between(memoryview(data)[: found.size], timestamp=found.timestamp)
        return log.end

    def append_between(self, data: Bytes, *, timestamp: int) -> None:
        """Append bytes that are in no queue, between messages: a blank record, or records of
        replication itself. Raises DiskFull, StoreFenced or StoreClosed."""
        self._fence.raise_if_broken()
        try:
            self.log.append_raw(data, timestamp=timestamp)
        except OSError as error:
            raise self._fence.fenced("writing the commit log", error) from error
        if self.config.flush_mode is FlushMode.SYNC:
            self.ask_flush()

    def truncate(self, offset: PhysicalOffset) -> None:
        """Truncate log, queues, index and checkpoint at `offset`, durably. It must be the end of a
        record or of a file; the caller ensures that nothing after it was confirmed. Raises
        RawRefused without changing anything."""
        parts = self._opened.parts
        self._rewind("truncating the log", lambda: replica_log.rewind(parts, offset))

    def begin_again(self, offset: PhysicalOffset) -> None:
        """Discard everything and continue with an empty log that starts at `offset`, a multiple of
        the file size: the other log no longer has what lies between."""
        parts = self._opened.parts
        self._rewind("restarting with an empty log", lambda: replica_log.begin_again(parts, offset))

    def _rewind(self, what: str, step: Callable[[], None]) -> None:
        self._fence.raise_if_broken()
        on_progress = self._stop_thread()
        try:
            with self._fence.guard(what, final=True):
                step()
            self.derivation.cut(self.log.end)
            self._next_offsets = None
            current = self._opened.parts.checkpoint
            self._flusher.restart(current.flushed, checked=current.checked)
            self._flusher.save(self._upkeep.work.whole())
        finally:
            if on_progress is not None:
                self.start(on_progress)

    def begin_writing(self) -> None:
        """Accept messages from now on: queue offsets continue where the queues end. The log
        must be dispatched to its end; see `dispatch_all` and `limit_visible`. Raises DiskFull if
        there was no room for that."""
        if self.dispatcher.position < self.log.end and self.refusal:
            raise DiskFull(self.refusal)
        assert self.dispatcher.position == self.log.end, (
            f"the log ends at {self.log.end}, and is dispatched up to {self.dispatcher.position}"
        )
        self._next_offsets = NextOffsets({queue.key: int(queue.end) for queue in self.queues})

    def stop_writing(self) -> None:
        """Reject messages until `begin_writing`."""
        self._next_offsets = None

    def when_expired(self, call: Callable[[], None]) -> None:
        """Call this when log files were deleted, before anything else happens."""
        self._upkeep.on_expired = call

    def when_light_queue_expires(self, call: Callable[[str], None]) -> None:
        """Remove light queues whose messages have all expired, and call this with their names
        before: the next message there gets offset 0, so offsets of consumers must be forgotten."""

        def may_remove(queue: ConsumeQueue) -> bool:
            if self.assigned_end(queue.key) > queue.end:
                return False  # a message is in the log already, and not visible yet
            if self._next_offsets is not None:
                self._next_offsets.forget([queue.key])
            call(queue.key.topic)
            return True

        self._upkeep.work.may_remove = may_remove

    # Durability

    def start(self, on_progress: Callable[[], None] = lambda: None) -> None:
        """Sync in a thread from now on. `on_progress` is called from that thread."""
        self._fence.raise_if_broken()
        assert self._flusher.thread is None, "the flush thread runs already"
        FlushThread(self._flusher, self.log, self.config, self._clock, on_progress=on_progress)

    def _stop_thread(self) -> Callable[[], None] | None:
        """Stop syncing in the background; returns the callback for the next thread."""
        thread = self._flusher.thread
        if thread is None:
            return None
        unsaved = thread.stop()
        if unsaved is not None:
            self.queues.cache.mark_dirty(unsaved.files, unsaved.directories)
        return thread.on_progress

    def ask_flush(self) -> None:
        """Make the flush thread sync what was appended, whatever the mode."""
        if self._flusher.thread is not None:
            self._flusher.thread.ask()

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
        if self._flusher.thread is None:
            with self._fence.guard("syncing the commit log"):
                self._flusher.flush()
        else:
            self._flusher.thread.wait(offset, timeout_s)
        self._fence.raise_if_broken()
        return self._flusher.flushed >= offset

    def checkpoint(self, *, whole: bool = False) -> None:
        """Sync queues and index, then write a checkpoint: now, or in slices by `advance`."""
        self._upkeep.checkpoint(whole=whole)

    # Housekeeping

    def adopt(self, config: StoreConfig) -> None:
        """Apply new values of settings that may change while a store is open."""
        self.config = self.retention.config = config

    def advance(self) -> None:
        """Continue a checkpoint, or the clean-up after expired files, by one slice. Call it about
        ten times a second; it does nothing if neither was started."""
        self._upkeep.advance()

    def maintain(self) -> None:
        """Run periodic work: checkpoints, retention, a check of the disk. Cheap when nothing is
        due; call it about every second."""
        self._upkeep.maintain()

    def clean(self, *, by_hand: bool = False, wait: bool = False) -> int:
        """Remove expired log files if it is time, and what was derived from them; return how many
        were removed. Without `wait`, `maintain` removes those that the checkpoint does not cover
        yet."""
        return self._upkeep.clean(by_hand=by_hand, wait=wait)

    def remove_oldest(self, files: int) -> int:
        """Remove this many of the oldest log files, which `retention.cleaning` counted; as `clean`
        does, in all other respects."""
        return self._upkeep.remove_oldest(files)

    def delete_topic(self, topic: str, *, before: PhysicalOffset | None = None) -> int:
        """Remove the queues of a topic. Its records stay in the log until that expires.

        With `before`, a queue whose newest message is at or after that offset is kept: the topic
        was deleted there and created again since. With a flush thread this does not wait for the
        disk; `removals` tells when the deletion is durable."""
        self._fence.raise_if_broken()
        at = self.log.end if before is None else before
        with self._fence.guard(f"removing topic {topic}", final=True):
            removed = self.removals.delete(topic, at, before=before)
            self.incidents.forget_topic(topic)
        self._forget_offsets(topic)
        self._flusher.begin_errands()
        self.checkpoint()
        return removed

    def _forget_offsets(self, topic: str) -> None:
        """Restart the queues of a deleted topic at 0, unless they exist."""
        if self._next_offsets is not None:
            kept = {queue.key for queue in self.queues.of_topic(topic)}
            gone = [key for key in self._next_offsets if key.topic == topic and key not in kept]
            self._next_offsets.forget(gone)

    # Ending

    def close(self) -> None:
        """Flush everything and leave the directory clean."""
        if self._fence.is_closed:
            return
        self._stop_thread()
        try:
            if self._flusher.error is None:
                with self._fence.guard("closing"):
                    failpoint("close.before_flush")
                    self._close_cleanly()
                self._fence.raise_if_broken()
        finally:
            self._release()

    def _close_cleanly(self) -> None:
        self._flusher.flush()
        self.dispatch_all()
        is_saved = self._flusher.save(self._upkeep.work.whole(), clean=not self.refusal)
        if is_saved:
            self.queues.remove_set_aside()
        failpoint("close.before_abort")
        if is_saved and not self.refusal:
            layout.remove_abort(self.files, self.paths.abort)

    def abandon(self) -> None:
        """Release the directory as a crash would: nothing is flushed, nothing marked clean."""
        self._stop_thread()
        self._release()

    def _release(self) -> None:
        self._fence.is_closed = True
        opened = self._opened
        checkpoint = opened.parts.checkpoint_file
        for part in (self.log, self.queues, self.index, checkpoint, *opened.locks):
            if part is not None:
                part.close()
