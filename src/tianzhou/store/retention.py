"""Retention: which files to remove, and when writes must stop. The decision is a pure function.

A file's age is the store time of its youngest message, not the time in the file system: a restored
backup keeps its age, and a test can control the clock.
"""

import enum
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import NamedTuple

from tianzhou.base.kinds import PhysicalOffset
from tianzhou.store.commit_log import CommitLog
from tianzhou.store.config import StoreConfig
from tianzhou.store.derive import last_store_time
from tianzhou.store.descriptors import is_unopened
from tianzhou.store.failpoint import failpoint
from tianzhou.store.files import Files, Usage, parent_of
from tianzhou.store.layout import Paths
from tianzhou.store.scan import sound_record_at


class Pressure(enum.Enum):
    """How full the disk is."""

    NONE = enum.auto()
    CLEAN = enum.auto()
    """Remove expired files now, whatever the hour."""
    FORCE = enum.auto()
    """Remove the oldest files, expired or not."""
    REFUSE = enum.auto()
    """Remove the oldest files, and reject writes."""


def pressure_of(used_ratio: float, config: StoreConfig) -> Pressure:
    if used_ratio > config.disk_refuse_ratio:
        return Pressure.REFUSE
    if used_ratio > config.disk_force_ratio:
        return Pressure.FORCE
    return Pressure.CLEAN if used_ratio > config.disk_clean_ratio else Pressure.NONE


def usages(files: Files, paths: Paths) -> dict[str, Usage]:
    """Usage of the disks of log, queues, index and tables, by path. Directories with the same
    parent are assumed to be on one disk."""
    parts = (paths.tables, paths.index, paths.consume_queue, paths.commit_log)
    apart = {parent_of(path): path for path in parts if files.exists(path)}
    return {path: files.usage(path) for path in apart.values()}


def usages_of_parts(files: Files, paths: Paths) -> dict[str, Usage]:
    """Usage of the disk that each part of the store is on; parts may share one."""
    parts = {
        "log": paths.commit_log,
        "queues": paths.consume_queue,
        "index": paths.index,
        "tables": paths.tables,
    }
    return {part: files.usage(path) for part, path in parts.items() if files.exists(path)}


class Verdict(NamedTuple):
    """How many of the oldest files to remove now, and why."""

    files: int
    reason: str


def verdict(
    ages_ms: list[int], pressure: Pressure, hour: int, config: StoreConfig, *, by_hand: bool
) -> Verdict:
    """Decide for the log's files, oldest first, the last (which is being written) excluded.

    Under force one file is removed at a time: the next check of the disk shows whether that was
    enough.
    """
    expired = 0
    for age_ms in ages_ms:
        if age_ms < config.retention_hours * 3_600_000:
            break
        expired += 1
    if pressure in (Pressure.FORCE, Pressure.REFUSE):
        return Verdict(max(expired, min(1, len(ages_ms))), "the disk is nearly full")
    if by_hand:
        return Verdict(expired, "by hand")
    if pressure is Pressure.CLEAN:
        return Verdict(expired, "the disk fills up")
    if hour in config.retention_at_hours:
        return Verdict(expired, "expired")
    return Verdict(0, "")


class Hold(NamedTuple):
    """The first byte of the log that must stay, and what needs it."""

    offset: int
    reason: str


class Cleaning(NamedTuple):
    """What an operator may remove now."""

    files: int
    """How many of the oldest files."""
    until: PhysicalOffset
    """Where the log starts once they are removed."""
    held: int
    """Files that are as old, and stay."""
    reason: str
    """What needs the first of these; empty if there are none."""


class Retention:
    """Owner: the store's writer."""

    def __init__(self, log: CommitLog, config: StoreConfig) -> None:
        self._log = log
        self.config = config
        self.floor: Callable[[], int | None] = lambda: None
        """Offset of the first record that expiry must keep, such as the oldest message that still
        waits for delivery; None if no record must be kept. Ignored when the disk is nearly full."""

    def keep_from(self, floor: Callable[[], int | None]) -> None:
        """Keep every record from this offset on."""
        self.floor = floor

    def due(self, pressure: Pressure, *, now_ms: int, by_hand: bool = False) -> int:
        """Return how many of the oldest files to remove now."""
        hour = time.localtime(now_ms // 1000).tm_hour
        files = verdict(self._ages(now_ms), pressure, hour, self.config, by_hand=by_hand).files
        if not files or pressure in (Pressure.FORCE, Pressure.REFUSE):
            return files
        floor = self.floor()
        if floor is None:
            return files
        size = self._log.file_bytes
        return sum(segment.start + size <= floor for segment in self._log.segments[:files])

    def cleaning(
        self, *, now_ms: int, keep_hours: int | None, holds: Iterable[Hold] = ()
    ) -> Cleaning:
        """What may be removed by hand: the files older than `keep_hours`, or than the retention if
        it is None, that end before every one of `holds`, and before the floor."""
        hours = self.config.retention_hours if keep_hours is None else keep_hours
        config = replace(self.config, retention_hours=hours)
        expired = verdict(self._ages(now_ms), Pressure.NONE, 0, config, by_hand=True).files
        floor = self.floor()
        every = list(holds)
        if floor is not None:
            every.append(Hold(floor, "messages in them wait for delivery"))
        hold = min(every, default=None)
        files = expired
        if hold is not None:
            size = self._log.file_bytes
            ends = [segment.start + size for segment in self._log.segments[:expired]]
            files = sum(end <= hold.offset for end in ends)
        reason = hold.reason if hold is not None and files < expired else ""
        return Cleaning(files, self.begin_after(files), expired - files, reason)

    def begin_after(self, files: int) -> PhysicalOffset:
        """Return where the log starts once this many of its oldest files are removed."""
        return PhysicalOffset(self._log.min_offset + files * self._log.file_bytes)

    def remove(self, *, below: int) -> int:
        """Remove the files that end at this offset or before it; return how many were removed."""
        log, before = self._log, len(self._log.segments)
        try:
            while len(log.segments) > 1 and log.min_offset + log.file_bytes <= below:
                failpoint("retention.before_remove")
                log.remove_first()
                failpoint("retention.after_remove")
        except (OSError, MemoryError) as error:
            # Without a descriptor the directory can't be synced: the next removal syncs it first.
            if not is_unopened(error):
                raise
        return before - len(log.segments)

    def _ages(self, now_ms: int) -> list[int]:
        """Return the age of the youngest message of each file but the last: the first message of
        the next file is only slightly younger. If that one is damaged, the next intact one is used,
        if there is one."""
        log, ages, age_ms = self._log, list[int](), 0
        for segment in reversed(log.segments[1:]):
            if segment.start >= log.end:
                continue
            record = sound_record_at(log.segments, log.file_bytes, segment.start)
            if record is not None:
                time_ms = last_store_time(record, [0], len(record))
                age_ms = age_ms if time_ms is None else now_ms - time_ms
            ages.append(age_ms)
        return ages[::-1]
