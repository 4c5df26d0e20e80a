"""Copy the messages of another directory into a new store, with the queue offsets they have.

The source is the directory of a DLedger member of RocketMQ, also one that was a broker without a
group before and so has its older messages in `commitlog`, or any directory with a commit log. It is
only read. Damaged parts are skipped and listed.

Records are copied as they are, except for the offset in the log, and the checksum of the whole if
they have one. Message ids that contain the offset in the log are therefore different; unique ids,
keys, queue offsets and times are the same.

The work is done in `<destination>.importing`, which becomes the destination as the last step: an
interrupted import leaves no destination, and the next attempt starts over.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from tianzhou.base.clock import Clock
from tianzhou.base.errors import UsageError
from tianzhou.base.kinds import PhysicalOffset
from tianzhou.base.limits import BLANK_BYTES_MIN
from tianzhou.record.chunk import crc_digits
from tianzhou.record.crc import crc32
from tianzhou.record.layout import BLANK, CRC_PROPERTY_BYTES, INT64, MAGIC_BLANK, position_of
from tianzhou.store import dledger, segments
from tianzhou.store.config import StoreConfig
from tianzhou.store.files import Files, list_visible, make_lasting_dirs, parent_of
from tianzhou.store.layout import paths_of
from tianzhou.store.scan import Damage, LogScan, has_checksum, next_sound_record
from tianzhou.store.store import MessageStore
from tianzhou.store.tables import Tables

_RUN_BYTES: Final = 1 << 20
_SYNC_BYTES: Final = 64 << 20
_AT_OFFSET: Final = position_of("physical_offset")
_MARKER: Final = "import"
SUFFIX: Final = ".importing"

Tell = Callable[[int, int], None]


@dataclass(slots=True)
class Imported:
    """What an import found and wrote."""

    records: int = 0
    bytes: int = 0
    queues: int = 0
    topics: int = 0
    groups: int = 0
    damage: list[Damage] = field(default_factory=list[Damage])
    uncommitted: int = 0
    """Entries that the DLedger member did not know to be committed yet."""
    set_back: int = 0
    """Stored offsets that lay beyond the end of their queue."""


class Source(NamedTuple):
    """A directory to read."""

    files: Files
    """Should not be able to write."""
    root: str


def import_store(
    source: Source, files: Files, root: str, clock: Clock, *, tell: Tell
) -> tuple[MessageStore, Imported]:
    """Copy everything into the draft of the store `root`; returns the open draft. Close it, then
    call `finish`. Raises UsageError and StoreError."""
    check_empty(files, root)
    ledger = dledger.find_ledger(source.files, source.root)
    paths = paths_of(source.root, StoreConfig())
    has_log = bool(list_visible(source.files, paths.commit_log))
    if ledger is None and not has_log:
        raise UsageError(
            f"{source.root} has no messages: neither a directory dledger-NAME/data, nor a "
            "commitlog; pass the storePathRootDir of the broker"
        )
    report = Imported()
    old = _OldLog(source.files, paths.commit_log, report) if has_log else None
    log = None if ledger is None else dledger.Ledger(source.files, ledger)
    file_bytes = log.file_bytes if log is not None else old.file_bytes if old is not None else 0
    draft = f"{root}{SUFFIX}"
    _begin_draft(files, draft)
    config = replace(StoreConfig(), commit_log_file_bytes=file_bytes)
    store = MessageStore(files, draft, config, clock)
    with ExitStack() as stack:
        stack.callback(store.abandon)
        # A log that starts at 0 has expired nothing, so its queues would have to start at 0 too.
        store.begin_again(PhysicalOffset(file_bytes))
        copy = _Copy(store, report, tell, total=_total(old) + _total(log))
        for data in old or ():
            copy.add(data)
        if log is not None and ledger is not None:
            committed = dledger.committed_index(source.files, ledger)
            for number, data in log:
                copy.add(data)
                report.uncommitted += committed is not None and number > committed
            report.damage += log.damage
        copy.write()
        store.flush()
        store.dispatch_all()
        _copy_tables(source, store.tables, report)
        beyond = store.tables.beyond(store.max_offset)
        store.tables.set_back(beyond)
        report.set_back, report.queues = len(beyond), len(store.queues)
        stack.pop_all()
    return store, report


def check_empty(files: Files, root: str) -> None:
    """Raise UsageError unless the directory can become a new store."""
    if files.list(root):
        raise UsageError(f"{root} is not empty; pass a directory that does not exist")


def finish(files: Files, root: str) -> None:
    """Give the closed draft its name."""
    draft = f"{root}{SUFFIX}"
    files.remove(f"{draft}/{_MARKER}")
    if files.exists(root):
        files.remove_dir(root)
    files.rename(draft, root)
    with suppress(PermissionError):
        files.sync_dir(parent_of(root))


def _begin_draft(files: Files, draft: str) -> None:
    """Create the directory. One that an interrupted import left is removed: it has a marker."""
    if files.list(draft):
        if not files.exists(f"{draft}/{_MARKER}"):
            raise UsageError(f"{draft} exists and was not made by an import; move it away")
        _remove_tree(files, draft, keep=_MARKER)
    make_lasting_dirs(files, draft)
    files.create(f"{draft}/{_MARKER}", 0).close()


def _remove_tree(files: Files, path: str, *, keep: str = "") -> None:
    for name in files.list(path):
        inner = f"{path}/{name}"
        if name == keep:
            continue
        if files.list(inner) or not _is_file(files, inner):
            _remove_tree(files, inner)
            files.remove_dir(inner)
        else:
            files.remove(inner)


def _is_file(files: Files, path: str) -> bool:
    try:
        files.open(path).close()
    except IsADirectoryError:
        return False
    return True


def _copy_tables(source: Source, ours: Tables, report: Imported) -> None:
    theirs = Tables(source.files, paths_of(source.root, StoreConfig()).tables)
    topics, groups = theirs.topics.load(), theirs.groups.load()
    report.topics, report.groups = (
        len(topics.topic_config_table),
        len(groups.subscription_group_table),
    )
    ours.topics.save(topics)
    ours.groups.save(groups)
    ours.consumer_offsets.save(theirs.consumer_offsets.load())
    ours.delay_offsets.save(theirs.delay_offsets.load())


def _total(log: "_OldLog | dledger.Ledger | None") -> int:
    return 0 if log is None else log.total_bytes


class _OldLog:
    """The intact records of a commit log, without DLedger."""

    def __init__(self, files: Files, directory: str, report: Imported) -> None:
        self._report = report
        first = files.open(f"{directory}/{list_visible(files, directory)[0]}")
        self.file_bytes = first.size()
        first.close()
        self._segments = segments.open_all(files, directory, self.file_bytes, heal=False)
        self.total_bytes = len(self._segments) * self.file_bytes

    def __iter__(self) -> Iterator[bytes]:
        at: PhysicalOffset | None = self._segments[0].start
        try:
            while at is not None:
                scan = LogScan(self._segments, self.file_bytes, at, None)
                for data, _, starts, end in scan:
                    for start, stop in zip(starts, [*starts[1:], end], strict=True):
                        yield data[start:stop]
                halt = scan.halt
                at = next_sound_record(self._segments, self.file_bytes, halt.offset, None)
                if at is not None:
                    self._report.damage.append(Damage(halt.offset, at, halt.reason))
        finally:
            for segment in self._segments:
                segment.close()


class _Copy:
    """Appends records to a store, in runs. Owner: `import_store`."""

    def __init__(self, store: MessageStore, report: Imported, tell: Tell, *, total: int) -> None:
        self._store = store
        self._report = report
        self._tell = tell
        self._total = total
        self._run = bytearray()
        self._unsynced = 0

    def add(self, record: bytes) -> None:
        log = self._store.log
        at = log.end + len(self._run)
        room = log.file_bytes - at % log.file_bytes
        if len(record) + BLANK_BYTES_MIN > room:
            if len(record) + BLANK_BYTES_MIN > log.file_bytes:
                reason = f"a record of {len(record)} bytes does not fit a file"
                self._report.damage.append(Damage(at, at, reason))
                return
            self._run += BLANK.pack(room, MAGIC_BLANK).ljust(room, b"\0")
            self.write()
            at = log.end
        start = len(self._run)
        self._run += record
        INT64.pack_into(self._run, start + _AT_OFFSET, at)
        if has_checksum(record, len(record)):
            with memoryview(self._run) as view:
                digits = crc_digits(crc32(view[start : len(view) - CRC_PROPERTY_BYTES]))
            self._run[-11:-1] = digits
        self._report.records += 1
        self._report.bytes += len(record)
        if len(self._run) >= _RUN_BYTES:
            self.write()

    def write(self) -> None:
        if not self._run:
            return
        store = self._store
        store.append_raw(store.log.end, self._run)
        self._unsynced += len(self._run)
        self._run = bytearray()
        self._tell(self._report.bytes, self._total)
        if self._unsynced >= _SYNC_BYTES:
            self._unsynced = 0
            store.flush()
        store.dispatch_all()
