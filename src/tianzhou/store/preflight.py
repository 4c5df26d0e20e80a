"""Examine a directory before it is opened for writing: is its log there, and is it complete?

Recovery makes everything agree with the log. If the log itself is missing, because its disk is not
mounted or lies on another path, recovery would erase queues, index and offsets. So this runs first,
reads only, and raises StoreRefused; nothing in the directory has changed by then.
"""

import mmap
import time
from collections.abc import Generator
from contextlib import contextmanager
from typing import Final, NamedTuple, cast

from tianzhou.base.kinds import PhysicalOffset
from tianzhou.record.layout import RECORD_BYTES_MIN
from tianzhou.store import dledger, segments
from tianzhou.store.checkpoint import SECTOR, UNKNOWN, Checkpoint, decode
from tianzhou.store.config import StoreConfig
from tianzhou.store.consume_queue import Queues
from tianzhou.store.derive import store_time_of
from tianzhou.store.errors import StoreRefused
from tianzhou.store.files import File, Files, list_visible
from tianzhou.store.layout import (
    PATHS,
    Paths,
    Recorded,
    is_outside,
    marker_of,
    paths_of,
    recorded_paths,
)
from tianzhou.store.scan import NOWHERE, LogScan, next_sound_record, sound_record_at
from tianzhou.store.segments import Segment, file_name
from tianzhou.store.tables import Tables

_ROCKSDB_FILE: Final = "CURRENT"
"""Every RocksDB database has a file of this name."""
_COPY_BYTES: Final = 4 * 1024 * 1024
_SKIPPED_UNITS_MAX: Final = 3_000_000
"""The total number of 20-byte units that marking offsets as used may write."""


class Shortfall(NamedTuple):
    """The log ends before the offset up to which it was known to be durable."""

    end: int
    """The end of the last intact record."""
    vouched: int
    """The offset in the checkpoint; -1 if it only has a time, as RocketMQ's does. Such a shortfall
    is reported but does not prevent a store from opening: the time has no checksum."""
    vouched_ms: int
    kept_ends: dict[str, dict[int, int]]
    """Topic to queue to the end that the files of the queue have; 0 if it has none."""
    skipped: int
    """Offsets to skip after the end of each queue: messages that no queue file lists may have had
    them."""
    reused_max: int
    """At most this many offsets of a queue may be reused despite that."""

    def may_open(self, config: StoreConfig) -> bool:
        """Whether the store opens despite the loss."""
        return self.vouched < 0 or self.end == config.accept_loss_at

    @property
    def text(self) -> str:
        if self.vouched < 0:
            at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(self.vouched_ms / 1000))
            return (
                f"the commit log ends at offset {self.end}, but according to the checkpoint "
                f"messages up to {at} were durable, and no record of that time is left"
            )
        return (
            f"the commit log ends at offset {self.end}, but according to the checkpoint it was "
            f"durable up to {self.vouched}; {self.vouched - self.end} bytes are missing"
        )


class LateBegin(NamedTuple):
    """The log starts after the offset from which on the store has removed no file."""

    expected: int
    found: int

    @property
    def text(self) -> str:
        return (
            f"the commit log starts at offset {self.found}, but the store has removed no file from "
            f"offset {self.expected} on; {self.found - self.expected} bytes are missing"
        )


def read_checkpoint(files: Files, path: str) -> Checkpoint:
    if not files.exists(path):
        return Checkpoint()
    file = files.open(path)
    try:
        return decode(file.pread(0, SECTOR))
    finally:
        file.close()


def examine(files: Files, paths: Paths, config: StoreConfig, now_ms: int) -> Shortfall | None:
    """Return what the log lacks, if anything. Raises StoreRefused for a directory without its log
    or with an unsupported layout, and StoreDamaged for a log with inconsistent files or an
    unreadable table."""
    _check_layout(files, paths)
    Tables(files, paths.tables).check_all()
    checkpoint = read_checkpoint(files, paths.checkpoint)
    if not list_visible(files, paths.commit_log):
        _check_new(files, paths, checkpoint)
        return None
    with _opened(files, paths.commit_log, config.commit_log_file_bytes) as log:
        end = _early_end(log, config.commit_log_file_bytes, checkpoint, now_ms)
    if end is None:
        return None
    vouched = checkpoint.flushed if checkpoint.exact else -1
    ends = _ends_before(files, paths, config)
    # The queues of records that existed only in the lost part are unknown. For each queue, assume
    # as many of the smallest records as fit into that part, up to a limit.
    unknown_bytes = checkpoint.flushed - max(checkpoint.derived, end) if checkpoint.exact else 0
    unknown = -(-max(unknown_bytes, 0) // RECORD_BYTES_MIN)
    skipped = min(unknown, _SKIPPED_UNITS_MAX // max(sum(map(len, ends.values())), 1))
    return Shortfall(
        end, vouched, checkpoint.log_timestamp, ends, skipped, reused_max=unknown - skipped
    )


def find_late_begin(files: Files, paths: Paths, config: StoreConfig) -> LateBegin | None:
    """Compare the first file of the log with the checkpoint. A store opens in spite of a late
    start: what is left is intact, and an operator may have freed disk space by hand."""
    expected = read_checkpoint(files, paths.checkpoint).log_begin
    starts = segments.starts_of(files, paths.commit_log, config.commit_log_file_bytes)
    if expected == UNKNOWN or not starts or starts[0] <= expected:
        return None
    return LateBegin(expected, starts[0])


def refuse(paths: Paths, shortfall: Shortfall) -> StoreRefused:
    return StoreRefused(
        f"{paths.root}: {shortfall.text}. Nothing was changed. Restore the missing files of "
        f"{paths.commit_log}, or a backup; `tianzhou store verify {paths.root}` shows what is "
        "there. To continue without the lost messages, start once with the setting "
        f"accept_loss_at={shortfall.end}",
        loss_at=shortfall.end,
    )


# Layouts, and a log that is not there


def _check_layout(files: Files, paths: Paths) -> None:
    for name in list_visible(files, paths.root):
        data = f"{paths.root}/{name}/data"
        if name.startswith(dledger.PREFIX) and files.list(data):
            raise StoreRefused(
                f"{data} is the log of a DLedger group of RocketMQ's Java broker, which Tianzhou "
                "cannot continue; nothing was changed. Copy it to a new directory with "
                f"`tianzhou store import {paths.root} DESTINATION`, and start with that"
            )
    tables = (f"{paths.tables}/{name}" for name in list_visible(files, paths.tables))
    for directory in (paths.consume_queue, *tables):
        if _ROCKSDB_FILE in files.list(directory):
            raise StoreRefused(
                f"{directory} is a RocksDB database of RocketMQ's Java broker, which Tianzhou "
                "cannot read; nothing was changed. Give this broker an empty directory, and let a "
                "consumer or a pipeline copy the messages"
            )


def _check_new(files: Files, paths: Paths, checkpoint: Checkpoint) -> None:
    """Without a log, only a directory that never stored a message may be opened."""
    evidence = _evidence(files, paths, checkpoint)
    if not evidence:
        return
    recorded = recorded_paths(files, paths.root).commit_log_path
    raise StoreRefused(
        f"there is no commit log in {paths.commit_log}, but {' and '.join(evidence)}. Nothing was "
        f"changed.{_was_at(recorded)} If the log has a disk of its own, mount it; if it has "
        "another path, set commit_log_path (storePathCommitLog); if it is lost, restore a backup, "
        "or start with an empty directory"
    )


def _evidence(files: Files, paths: Paths, checkpoint: Checkpoint) -> list[str]:
    """Evidence that messages existed. The time in a checkpoint of RocketMQ does not count: it has
    no checksum."""
    if checkpoint.exact:
        claim = f"the checkpoint vouches for its first {checkpoint.flushed} bytes"
        return [claim] if checkpoint.flushed else []
    found: list[str] = []
    queues = sum(
        bool(list_visible(files, f"{paths.consume_queue}/{topic}/{queue}"))
        for topic in list_visible(files, paths.consume_queue)
        for queue in list_visible(files, f"{paths.consume_queue}/{topic}")
    )
    if queues:
        found.append(f"{queues} consume queues point into it")
    rows = Tables(files, paths.tables).consumer_offsets.load().offset_table.values()
    offsets = sum(offset > 0 for row in rows for offset in row.values())
    if offsets:
        found.append(f"consumer groups have read up to {offsets} offsets of it")
    return found


def _was_at(recorded: str) -> str:
    return f" It was at {recorded} when the store was last open." if recorded else ""


# Parts with a path of their own


class _Part(NamedTuple):
    """A part that may have a path of its own, and so perhaps a disk of its own."""

    what: str
    path: str
    usual: str
    recorded: str
    setting: str
    counted: int
    """How much of it the checkpoint knows, in files or bytes of log."""
    lost: str
    """What to do if it is lost."""
    is_derived: bool = True


def check_apart(files: Files, paths: Paths, config: StoreConfig, *, rebuild: bool) -> None:
    """Raise StoreRefused if a part with a path of its own is not there, or belongs to another
    store: its disk may not be mounted, or paths may be swapped. `rebuild`: queues and index are
    derived again, so they may be missing."""
    has_log = bool(list_visible(files, paths.commit_log))
    if not rebuild:
        _check_root(files, paths)
    checkpoint = read_checkpoint(files, paths.checkpoint)
    recorded = recorded_paths(files, paths.root)
    for part in _parts(paths, checkpoint, recorded):
        marker = marker_of(files, part.path) if is_outside(part.path, paths.root) else ""
        if marker and not _is_own(marker, recorded.store, paths.root):
            raise StoreRefused(
                f"{part.path} has the {part.what} of another store, that of "
                f"{marker.partition(' ')[2]}. Nothing was changed. Perhaps two paths are swapped, "
                f"or a disk is mounted in the wrong place: check {part.setting}"
            )
        was_there = part.recorded != "" and has_log
        is_known = part.path != part.usual and checkpoint.exact and part.counted > 0
        is_missing = not marker and not list_visible(files, part.path)
        if is_missing and (was_there or is_known) and not (rebuild and part.is_derived):
            raise StoreRefused(
                f"there are no {part.what} in {part.path}, but the store has messages. Nothing was "
                f"changed.{_was_at(part.recorded)} If they have a disk of their own, mount it; if "
                f"they have another path, set {part.setting}; if they are lost, {part.lost}"
            )
    if checkpoint.exact and is_outside(paths.commit_log, paths.root):
        _check_same_log(files, paths, config, checkpoint)


def _is_own(marker: str, identity: str, root: str) -> bool:
    """Whether a directory with this marker belongs to the store. A crash may have left markers of a
    store whose identity was not recorded yet; they name its directory."""
    return marker == identity if identity else marker.partition(" ")[2] == root


def _check_root(files: Files, paths: Paths) -> None:
    """A log outside of the store directory belongs to a store that has a checkpoint."""
    log = list_visible(files, paths.commit_log) if is_outside(paths.commit_log, paths.root) else []
    if log and not files.exists(paths.checkpoint) and not files.exists(f"{paths.root}/{PATHS}"):
        raise StoreRefused(
            f"{paths.commit_log} has {len(log)} commit log files, but {paths.root} is not their "
            "store directory: it has no checkpoint. Nothing was changed. If the store directory "
            "has a disk of its own, mount it; if it has another path, set --data "
            "(storePathRootDir); if the log belongs to another broker, set another commit_log_path "
            "(storePathCommitLog). If only the log is left, write its path into "
            f'{paths.root}/{PATHS}, as {{"commitLogPath": "{paths.commit_log}"}}, and run: '
            f"tianzhou store rebuild {paths.root}"
        )


def _parts(paths: Paths, checkpoint: Checkpoint, recorded: Recorded) -> tuple[_Part, ...]:
    usual = paths_of(paths.root, StoreConfig())
    again = f"derive them from the log again: tianzhou store rebuild {paths.root}"
    return (
        _Part(
            "tables of topics and offsets",
            paths.tables,
            usual.tables,
            recorded.tables_path,
            "tables_path",
            checkpoint.flushed,
            'restore a backup, or create consumerOffset.json there with the content {"offsetTable":'
            "{}} and create the topics again",
            is_derived=False,
        ),
        _Part(
            "consume queues",
            paths.consume_queue,
            usual.consume_queue,
            recorded.consume_queue_path,
            "consume_queue_path (storePathConsumeQueue)",
            checkpoint.queues,
            again,
        ),
        _Part(
            "index files",
            paths.index,
            usual.index,
            recorded.index_path,
            "index_path (storePathIndex)",
            checkpoint.index_files,
            again,
        ),
    )


def _check_same_log(
    files: Files, paths: Paths, config: StoreConfig, checkpoint: Checkpoint
) -> None:
    """Raise StoreRefused if a record lies across the position up to which the checkpoint saw whole
    records. Damage does not do that; the log of another store does."""
    size, derived = config.commit_log_file_bytes, checkpoint.derived
    with _opened(files, paths.commit_log, size) as log:
        if not log or derived <= log[0].start:
            return
        anchored = sound_record_at(log, size, checkpoint.anchor)
        if anchored is not None and checkpoint.anchor + len(anchored) == derived:
            return
        across = _record_across(log, size, derived)
    if across is not None:
        raise StoreRefused(
            f"the commit log in {paths.commit_log} is not the one that {paths.checkpoint} "
            f"describes: its record at offset {across} lies across offset {derived}, where a "
            "record ended when the checkpoint was written. Nothing was changed. Perhaps two paths "
            "are swapped, or a disk is mounted in the wrong place: check commit_log_path "
            "(storePathCommitLog) and the store directory (--data, storePathRootDir)"
        )


def _record_across(log: list[Segment], size: int, position: int) -> int | None:
    """The start of the intact record that begins before this position and ends behind it."""
    at = _last_used(log, PhysicalOffset(position // size * size))
    while True:
        scan = LogScan(log, size, at, None)
        for piece in scan:
            if piece.end_offset > position:
                before = [start for start in piece.starts if piece.base + start <= position]
                across = piece.base + before[-1] if before else position
                return across if across < position else None
            if piece.end_offset == position:
                return None
        following = next_sound_record(log, size, scan.halt.offset, None)
        if following is None or following >= position:
            return None
        at = following


# Where the log ends


class _Padded:
    """A last file that a crash left too short, read as if it ended in zeros."""

    def __init__(self, file: File, size: int) -> None:
        self._file = file
        self.path = file.path
        self._map = mmap.mmap(-1, size)  # unlike a bytearray, allocates only pages that are written
        for at in range(0, file.size(), _COPY_BYTES):
            piece = file.pread(at, _COPY_BYTES)
            if any(piece):
                self._map[at : at + len(piece)] = piece

    def size(self) -> int:
        return len(self._map)

    def next_data(self, at: int) -> int:
        return self._file.next_data(at) if at < self._file.size() else len(self._map)

    def pread(self, at: int, size: int) -> bytes:
        return self._map[at : at + size]

    def close(self) -> None:
        self._file.close()


@contextmanager
def _opened(files: Files, directory: str, size: int) -> Generator[list[Segment]]:
    """The files of the log, for reading. An empty last file is left out, a short one padded."""
    log: list[Segment] = []
    starts = segments.starts_of(files, directory, size)
    try:
        for start in starts:
            path = f"{directory}/{file_name(start)}"
            file = files.open(path)
            found = file.size()
            if found > size or (found < size and start != starts[-1]):
                file.close()
                raise segments.wrong_size(path, found, size)
            if not found:
                file.close()
                break
            whole = file if found == size else cast("File", _Padded(file, size))
            log.append(Segment(whole, start, reserved=0))
        yield log
    finally:
        for segment in log:
            segment.close()


def _early_end(log: list[Segment], size: int, checkpoint: Checkpoint, now_ms: int) -> int | None:
    """The end of the last intact record, if that is before what the checkpoint vouches for."""
    if checkpoint.exact:
        return _end_below(log, size, checkpoint)
    # RocketMQ's checkpoint has no offset, but the store time of the last durable record. It has no
    # checksum: a time in the future is ignored.
    newest = checkpoint.log_timestamp
    return _end_before(log, size, newest) if 0 < newest <= now_ms else None


def _end_below(log: list[Segment], size: int, checkpoint: Checkpoint) -> int | None:
    vouched = checkpoint.flushed
    if not log:
        return 0 if vouched else None
    if vouched <= log[0].start:
        return None
    checked = vouched if checkpoint.checked else NOWHERE
    at = _record_start(log, size, checkpoint)
    while True:
        scan = LogScan(log, size, at, checked)
        for piece in scan:
            if piece.end_offset >= vouched:
                return None
        if scan.halt.offset >= vouched:
            return None
        following = next_sound_record(log, size, scan.halt.offset, checked)
        if following is None:
            return scan.halt.offset
        at = following


def _record_start(log: list[Segment], size: int, checkpoint: Checkpoint) -> PhysicalOffset:
    """An offset from which the log can be read up to what the checkpoint vouches for: the anchor if
    it exists, else the start of a file, where a record always starts."""
    begin, end = log[0].start, log[-1].start + size
    anchored = sound_record_at(log, size, checkpoint.anchor)
    if anchored is not None and checkpoint.anchor + len(anchored) <= checkpoint.flushed:
        return PhysicalOffset(checkpoint.anchor + len(anchored))
    last = (min(checkpoint.flushed, end) - 1) // size * size
    return _last_used(log, max(PhysicalOffset(last), begin))


def _last_used(log: list[Segment], start: PhysicalOffset) -> PhysicalOffset:
    """The last non-empty file up to this one."""
    used = [one.start for one in log if one.start <= start and any(one.salvage(0, 8).data)]
    return used[-1] if used else log[0].start


def _end_before(log: list[Segment], size: int, newest: int) -> int | None:
    """The end of a log that contains no record as recent as this."""
    end: int | None = None
    for segment in reversed(log):
        at: PhysicalOffset | None = segment.start
        while at is not None:
            scan = LogScan([segment], size, at, None)
            for piece in scan:
                if any(store_time_of(piece.data, one) >= newest for one in piece.starts):
                    return None
                if end is None or piece.end_offset > end >= segment.start:
                    end = piece.end_offset
            at = next_sound_record([segment], size, scan.halt.offset, None)
    return end if end is not None else (log[0].start if log else 0)


# Offsets that were used


def _ends_before(files: Files, paths: Paths, config: StoreConfig) -> dict[str, dict[int, int]]:
    """The ends of queues according to their files. A queue may have had its first messages in the
    lost part of the log; it ends at 0."""
    queues = Queues(files, paths.consume_queue, config.consume_queue_file_units, create=False)
    found: dict[str, dict[int, int]] = {}
    topics = Tables(files, paths.tables).topics.load().topic_config_table
    for topic, settings in topics.items():
        found[topic] = dict.fromkeys(range(max(settings.write_queue_nums, 0)), 0)
    try:
        for key, end in queues.ends_on_disk().items():
            found.setdefault(key.topic, {})[int(key.queue_id)] = end
    finally:
        queues.close()
    return found
