"""Checking a directory without changing it: every record, and everything derived from the log."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from operator import itemgetter

from tianzhou.base.kinds import PhysicalOffset, QueueKey
from tianzhou.record.light_queues import is_light
from tianzhou.store import layout, segments
from tianzhou.store.checkpoint import UNKNOWN, Checkpoint
from tianzhou.store.config import StoreConfig
from tianzhou.store.consume_queue import UNIT, UNIT_BYTES, ConsumeQueue, Queues, gap_max
from tianzhou.store.derivation import Derivation
from tianzhou.store.derive import Derived, QueueUnits, derive
from tianzhou.store.dispatch import malformed_of
from tianzhou.store.errors import StoreDamaged
from tianzhou.store.files import Files, list_visible
from tianzhou.store.incidents import Incidents
from tianzhou.store.index_file import IndexFile
from tianzhou.store.key_index import KeyIndexView
from tianzhou.store.preflight import read_checkpoint
from tianzhou.store.scan import Damage, LogScan, Slice, next_sound_record
from tianzhou.store.segments import Segment
from tianzhou.store.tables import Tables

Progress = Callable[[int, int], None]


@dataclass(slots=True)
class QueueSummary:
    """The range of offsets in one queue."""

    topic: str
    queue_id: int
    min_offset: int
    max_offset: int


@dataclass(slots=True)
class Findings:
    """The contents of a directory, and the problems found."""

    clean: bool
    """The last stop was an orderly one."""
    log_start: int = 0
    log_end: int = 0
    log_files: int = 0
    flushed: int = 0
    derived: int = 0
    records: int = 0
    index_files: int = 0
    index_entries: int = 0
    light_queues: int = 0
    light_units: int = 0
    """Messages in light queues. Each is in a queue of its topic as well."""
    queues: list[QueueSummary] = field(default_factory=list[QueueSummary])
    damage: list[Damage] = field(default_factory=list[Damage])
    problems: list[str] = field(default_factory=list[str])
    """Sentences about files, queues and index."""
    pending_units: int = 0
    """Units that the next start will derive: the last stop was a crash."""
    deleted_units: int = 0
    """Records of topics that were deleted: the log keeps them for a while."""

    @property
    def is_sound(self) -> bool:
        return not self.damage and not self.problems


class Directory:
    """A store directory, opened for looking."""

    def __init__(self, files: Files, root: str, config: StoreConfig) -> None:
        self.files = files
        self.root = root
        self.config = config
        self.paths = layout.paths_of(root, config)
        self.checkpoint = read_checkpoint(files, self.paths.checkpoint)
        self.segments: list[Segment] = segments.open_all(
            files, self.paths.commit_log, config.commit_log_file_bytes, heal=False
        )
        self.queues = Queues(
            files, self.paths.consume_queue, config.consume_queue_file_units, create=False
        )

    def inspect(self) -> Findings:
        """Sizes and ranges, from names and ends alone."""
        found = Findings(clean=not self.files.exists(self.paths.abort))
        found.log_files = len(self.segments)
        found.log_start = self.segments[0].start if self.segments else 0
        found.flushed, found.derived = self.checkpoint.flushed, self.checkpoint.derived
        found.log_end = max(found.flushed, found.log_start)
        try:
            self.queues.load(below=PhysicalOffset(1 << 62), clean=True)
        except StoreDamaged as error:
            found.problems.append(str(error))
        for queue in sorted(self.queues, key=lambda queue: queue.key):
            queue.raise_minimum(PhysicalOffset(found.log_start))
            key = queue.key
            found.queues.append(QueueSummary(key.topic, key.queue_id, queue.min_offset, queue.end))
            if queue.is_light:
                found.light_queues += 1
                found.light_units += queue.end - queue.min_offset
        for file in self.index_files(found):
            found.index_files += 1
            found.index_entries += file.count - 1
            file.close()
        return found

    def verify(self, progress: Progress) -> Findings:
        """Read every record, and hold queues and index against it."""
        found = self.inspect()
        check = _DerivedCheck(self, found)
        total = len(self.segments) * self.config.commit_log_file_bytes
        at = PhysicalOffset(found.log_start)
        if UNKNOWN < self.checkpoint.log_begin < at:
            reason = "the first files of the log are missing"
            found.damage.append(Damage(self.checkpoint.log_begin, at, reason))
        while True:
            scan = LogScan(self.segments, self.config.commit_log_file_bytes, at)
            for piece in scan:
                found.records += len(piece.starts)
                check.slice(piece)
                progress(piece.end_offset - found.log_start, total)
            at = scan.halt.offset
            following = next_sound_record(self.segments, self.config.commit_log_file_bytes, at)
            if following is None:
                break
            found.damage.append(Damage(at, following, scan.halt.reason))
            at = following
        if at < self.checkpoint.flushed:
            found.damage.append(Damage(at, self.checkpoint.flushed, scan.halt.reason))
        found.log_end = at
        check.finish()
        progress(total, total)
        return found

    def close(self) -> None:
        self.queues.close()
        for segment in self.segments:
            segment.close()

    def index_files(self, found: Findings) -> list[IndexFile]:
        opened: list[IndexFile] = []
        directory = self.paths.index
        for name in list_visible(self.files, directory):
            try:
                file = self.files.open(f"{directory}/{name}")
                opened.append(
                    IndexFile(
                        file, slots=self.config.index_slots, entries=self.config.index_entries
                    )
                )
            except StoreDamaged as error:
                found.problems.append(str(error))
        return opened


class _DerivedCheck:
    """Compares the queues and the index with the log."""

    def __init__(self, directory: Directory, found: Findings) -> None:
        self._directory = directory
        self._found = found
        self._queues: dict[QueueKey, QueueCheck] = {}
        self._index_missing = 0
        self._index = KeyIndexView(directory.index_files(Findings(clean=True)))
        self._derivation = _derivation(directory, found)
        self._topics = set(_topics(directory, found))
        self._kept = _kept_ends(directory, found)
        self._trusted = _derived_below(directory.checkpoint)

    def slice(self, piece: Slice) -> None:
        for starts, end, delays_ms in self._derivation.parts(
            piece.starts, piece.end, base=piece.base
        ):
            self._compare(derive(piece.data, starts, end, base=piece.base, delays_ms=delays_ms))

    def _compare(self, derived: Derived) -> None:
        self._found.damage += [
            Damage(offset, offset + size, f"a malformed record: it {reason}")
            for offset, size, reason in derived.malformed
        ]
        self._check_queues(derived)
        for hash_, offset in zip(derived.key_hashes, derived.key_offsets, strict=True):
            if offset < self._trusted and not self._index.holds(hash_, offset):
                self._index_missing += 1

    def _check_queues(self, derived: Derived) -> None:
        for found in derived.runs:
            run = self._derivation.live(found)
            kept = len(run.units) if run is not None else 0
            self._found.deleted_units += (len(found.units) - kept) // UNIT_BYTES
            if run is None:
                continue
            check = self._queues.get(run.queue)
            if check is None:
                queue = self._directory.queues.get(run.queue)
                check = self._queues[run.queue] = QueueCheck(
                    queue,
                    self._directory.config.consume_queue_file_units,
                    self._owed,
                    kept=self._kept_end(run.queue),
                )
            if not check.take(run):
                self._found.damage += [
                    Damage(offset, offset + size, f"a malformed record: it {reason}")
                    for offset, size, reason in malformed_of(run)
                ]

    def _kept_end(self, key: QueueKey) -> int:
        """The end of the queue before the log lost its end: no rebuild goes below it."""
        return self._kept.get(key.topic, {}).get(int(key.queue_id), 0)

    def _owed(self, units: bytes) -> int:
        """How many of these should be in their queue. Records after the position that the queues
        have reached wait for the next start, or in a Raft group for a majority."""
        if not self._directory.checkpoint.exact:
            return len(units) // UNIT_BYTES
        return sum(offset < self._trusted for offset, _, _ in UNIT.iter_unpack(units))

    def _is_deleted(self, topic: str) -> bool:
        """After a crash the table may be older than the log; a store without a broker has none. It
        never has light queues."""
        if is_light(topic):
            return False
        return self._found.clean and bool(self._topics) and topic not in self._topics

    def finish(self) -> None:
        found, problems, missing = self._found, self._found.problems, 0
        for key, check in sorted(self._queues.items(), key=itemgetter(0)):
            found.deleted_units += check.deleted
            if not check.exists and self._is_deleted(key.topic):
                found.deleted_units += check.count
                continue
            if check.is_wrong:
                problems.append(f"queue {key.queue_id} of {key.topic} points at the wrong records")
            found.pending_units += check.pending
            missing += check.owed
        for queue in self._directory.queues:
            check = self._queues.get(queue.key)
            if check is not None and queue.end > max(check.end, self._kept_end(queue.key)):
                problems.append(
                    f"queue {queue.key.queue_id} of {queue.key.topic} ends at {queue.end}; "
                    f"the log at {check.end}"
                )
        if missing and found.clean:
            problems.append(f"{missing} units are missing in the queues")
        if self._index_missing:
            problems.append(f"{self._index_missing} keys are missing in the index")
        problems += [f"index file {name} {why}" for name, why in self._index.damaged.items()]
        self._index.close()


def _derivation(directory: Directory, found: Findings) -> Derivation:
    files, tables, levels = (
        directory.files,
        directory.paths.tables,
        directory.config.delay_levels_ms,
    )
    try:
        return Derivation(files, tables, levels)
    except StoreDamaged as error:
        found.problems.append(str(error))
        return Derivation(files, f"{tables}/none", levels)


def _topics(directory: Directory, found: Findings) -> Iterable[str]:
    tables = Tables(directory.files, directory.paths.tables)
    try:
        return tables.topics.load().topic_config_table
    except StoreDamaged as error:
        found.problems.append(str(error))
        return ()


def _kept_ends(directory: Directory, found: Findings) -> Mapping[str, Mapping[int, int]]:
    try:
        return Incidents(directory.files, directory.paths.tables).queue_ends
    except StoreDamaged as error:
        found.problems.append(str(error))
        return {}


def _derived_below(checkpoint: Checkpoint) -> int:
    """Up to where the index must be complete: nowhere without a checkpoint of Tianzhou."""
    return checkpoint.derived if checkpoint.exact else 0


class QueueCheck:
    """Takes the runs of one queue in the order of the log, and compares them with its files."""

    __slots__ = (
        "_file_units",
        "_kept",
        "_last",
        "_owed_of",
        "_queue",
        "count",
        "deleted",
        "end",
        "is_wrong",
        "owed",
        "pending",
    )

    def __init__(
        self,
        queue: ConsumeQueue | None,
        file_units: int,
        owed_of: Callable[[bytes], int],
        *,
        kept: int = 0,
    ) -> None:
        """`owed_of` returns how many of some units should be in the queue by now. Offsets below
        `kept` may belong to lost messages."""
        self._queue = queue
        self._kept = kept
        self._file_units = file_units
        self._owed_of = owed_of
        self.end = 0
        self._last: int | None = None
        """The log offset of the newest message; None before the first."""
        self.count = 0
        self.is_wrong = False
        self.pending = self.owed = 0
        """Units that the queue lacks, and how many of these it should have."""
        self.deleted = 0
        """Units from before the topic was deleted and created again."""

    @property
    def exists(self) -> bool:
        return self._queue is not None

    def take(self, run: QueueUnits) -> bool:
        """False for a run that dispatch rejected because its rank is impossible."""
        first, units = int(run.first), run.units
        offset, size, _ = UNIT.unpack_from(units)
        if self.end < self._kept <= first:
            self.end = self._kept
        if self._last is not None:
            if first < self.end and offset > self._last:
                self._begin_again()
            elif first - self.end > gap_max(self._last, offset, size, self._file_units):
                return False
            elif first < self.end:
                # Two records claim the same rank; the first one keeps it.
                units = units[(self.end - first) * UNIT_BYTES :]
                first = self.end
        if units:
            self._compare(first, units)
            self.end = first + len(units) // UNIT_BYTES
            self._last = UNIT.unpack_from(units, len(units) - UNIT_BYTES)[0]
        return True

    def _begin_again(self) -> None:
        self.deleted += self.count
        self.count = self.end = self.pending = self.owed = 0
        self.is_wrong = False

    def _compare(self, first: int, units: bytes) -> None:
        count = len(units) // UNIT_BYTES
        self.count += count
        queue = self._queue
        have = min(max((queue.end if queue else 0) - first, 0), count)
        if queue is not None and have and queue.read(first, have) != units[: have * UNIT_BYTES]:
            self.is_wrong = True
        self.pending += count - have
        self.owed += self._owed_of(units[have * UNIT_BYTES :])
