"""Recovery at start: find the intact part of the log, and make everything else agree with it.

The only place that decides what is torn. At the first bytes X that are not an intact record:

- No intact record follows, and X was not known to be durable: a torn tail. Truncated on disk too.
- X lies below what was known to be durable: damage. Never truncated; the intact records after it
  are served, and the gap is reported.
- Intact records follow, but X was not known to be durable: a crash that wrote later pages
  before earlier ones, or damage; both look alike. The rest goes to `quarantine/` and is truncated.

Queues and index are used up to the position in the checkpoint if they match the checkpoint and it
matches the log; the rest is derived again. Otherwise everything is derived again.
"""

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from tianzhou.base.kinds import PhysicalOffset, QueueKey, QueueOffset, queue_key
from tianzhou.record.errors import RecordDamaged
from tianzhou.store.checkpoint import Checkpoint, CheckpointFile
from tianzhou.store.commit_log import CommitLog
from tianzhou.store.consume_queue import MISSING_SIZE, ConsumeQueue, Queues
from tianzhou.store.derive import facts_of, last_store_time
from tianzhou.store.dispatch import Dispatcher
from tianzhou.store.errors import StoreDamaged
from tianzhou.store.failpoint import failpoint
from tianzhou.store.files import Files, creating
from tianzhou.store.incidents import Incidents
from tianzhou.store.key_index import KeyIndex
from tianzhou.store.layout import Paths
from tianzhou.store.preflight import Shortfall
from tianzhou.store.scan import (
    NOWHERE,
    Damage,
    Halt,
    LogScan,
    Slice,
    next_sound_record,
    sound_record_at,
    store_time_at,
)
from tianzhou.store.segments import PAGE, Segment

Progress = Callable[[int, int], None]
"""Called with the scanned bytes and the total bytes."""


def no_progress(_done: int, _total: int) -> None:
    """For callers that do not show progress."""


_COPY_BYTES: Final = 4 * 1024 * 1024


@dataclass(slots=True)
class Report:
    """What recovery found and did."""

    rebuilt: str = ""
    """Why queues and index were rebuilt; empty if they were not."""
    scanned_bytes: int = 0
    records: int = 0
    cut_at: int | None = None
    quarantine: str = ""
    damage: list[Damage] = field(default_factory=list[Damage])
    malformed: list[Damage] = field(default_factory=list[Damage])
    """Intact records that cannot be put into a queue. They are not delivered. Every replica of the
    log has them, so no replica can repair them."""
    clamped: int = 0
    """Stored consumer and delay offsets that lay beyond the end of their queue."""
    shortfall: Shortfall | None = None
    """The log ended before what the checkpoint vouched for, and the start continued anyway."""


class Parts(NamedTuple):
    """The parts of a store that recovery works on."""

    files: Files
    paths: Paths
    log: CommitLog
    queues: Queues
    key_index: KeyIndex | None
    dispatcher: Dispatcher
    checkpoint_file: CheckpointFile

    @property
    def checkpoint(self) -> Checkpoint:
        return self.checkpoint_file.current


def recover(
    parts: Parts,
    *,
    progress: Progress,
    rebuild: bool = False,
    visible: PhysicalOffset = NOWHERE,
) -> Report:
    """Bring log, queues and index into agreement, in memory and on disk.

    Records after `visible` are checked, but derived only if the checkpoint shows that they were
    before: the owner of the store does not know yet whether they will be kept.
    """
    report = Report()
    log, dispatcher = parts.log, parts.dispatcher
    reason = "it was requested" if rebuild else _load_derived(parts)
    if reason:
        report.rebuilt = reason
        failpoint("recovery.before_rebuild")
        _remove_derived(parts)
        dispatcher.position, dispatcher.anchor = log.min_offset, PhysicalOffset(0)
    else:
        dispatcher.position = PhysicalOffset(parts.checkpoint.derived)
        dispatcher.anchor = PhysicalOffset(parts.checkpoint.anchor)
        dispatcher.last_timestamp = parts.checkpoint.queues_timestamp
        _finish_deletions(parts)
    _scan(parts, report, progress, visible)
    parts.queues.log_min = log.min_offset
    for queue in parts.queues:
        queue.raise_minimum(log.min_offset)
    failpoint("recovery.after_rebuild")
    return report


def keep_ends(queues: Queues, incidents: Incidents) -> None:
    """Mark offsets of lost messages as used: a new message must not get one of them."""
    if incidents.skipped:
        known = _kept(incidents)
        for queue in queues:
            known[queue.key] = max(queue.end, known.get(queue.key, 0))
        ends: dict[str, dict[int, int]] = {}
        for key, end in known.items():
            ends.setdefault(key.topic, {})[int(key.queue_id)] = end + incidents.skipped
        incidents.keep_ends(ends, skipped=0)
    for key, end in _kept(incidents).items():
        queue = queues.get(key)
        if end > (queue.end if queue else 0):
            queues.obtain(key).append(QueueOffset(end), b"")


def _kept(incidents: Incidents) -> dict[QueueKey, int]:
    return {
        queue_key(topic, queue_id): end
        for topic, row in incidents.queue_ends.items()
        for queue_id, end in row.items()
    }


# Derived files


def _finish_deletions(parts: Parts) -> None:
    """Remove the queues of deleted topics that a crash left or restored. A checkpoint after the
    deletion was written without them."""
    if parts.dispatcher.derivation is not None:
        for topic, at in parts.dispatcher.derivation.deleted_topics.items():
            if at >= parts.checkpoint.derived:
                parts.queues.remove_topic(topic, before=PhysicalOffset(at))


def _load_derived(parts: Parts) -> str:
    """Open queues and index as of the checkpoint; returns why that was impossible, or ""."""
    checkpoint = parts.checkpoint
    if not checkpoint.exact:
        return "there is no checkpoint of Tianzhou" if parts.log.segments else ""
    reason = _log_fits(parts.log, checkpoint)
    if reason:
        return reason
    try:
        below = PhysicalOffset(checkpoint.derived)
        log_min = parts.log.min_offset
        parts.queues.load(below=below, clean=checkpoint.clean, log_min=log_min)
        if parts.key_index is not None:
            parts.key_index.load()
            _cut_index(parts)
    except (StoreDamaged, OSError) as error:
        return str(error)
    return _queues_fit(parts.queues, parts.log, checkpoint)


def _log_fits(log: CommitLog, checkpoint: Checkpoint) -> str:
    """Whether the record before the checkpoint's position still ends there."""
    if checkpoint.derived in (0, log.min_offset) and checkpoint.derived >= log.min_offset:
        return ""
    if checkpoint.anchor < log.min_offset:
        return f"the checkpoint is for offset {checkpoint.derived}; the log starts after it"
    record = sound_record_at(log.segments, log.file_bytes, checkpoint.anchor)
    if record is None:
        return f"no intact record at {checkpoint.anchor}, the anchor of the checkpoint"
    end = checkpoint.anchor + len(record)
    next_file = (end // log.file_bytes + 1) * log.file_bytes
    if checkpoint.derived not in (end, next_file):
        return f"the record at {checkpoint.anchor} ends at {end}, not at {checkpoint.derived}"
    return ""


def _queues_fit(queues: Queues, log: CommitLog, checkpoint: Checkpoint) -> str:
    found = queues.census()
    if (found.used, found.units) != (checkpoint.queues, checkpoint.units):
        return (
            f"{found.used} queues with {found.units} units were found; "
            f"the checkpoint counted {checkpoint.queues} with {checkpoint.units}"
        )
    for queue in queues:
        if not _points_at_record(queue, log):
            return f"queue {queue.key.queue_id} of {queue.key.topic} points at no record of its own"
    return ""


def _points_at_record(queue: ConsumeQueue, log: CommitLog) -> bool:
    unit = queue.last_unit()
    if unit is None:
        return True
    if unit.size == MISSING_SIZE or unit.physical_offset < log.min_offset:
        return True
    record = sound_record_at(log.segments, log.file_bytes, unit.physical_offset)
    if record is None or len(record) != unit.size:
        return False
    try:
        facts = facts_of(record, 0, len(record), (), with_keys=False)
    except RecordDamaged:
        return False
    places = ((facts.queue, facts.queue_offset), *facts.light)
    return (queue.key, queue.end - 1) in places


def _cut_index(parts: Parts) -> None:
    index, checkpoint, log = parts.key_index, parts.checkpoint, parts.log
    assert index is not None
    as_left = bool(index.files) and index.files[-1].count == checkpoint.index_count
    if not (checkpoint.clean and as_left):
        as_left = index.cut(checkpoint.index_name, checkpoint.index_count)
    if not as_left or len(index.files) != checkpoint.index_files:
        raise StoreDamaged(index.directory, "does not match the checkpoint")
    if checkpoint.clean:
        return
    newest = index.files[-1] if index.files else None
    if newest is not None and not newest.is_empty:
        if sound_record_at(log.segments, log.file_bytes, newest.end_offset) is not None:
            newest.set_end(store_time_at(log.segments, log.file_bytes, newest.end_offset))
        else:
            newest.set_end(checkpoint.index_timestamp)
        index.dirty.add(newest.file.path)


def _remove_derived(parts: Parts) -> None:
    parts.checkpoint_file.distrust()
    parts.queues.keep_expired(parts.log.min_offset)
    if parts.key_index is not None:
        parts.key_index.remove_all()


# The log


def _scan(parts: Parts, report: Report, progress: Progress, visible: PhysicalOffset) -> None:
    """Scan the log from the dispatcher's position on, derive, and decide where it ends."""
    log, dispatcher = parts.log, parts.dispatcher
    total = log.segments[-1].start + log.file_bytes - dispatcher.position if log.segments else 0
    begin = dispatcher.position
    at, timestamp = begin, dispatcher.last_timestamp
    while True:
        scan = LogScan(log.segments, log.file_bytes, at, _checked(parts))
        for piece in scan:
            _derive(dispatcher, piece, visible)
            found = last_store_time(piece.data, piece.starts, piece.end)
            timestamp = timestamp if found is None else found
            report.records += len(piece.starts)
            progress(piece.end_offset - begin, total)
        at, is_end = _settle(parts, scan.halt, report)
        if at <= visible:
            dispatcher.skip_to(at)
        if is_end:
            break
    report.malformed += [
        Damage(offset, offset + size, reason)
        for offset, size, reason in dispatcher.take_malformed()
    ]
    report.scanned_bytes = at - begin
    log.set_end(at, timestamp)
    progress(total, total)


def _derive(dispatcher: Dispatcher, piece: Slice, visible: PhysicalOffset) -> None:
    """Return the part of a slice that may become visible."""
    base, starts, end = piece.base, piece.starts, piece.end
    if piece.end_offset > visible:
        count = bisect_left(starts, visible - base)
        starts, end = starts[:count], visible - base
    if starts:
        dispatcher.apply(piece.data, starts, end, base=base)


def _settle(parts: Parts, halt: Halt, report: Report) -> tuple[PhysicalOffset, bool]:
    """Decide about the offset where intact records end: where to continue, and whether the log ends
    there."""
    log, flushed = parts.log, parts.checkpoint.flushed
    if parts.checkpoint.clean and halt.is_bare and halt.offset == flushed:
        return halt.offset, True
    following = next_sound_record(log.segments, log.file_bytes, halt.offset, _checked(parts))
    known = halt.offset < flushed or _was_flushed(parts, following)
    if following is not None and known:
        report.damage.append(Damage(halt.offset, following, halt.reason))
        return following, False
    if following is None and halt.offset < flushed:
        return _lost_end(parts, halt, report), True
    if following is not None:
        report.quarantine = _quarantine(parts, halt.offset)
        report.damage.append(
            Damage(halt.offset, log.segments[-1].start + log.file_bytes, halt.reason)
        )
    if _cut(parts, halt.offset) or following is not None:
        report.cut_at = halt.offset
    return halt.offset, True


def _checked(parts: Parts) -> int | None:
    """Return the offset from which on a record without a checksum is torn; None if unknown."""
    if not parts.checkpoint.exact:
        return None
    return parts.checkpoint.flushed if parts.checkpoint.checked else NOWHERE


def _was_flushed(parts: Parts, following: PhysicalOffset | None) -> bool:
    """Return how far the log was flushed according to Java's checkpoint, which has a time instead
    of an offset: a record older than that was flushed, and so was everything before it. A record of
    the same time may have been written later. The time is that of a record; if no record is that
    recent, that record was torn too."""
    flushed_time = parts.checkpoint.log_timestamp
    if following is None or parts.checkpoint.exact or not flushed_time:
        return False
    segments, file_bytes = parts.log.segments, parts.log.file_bytes
    if store_time_at(segments, file_bytes, following) >= flushed_time:
        return False
    while following is not None:
        if store_time_at(segments, file_bytes, following) >= flushed_time:
            return True
        following = next_sound_record(segments, file_bytes, following)
    return False


def _lost_end(parts: Parts, halt: Halt, report: Report) -> PhysicalOffset:
    """Report that the log should continue here, but no intact record follows. The bytes stay
    unchanged."""
    log, flushed = parts.log, parts.checkpoint.flushed
    report.damage.append(Damage(halt.offset, flushed, halt.reason))
    if halt.is_bare:
        return halt.offset
    return PhysicalOffset(log.segments[-1].start + log.file_bytes)


def _cut(parts: Parts, end: PhysicalOffset) -> bool:
    """Remove everything after the end of the log; returns whether there was anything."""
    failpoint("recovery.before_cut")
    found = parts.log.cut(end)
    failpoint("recovery.after_cut")
    return found


def _quarantine(parts: Parts, start: PhysicalOffset) -> str:
    """Copy everything from an offset on into a separate file, before it is truncated."""
    directory = parts.paths.quarantine
    name = path = f"{directory}/commitlog-{start:020d}"
    parts.files.make_dirs(directory)
    # The log may end here a second time, followed by other bytes.
    number = 1
    while parts.files.exists(path):
        number += 1
        path = f"{name}-{number}"
    log = parts.log
    ends = log.segments[-1].start + log.file_bytes
    with creating(parts.files, path, 0) as copy:
        for segment in log.segments:
            at = max(start - segment.start, 0)
            while at < log.file_bytes:
                piece = segment.salvage(at, min(at + _COPY_BYTES, log.file_bytes)).data
                if any(piece):
                    copy.pwrite(segment.start + at - start, piece)
                at += _COPY_BYTES
        copy.truncate(ends - start)
        copy.sync()
        copy.close()
        parts.files.sync_dir(directory)
        parts.files.sync_dir(parts.paths.root)
    return path


def rewrite_unsynced(log: CommitLog, flushed: PhysicalOffset) -> None:
    """Rewrite bytes that may never have been synced.

    After a failed sync the page cache may show bytes that the disk does not have, and a plain
    sync would not write pages that the kernel believes to be clean.
    """
    at = max(flushed, log.min_offset)
    while at < log.end:
        segment = log.segment_at(at)
        assert segment is not None
        end = min(log.end, segment.start + log.file_bytes, at + _COPY_BYTES)
        start = at - segment.start
        _rewrite(segment, start, end - segment.start)
        at = end


def _rewrite(segment: Segment, start: int, end: int) -> None:
    """Rewrite bytes, except pages that cannot be read: damaged ones stay unchanged."""
    try:
        data = segment.read(start, end)
    except OSError:
        middle = (start + end) // 2 // PAGE * PAGE
        if start < middle < end:
            _rewrite(segment, start, middle)
            _rewrite(segment, middle, end)
        return
    segment.file.pwrite(start, data)
