"""Going back: cut an open store at an offset, so that what was cut never comes back.

The checkpoint says so first. A crash at any moment then leaves a log that ends at the offset, or
one that was not cut yet and is sound; never one whose end is missing although it was flushed. Who
wanted it cut finds that it was not, and cuts again.
"""

from dataclasses import replace

from tianzhou.base.kinds import PhysicalOffset
from tianzhou.record.walk import Stop
from tianzhou.store.checkpoint import NO_QUEUES, UNKNOWN
from tianzhou.store.commit_log import CommitLog
from tianzhou.store.errors import RawRefused, StoreDamaged
from tianzhou.store.failpoint import failpoint
from tianzhou.store.recovery import Parts
from tianzhou.store.scan import read_slice, store_time_at


def rewind(parts: Parts, offset: PhysicalOffset) -> None:
    """Cut log, queues and index at `offset`, which must be the end of a record or of a file."""
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
                parts.key_index.directory, "can't be cut; a restart makes it anew", offset=offset
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
    """From now on bytes behind the offset are no longer known to be on the medium, and queues
    that speak of them are not to be believed."""
    file, current = parts.checkpoint_file, parts.checkpoint
    queues = current.queues if current.derived <= offset else NO_QUEUES
    flushed = min(current.flushed, offset)
    announced = replace(current, flushed=flushed, queues=queues, clean=False, log_begin=log_begin)
    file.write(announced, sync=True)


def _last_before(parts: Parts, offset: PhysicalOffset) -> tuple[PhysicalOffset, int]:
    """Where the last record before the offset begins, and its store time. Raises RawRefused if
    the offset is no place where a record ends."""
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
