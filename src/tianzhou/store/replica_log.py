"""Replicated bytes: which of them may be appended, and how a store is truncated.

A replicated log arrives in parts that may end anywhere. A log always ends after a record, so that a
start can detect a torn one: only complete and intact records are appended, and the receiver keeps
an incomplete record until the rest arrives.

Truncated bytes never come back. The checkpoint is updated first. A crash at any time then leaves a
log that ends at the offset, or an intact one that is not truncated yet; never one whose flushed end
is missing. In the second case the caller truncates again after the restart.
"""

from dataclasses import replace
from typing import NamedTuple

from tianzhou.base.kinds import Bytes, PhysicalOffset
from tianzhou.record.layout import SIZE_AND_MAGIC
from tianzhou.record.walk import Stop, first_unsound, walk
from tianzhou.store.checkpoint import NO_QUEUES, UNKNOWN
from tianzhou.store.commit_log import CommitLog
from tianzhou.store.derive import last_store_time
from tianzhou.store.errors import RawRefused, StoreDamaged
from tianzhou.store.failpoint import failpoint
from tianzhou.store.recovery import Parts
from tianzhou.store.scan import has_checksum, read_slice, store_time_at


class Whole(NamedTuple):
    """The part of replicated bytes that may be appended."""

    size: int
    """Size of the complete records, and of blank records with their full size."""
    timestamp: int
    """Store time of the last record; 0 without a record."""
    is_checked: bool
    """Whether every record has a checksum of the whole record."""


def whole(data: memoryview, *, offset: int, file_bytes: int) -> Whole:
    """Return how much of `data`, which belongs at `offset`, is complete. Raises RawRefused for
    invalid bytes."""
    at, timestamp, is_checked = 0, 0, True
    while at < len(data):
        file_end = at + file_bytes - (offset + at) % file_bytes
        end = min(len(data), file_end)
        found = walk(data, at, end)
        _refuse_unsound(data, found.starts, found.end, offset)
        if found.starts:
            timestamp = last_store_time(data, found.starts, found.end) or timestamp
            ends = [*found.starts[1:], found.end]
            is_checked = is_checked and all(has_checksum(data, stop) for stop in ends)
        at = found.end
        if found.stop is Stop.BLANK:
            (room, _) = SIZE_AND_MAGIC.unpack_from(data, at)
            if at + room != file_end:
                raise RawRefused(
                    f"the blank at {offset + at} announces {room} bytes; its file of "
                    f"{file_bytes} ends in {file_end - at}: do both logs have equal files?"
                )
            if file_end > len(data):
                break
            at = file_end
        elif at == end < len(data):
            continue  # a file that was filled to its last byte
        else:
            _refuse_wrong_end(data, at, offset, is_file_end=end == file_end, stop=found.stop)
            break
    return Whole(at, timestamp, is_checked)


def _refuse_unsound(data: memoryview, starts: list[int], end: int, offset: int) -> None:
    bad = first_unsound(data, starts, end, base=offset)
    if bad is not None:
        raise RawRefused(
            f"the record for offset {offset + starts[bad]} is damaged: its checksum fails, or it "
            "belongs elsewhere in the log"
        )


def _refuse_wrong_end(data: Bytes, at: int, offset: int, *, is_file_end: bool, stop: Stop) -> None:
    """Check that the remaining bytes can be the start of a record."""
    left = len(data) - at
    is_wrong = stop is Stop.DAMAGED or (stop is Stop.END and left >= SIZE_AND_MAGIC.size)
    if is_wrong or (left and is_file_end):
        raise RawRefused(f"no record starts at offset {offset + at} ({stop.name.lower()})")


def rewind(parts: Parts, offset: PhysicalOffset) -> None:
    """Truncate log, queues and index at `offset`, which must be the end of a record or of a
    file."""
    log = parts.log
    anchor, timestamp = _last_before(parts, offset)
    _announce(parts, offset, log_begin=parts.checkpoint.log_begin)
    failpoint("rewind.before_cut")
    log.cut(offset)
    log.set_end(offset, timestamp)
    failpoint("rewind.after_cut")
    dispatcher = parts.dispatcher
    if dispatcher.position <= offset:
        dispatcher.go_back(dispatcher.position, dispatcher.anchor, dispatcher.last_timestamp)
    else:
        for queue in parts.queues:
            queue.cut(offset)
        if parts.key_index is not None and not parts.key_index.cut_at(offset, timestamp):
            raise StoreDamaged(
                parts.key_index.directory,
                "cannot be truncated; a restart rebuilds it",
                offset=offset,
            )
        dispatcher.go_back(offset, anchor, timestamp)


def begin_again(parts: Parts, offset: PhysicalOffset) -> None:
    """Discard everything and continue with an empty log that begins at `offset`."""
    _announce(parts, PhysicalOffset(0), log_begin=UNKNOWN)
    failpoint("rewind.before_cut")
    parts.log.begin_at(offset)
    failpoint("rewind.after_cut")
    for topic in {queue.key.topic for queue in parts.queues}:
        parts.queues.remove_topic(topic)
    if parts.key_index is not None:
        parts.key_index.remove_all()
    parts.queues.log_min = parts.log.min_offset
    parts.dispatcher.go_back(offset, PhysicalOffset(0), 0)


def _announce(parts: Parts, offset: PhysicalOffset, *, log_begin: int) -> None:
    """Record that bytes after the offset are no longer durable, and that queues that refer to them
    are invalid."""
    file, current = parts.checkpoint_file, parts.checkpoint
    queues = current.queues if current.derived <= offset else NO_QUEUES
    flushed = min(current.flushed, offset)
    announced = replace(current, flushed=flushed, queues=queues, clean=False, log_begin=log_begin)
    file.write(announced, sync=True)


def _last_before(parts: Parts, offset: PhysicalOffset) -> tuple[PhysicalOffset, int]:
    """Return the start of the last record before the offset, and its store time. Raises RawRefused
    if no record ends at the offset."""
    log = parts.log
    if not log.min_offset <= offset <= log.end:
        raise RawRefused(f"the log holds {log.min_offset} to {log.end}; asked to cut at {offset}")
    if offset == log.min_offset:
        return PhysicalOffset(0), 0
    start = (offset - 1) // log.file_bytes * log.file_bytes
    start = max(start, _known_before(parts, offset), log.min_offset)
    last, end = _walk_to(log, start, offset)
    if end != offset:
        raise RawRefused(f"no record ends at {offset}; the one at {last} does not")
    return PhysicalOffset(last), store_time_at(log.segments, log.file_bytes, last)


def _known_before(parts: Parts, offset: PhysicalOffset) -> int:
    """A place near the offset where a record begins, as the checkpoint knows."""
    anchor = parts.checkpoint.anchor
    return anchor if parts.checkpoint.exact and anchor < offset else 0


def _walk_to(log: CommitLog, start: int, offset: int) -> tuple[int, int]:
    """The last record that begins before the offset, in the file of `start`, and where it, or the
    blank behind it, ends."""
    segment = log.segments[(start - log.segments[0].start) // log.file_bytes]
    last = at = start - segment.start
    while at < offset - segment.start:
        window = read_slice(segment, at, offset - segment.start)
        found = window.walk
        if found.starts:
            last = at + found.starts[-1]
        at += found.end
        if found.stop is Stop.BLANK:
            at = log.file_bytes
        if not found.starts:
            break
    return segment.start + last, segment.start + at
