"""Periodic work of a store: checkpoints, retention, and the removal of deleted topics.

Two tasks have to visit every queue. A checkpoint writes out the units that queues hold in memory.
Retention raises the minimum of every queue and removes the files below it. A broker with 50,000
queues would be blocked for seconds; here one call visits as many queues as fit into a slice, so
that no slice stops the event loop for long.

A checkpoint that takes several slices describes the state at the first: the position of dispatch,
the number of queues and units, and the state of the index. Later units may be in the files when it
is saved; a start truncates them, as it does after every checkpoint.
"""

import contextlib
from collections.abc import Callable
from functools import partial
from typing import Final

from tianzhou.base.clock import Clock
from tianzhou.base.kinds import PhysicalOffset
from tianzhou.store.config import StoreConfig
from tianzhou.store.consume_queue import ConsumeQueue, Queues
from tianzhou.store.derivation import Derivation
from tianzhou.store.dispatch import Dispatcher
from tianzhou.store.errors import StoreDamaged
from tianzhou.store.files import Files
from tianzhou.store.flush import MANY_FILES, Derivations, Fence, Flusher
from tianzhou.store.key_index import KeyIndex
from tianzhou.store.recovery import Parts
from tianzhou.store.retention import Pressure, Retention, pressure_of, usages

CHECKPOINT_BYTES: Final = 16 * 1024 * 1024
"""Bytes of log after a checkpoint that make a new one due: a restart has to scan them."""
SLICE_QUEUES: Final = 256
SLICE_S: Final = 0.01
"""A slice ends at either bound. A queue takes about 20 µs, or 120 µs if its file is new."""
_ROUND: Final = 16
"""Queues between two checks of the clock."""


class QueueWork:
    """Owner: the store's writer."""

    def __init__(
        self, queues: Queues, index: KeyIndex | None, dispatcher: Dispatcher, clock: Clock
    ) -> None:
        self._queues = queues
        self._index = index
        self._dispatcher = dispatcher
        self._clock = clock
        self._expiring: list[ConsumeQueue] = []
        """Queues that may have files below their minimum."""
        self._tails: list[ConsumeQueue] = []
        """Queues whose units must be in the files before the checkpoint is saved."""
        self._begun: Derivations | None = None
        self.slice_queues = SLICE_QUEUES
        self.may_remove: Callable[[ConsumeQueue], bool] = lambda _queue: False
        """Whether a light queue whose messages have all expired may be removed. The next message
        in it gets offset 0, so its owner must forget every offset in it first."""

    @property
    def is_unfinished(self) -> bool:
        """Whether `step` has something to do."""
        return bool(self._expiring) or self._begun is not None

    def expire(self) -> None:
        """Handle removed files of the log. A checkpoint must follow, because it counts the
        units."""
        self._expiring = list(self._queues)

    def begin(self) -> None:
        """Start a checkpoint of the current queues; one that was started before is void."""
        index, dispatcher = self._index, self._dispatcher
        newest = index.files[-1] if index is not None and index.files else None
        census = self._queues.census()
        self._tails = census.unwritten
        if index is not None:
            index.begin_write()
        self._begun = Derivations(
            set(),
            set(),
            dispatcher.position,
            dispatcher.anchor,
            census.used,
            census.units,
            len(index.files) if index is not None else 0,
            newest.name if newest else "",
            newest.count if newest else 1,
            dispatcher.last_timestamp,
        )

    def step(self) -> Derivations | None:
        """Run one slice; returns what to sync and save once the checkpoint is ready."""
        try:
            self._slice()
            if self._expiring or self._tails or self._begun is None:
                return None
            if self._index is not None and not self._index.write_some():
                return None
        except (OSError, StoreDamaged):
            # It is now unknown which units are in the files; the next checkpoint starts with all
            # queues.
            self._tails, self._begun = [], None
            raise
        return self._finish(self._begun)

    def _slice(self) -> None:
        deadline_s, left = self._clock.monotonic_s() + SLICE_S, self.slice_queues
        while (self._expiring or self._tails) and left > 0:
            self._visit(min(_ROUND, left))
            left -= _ROUND
            if self._clock.monotonic_s() >= deadline_s:
                break

    def whole(self) -> Derivations:
        """Run a whole checkpoint at once, however long it takes."""
        while self._expiring:
            self._visit(len(self._expiring))
        self.begin()
        assert self._begun is not None
        self._queues.write_out()
        if self._index is not None:
            self._index.write_out()
        return self._finish(self._begun)

    def _visit(self, count: int) -> None:
        """Expire files first: a checkpoint that was started before would count their units."""
        queues = self._expiring or self._tails
        for queue in filter(self._queues.has, queues[-count:]):
            if queues is self._expiring:
                queue.raise_minimum(self._queues.log_min)
                if queue.is_light and queue.is_expired and self.may_remove(queue):
                    self._queues.remove(queue)
                else:
                    queue.remove_expired()
            else:
                queue.write_out()
        del queues[-count:]
        if queues is self._expiring and not queues:
            self.begin()

    def _finish(self, begun: Derivations) -> Derivations:
        files, directories = self._queues.cache.take_dirty()
        if self._index is not None and (taken := self._index.take_dirty()):
            files |= taken
            directories.add(self._index.directory)
        self._tails, self._begun = [], None
        return begun._replace(files=files, directories=directories)


class Removals:
    """Deletions of topics, which do not wait for the disk.

    The writer only drops the queues. The thread that syncs the log does the rest, as errands:
    record the deletion in `config/derivation.json`, rename the files of the queues into a directory
    that listings skip, sync the renames and remove the files. A deletion is durable once it is
    recorded; the next start removes files that a crash leaves behind. A topic that is created again
    in the meantime makes the writer rename its old files itself.

    Owner: the store's writer. The errands run wherever the flusher runs.
    """

    def __init__(
        self, files: Files, queues: Queues, derivation: Derivation, flusher: Flusher
    ) -> None:
        self._files = files
        self._queues = queues
        self._derivation = derivation
        self._flusher = flusher
        self.begun = 0
        """Deletions so far."""
        self.durable = 0
        """How many of them are durable. May be read from any thread."""

    def delete(self, topic: str, at: PhysicalOffset, *, before: PhysicalOffset | None) -> int:
        """Delete the records of a topic below `at`, and its queues or those that end below
        `before`; returns how many queues."""
        self._derivation.delete_topic(topic, at)
        count = self._queues.detach(topic, before=before)
        self.begun += 1
        errands = self._flusher.errands
        errands.append(partial(self._record, topic))
        errands.append(partial(self._queues.remove_aside, topic))
        return count

    def _record(self, topic: str) -> None:
        self._derivation.save()
        self._queues.move_aside(topic)
        directory = self._queues.directory
        for path in (f"{directory}/{topic}", directory):
            with contextlib.suppress(FileNotFoundError):  # the topic's own is usually gone
                self._files.sync_dir(path)
        self.durable += 1


class Upkeep:
    """Decides when a checkpoint or the removal of old files is due, and does it.

    Owner: the store's writer.
    """

    def __init__(
        self, parts: Parts, config: StoreConfig, clock: Clock, *, flusher: Flusher, fence: Fence
    ) -> None:
        self._parts = parts
        self._clock = clock
        self._flusher = flusher
        self._fence = fence
        self.work = QueueWork(parts.queues, parts.key_index, parts.dispatcher, clock)
        self.retention = Retention(parts.log, config)
        derivation = parts.dispatcher.derivation
        assert derivation is not None
        self.removals = Removals(parts.files, parts.queues, derivation, flusher)
        self.on_expired: Callable[[], None] = lambda: None
        """Called when log files were deleted, before anything else happens."""
        self.is_sliced = False
        """Whether to run in slices without a flush thread too; the owner of such a store waits for
        the disk anyway."""
        self._is_checkpoint_owed = False
        self._last_save_s = self._last_clean_s = clock.monotonic_s()

    def begin(self, *, fits: bool) -> None:
        """Write the first checkpoint after a start. `fits`: the existing one is still valid for
        another start; a new one that needs thousands of syncs is then written while the store
        serves."""
        self._is_checkpoint_owed = fits and len(self._parts.queues.census().unwritten) >= MANY_FILES
        if self._is_checkpoint_owed:
            self._flusher.save_found()
        else:
            self._flusher.save(self.work.whole(), clean=False)

    @property
    def _is_saving(self) -> bool:
        """Whether the flush thread is writing a checkpoint."""
        thread = self._flusher.thread
        return thread is not None and thread.is_saving

    def checkpoint(self, *, whole: bool = False) -> None:
        """Sync queues and index, then write a checkpoint: now, or in slices by `advance`."""
        self._fence.raise_if_broken()
        if self._is_saving:
            # Dirty files stay dirty until the flush thread can sync them.
            self._is_checkpoint_owed = True
            return
        self.work.begin()
        in_slices = self.is_sliced or self._flusher.thread is not None
        self._advance(whole=whole or not in_slices)

    def advance(self) -> None:
        """Continue a checkpoint, or the clean-up after expired files, by one slice."""
        if self.work.is_unfinished and not self._is_saving:
            self._fence.raise_if_broken()
            self._advance(whole=False)

    def _advance(self, *, whole: bool) -> None:
        with self._fence.guard("writing queues"):
            made = self.work.whole() if whole else self.work.step()
            if made is None:
                return
            if self._flusher.thread is None:
                self._flusher.save(made)
            else:
                self._flusher.thread.save(made)
        self._is_checkpoint_owed = False
        self._last_save_s = self._clock.monotonic_s()
        self._fence.raise_if_broken()

    def maintain(self) -> None:
        """Run what is due: checkpoints, retention, a check of the disk."""
        self._fence.raise_if_broken()
        now_s, config = self._clock.monotonic_s(), self.retention.config
        if now_s - self._last_clean_s >= config.clean_interval_ms / 1000:
            self._last_clean_s = now_s
            self.clean()
        elif self._parts.checkpoint.log_begin > self._parts.log.min_offset:
            self._remove_expired()
        idle_s = now_s - self._last_save_s
        behind = self._parts.dispatcher.position - self._parts.checkpoint.derived
        busy = self._is_saving
        is_owed = self._is_checkpoint_owed or self._flusher.is_owing
        if is_owed and not busy:
            self.checkpoint()
        elif self.work.is_unfinished:
            self.advance()
        elif behind > 0 and not busy and idle_s >= config.queue_flush_interval_ms / 1000:
            thorough = idle_s >= config.queue_flush_thorough_ms / 1000
            if behind >= CHECKPOINT_BYTES or thorough:
                self.checkpoint()

    def clean(self, *, by_hand: bool = False, wait: bool = False) -> int:
        """Remove expired log files if it is time, and what was derived from them; return how many
        were removed. Without `wait`, `maintain` removes those that the checkpoint does not cover
        yet."""
        self._fence.raise_if_broken()
        config = self.retention.config
        found = usages(self._parts.files, self._parts.paths)
        fullest, usage = max(found.items(), key=lambda disk: disk[1].used_ratio)
        pressure = pressure_of(usage.used_ratio, config)
        now_ms = self._clock.now_ms()
        due = self.retention.due(pressure, now_ms=now_ms, by_hand=by_hand)
        removed = self.remove_oldest(due, wait=wait)
        self._fence.refusal = ""
        if pressure is Pressure.REFUSE:
            self._fence.refusal = (
                f"the disk of {fullest} is {usage.used_ratio:.0%} full, more than "
                f"{config.disk_refuse_ratio:.0%}; writes are rejected until space is freed"
            )
        return removed

    def remove_oldest(self, files: int, *, wait: bool = False) -> int:
        """Remove this many of the oldest log files; as `clean` does, in all other respects."""
        self._fence.raise_if_broken()
        if files:
            # The next start takes a log that starts after the recorded offset for damaged. And only
            # the queues record the offsets of expired messages: they must be durable first, or a
            # crash would let the queues restart at 0.
            self._flusher.record_begin(self.retention.begin_after(files))
            self._wait_saved(wait)
            self.checkpoint(whole=wait)
            self._wait_saved(wait)
        return self._remove_expired(whole=wait)

    def _wait_saved(self, wait: bool) -> None:
        if wait and self._flusher.thread is not None:
            self._flusher.thread.wait_saved(self.retention.config.sync_flush_timeout_ms / 1000)

    def _remove_expired(self, *, whole: bool = False) -> int:
        parts, current = self._parts, self._parts.checkpoint
        settled = min(self._flusher.flushed, current.derived, current.log_begin)
        with self._fence.guard("removing expired files", final=True):
            removed = self.retention.remove(below=settled)
            if removed:
                parts.queues.log_min = parts.log.min_offset
                self.work.expire()
                self.on_expired()
            if parts.key_index is not None:
                parts.key_index.remove_expired(parts.log.min_offset)
        if removed:
            self.checkpoint(whole=whole)
        return removed
