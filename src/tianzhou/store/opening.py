"""Opening a store: acquire its directory, create its parts, recover them, and report the findings.

A torn end that was never synced is normal after a crash: it is truncated without an incident. An
incident is the loss of something that the configuration guaranteed to keep.
"""

from dataclasses import dataclass
from typing import Final

from tianzhou.base.clock import Clock
from tianzhou.base.kinds import PhysicalOffset, QueueKey, QueueOffset
from tianzhou.store import incidents as kinds
from tianzhou.store import layout, preflight, recovery
from tianzhou.store.checkpoint import NO_QUEUES, Checkpoint, CheckpointFile
from tianzhou.store.commit_log import CommitLog
from tianzhou.store.config import StoreConfig
from tianzhou.store.consume_queue import Queues
from tianzhou.store.derivation import Derivation
from tianzhou.store.dispatch import Dispatcher
from tianzhou.store.files import File, Files, list_visible, make_lasting_dirs
from tianzhou.store.flush import Flusher
from tianzhou.store.incidents import Incident, Incidents
from tianzhou.store.key_index import KeyIndex
from tianzhou.store.layout import Paths
from tianzhou.store.preflight import LateBegin, Shortfall
from tianzhou.store.recovery import Parts, Report
from tianzhou.store.scan import NOWHERE
from tianzhou.store.tables import SetBack, Tables

_NAMED_MAX: Final = 5
"""Offsets listed in a sentence; the rest are counted."""


@dataclass(frozen=True, slots=True)
class Start:
    """How to start a store."""

    progress: recovery.Progress = recovery.no_progress
    rebuild: bool = False
    """Whether to derive queues and index again."""
    visible: PhysicalOffset = NOWHERE
    """Nothing beyond this offset becomes newly visible."""
    is_repaired: bool = False
    """Whether peers have what this log lacks."""


@dataclass(frozen=True, slots=True)
class Opened:
    """The parts of a store that was opened, and what was found."""

    parts: Parts
    locks: list[File]
    incidents: Incidents
    tables: Tables
    flusher: Flusher
    found: Checkpoint
    """The checkpoint with which the start began."""
    recovered: Report
    was_clean: bool


def take(
    files: Files,
    paths: Paths,
    config: StoreConfig,
    *,
    locks: list[File],
    now_ms: int,
    lenient: bool,
    rebuild: bool = False,
) -> Shortfall | None:
    """Lock the directory after checking that it may be opened. Returns what its log lacks.
    `rebuild`: queues and index may be missing, because they are derived again. The locks are added
    to `locks`, that of the store directory first, even if this raises."""
    layout.check_distinct(paths)
    # A refused directory stays unchanged: not even a lock file is created there.
    if files.exists(paths.lock):
        locks.append(layout.take_lock(files, paths.root))
    shortfall = preflight.examine(files, paths, config, now_ms)
    preflight.check_apart(files, paths, config, rebuild=rebuild)
    if shortfall is not None and not (lenient or shortfall.may_open(config)):
        raise preflight.refuse(paths, shortfall)
    make_lasting_dirs(files, paths.root)
    if not locks:
        locks.append(layout.take_lock(files, paths.root))
    layout.make_directories(files, paths)
    locks.extend(layout.take_locks_outside(files, paths))
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
) -> Parts:
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
    return Parts(files, paths, log, queues, index, dispatcher, checkpoint)


def open_parts(
    files: Files,
    paths: Paths,
    config: StoreConfig,
    clock: Clock,
    *,
    locks: list[File],
    start: Start,
) -> Opened:
    """Lock the directory, create the parts of its store, and recover them. The locks are added to
    `locks`, even if this raises."""
    now_ms = clock.now_ms()
    shortfall = take(
        files,
        paths,
        config,
        locks=locks,
        now_ms=now_ms,
        lenient=start.is_repaired,
        rebuild=start.rebuild,
    )
    incidents = Incidents(files, paths.tables)
    report = StartReport(incidents, now_ms, is_repaired=start.is_repaired)
    if shortfall is not None:
        report.log_ended_early(shortfall)
    late = find_late_begin(files, paths, config, lock=locks[0])
    if late is not None:
        report.log_begins_late(late)
    layout.record_paths(files, paths, now_ms)
    was_clean = not files.exists(paths.abort)
    checkpoint = CheckpointFile(files, paths.checkpoint)
    if layout.was_used_by_another(locks[0]):
        checkpoint.admit_another()
        layout.sign_lock(locks[0])
    found = checkpoint.current
    parts = make_parts(files, paths, config, clock, checkpoint=checkpoint)
    recovered = recovery.recover(
        parts, progress=start.progress, rebuild=start.rebuild, visible=start.visible
    )
    recovered.shortfall = shortfall
    recovery.keep_ends(parts.queues, incidents)
    flusher = _started_flusher(parts, found, checked=config.record_crc)
    tables = Tables(files, paths.tables)
    tables.run_later(flusher.run_later)
    beyond = tables.beyond(lambda key: _end_of(parts.queues, key))
    recovered.clamped = len(beyond)
    set_aside = list_visible(files, paths.quarantine)
    report.recovered(recovered, found, set_aside=set_aside, beyond=beyond)
    tables.set_back(beyond)
    return Opened(parts, locks, incidents, tables, flusher, found, recovered, was_clean)


def _started_flusher(parts: Parts, found: Checkpoint, *, checked: bool) -> Flusher:
    """The flusher of a recovered log, which knows how much of it is durable."""
    assert parts.dispatcher.derivation is not None
    parts.dispatcher.derivation.begin(parts.log.min_offset, parts.log.end)
    if found.exact:
        recovery.rewrite_unsynced(parts.log, PhysicalOffset(found.flushed))
    flusher = Flusher(parts.files, parts.log, parts.checkpoint_file)
    flusher.restart(found.flushed if found.exact else parts.log.min_offset, checked=checked)
    return flusher


def _end_of(queues: Queues, key: QueueKey) -> QueueOffset:
    queue = queues.get(key)
    return queue.end if queue else QueueOffset(0)


@dataclass(slots=True)
class StartReport:
    """Owner: the store's writer, while it opens."""

    incidents: Incidents
    now_ms: int
    is_repaired: bool
    """Whether peers have what this log lacks."""

    def log_ended_early(self, found: Shortfall) -> None:
        """Make the incident durable before anything is changed: the start is about to overwrite the
        evidence, and the queues that show which offsets were used."""
        if not self.is_repaired:
            self.incidents.keep_ends(found.kept_ends, skipped=found.skipped)
        what = "peers replace them" if self.is_repaired else "the lost messages stay lost"
        text = f"{found.text}; {what}"
        if found.reused_max and not self.is_repaired:
            text += f"; up to {found.reused_max} offsets of a queue may be used again"
        self._report(kinds.LOG_ENDED_EARLY, f"{found.end}-{found.vouched}", text)

    def log_begins_late(self, found: LateBegin) -> None:
        what = "peers may have them" if self.is_repaired else "their messages are lost"
        text = f"{found.text}; {what}; later messages are served"
        self._report(kinds.LOG_BEGINS_LATE, f"{found.expected}-{found.found}", text)

    def recovered(
        self, report: Report, before: Checkpoint, *, set_aside: list[str], beyond: list[SetBack]
    ) -> None:
        """Record recovery's findings. `before` is the checkpoint that it started with."""
        for damage in report.damage:
            if report.shortfall is not None and damage.end == report.shortfall.vouched:
                continue  # the same as `log_ended_early`
            if report.quarantine and damage.start == report.cut_at:
                continue  # reported with its copy in quarantine
            self._report(
                kinds.LOG_DAMAGED,
                f"{damage.start}-{damage.end}",
                f"the commit log is damaged from offset {damage.start} to {damage.end} "
                f"({damage.end - damage.start} bytes): {damage.reason}; its messages are lost, "
                "later ones are served",
            )
        for bad in report.malformed:
            self._report(
                kinds.LOG_DAMAGED,
                f"{bad.start}-{bad.end}",
                f"the record at offset {bad.start} ({bad.end - bad.start} bytes) is malformed: it "
                f"{bad.reason}; it was written like this, so no replica has a better copy; it is "
                "not delivered, later ones are served",
            )
        for name in set_aside:
            self._report(
                kinds.LOG_QUARANTINED,
                name,
                f"the end of the commit log could not be trusted and is now in quarantine/{name}; "
                "messages that were not yet durable may be in it",
            )
        # An interrupted rebuild, or a deleted topic, leaves a checkpoint that records it.
        if report.rebuilt and before.exact and before.queues != NO_QUEUES:
            self._rebuilt(report)
        if beyond and not self.is_repaired:
            self._set_back(beyond)

    def _rebuilt(self, report: Report) -> None:
        if report.rebuilt != "it was requested" and report.shortfall is None:
            text = f"queues and index did not fit the log and were derived again: {report.rebuilt}"
            self._report(kinds.QUEUES_REBUILT, str(self.now_ms), text, is_loss=False)

    def _set_back(self, beyond: list[SetBack]) -> None:
        most = max(one.stored - one.end for one in beyond)
        named = [
            f"{one.name} queue {one.queue_id} from {one.stored} to {one.end}"
            for one in beyond[:_NAMED_MAX]
        ]
        if len(beyond) > _NAMED_MAX:
            named.append(f"and {len(beyond) - _NAMED_MAX} more")
        text = (
            f"{len(beyond)} stored offsets lay beyond the end of their queue, by up to {most} "
            f"messages, and were set back: {', '.join(named)}; these offsets are used again"
        )
        self._report(kinds.OFFSETS_SET_BACK, str(self.now_ms), text)

    def _report(self, kind: str, place: str, text: str, *, is_loss: bool = True) -> None:
        is_loss = is_loss and not self.is_repaired
        self.incidents.report(
            [Incident(kind=kind, place=place, text=text, found_ms=self.now_ms, is_loss=is_loss)]
        )
