"""The directory of a member of a Raft group: opening it, and making one of an existing store.

`open_member` recovers the directory before the member takes part.

`convert` turns the store of a broker without a group into the first member, in place. The log keeps
its bytes: `raft/plain` lists runs of its records as entries of the group, all of one term, as if
the first member had led that term alone and appended them (`raft_prefix.py`). Behind them comes one
more entry with the broker's tables. The group then starts as a group of one member, and others join
it as usual: they receive the old records like any other entries.

    1. open     the store is recovered as at any start, and locked until the end
    2. list     the log is read once, checked, and listed; synced from time to time
    3. tables   an entry with the tables is appended, and everything is synced
    4. rename   `raft/group.draft` becomes `raft/group`

Until step 4 the directory is that of the broker it was: it may be started as before, and the
conversion may be repeated, which continues the list where the last attempt synced it. From step 4
on it is a member.

The log starts behind entry 1, which does not exist: so a member without a log is always told where
to begin, and with which queue offsets.

`follow` makes a copy of that log, such as the store of a slave, a member that joins: what equals
the list of the first member, by its digests, stays.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple, Protocol

from tianzhou.base.clock import Clock
from tianzhou.base.errors import UsageError
from tianzhou.base.kinds import PhysicalOffset
from tianzhou.raft.membership import Members
from tianzhou.raft.messages import LogIndex, Start, Term
from tianzhou.raft.ready import HardState
from tianzhou.record.chunk import RecordChunk
from tianzhou.record.layout import INT32
from tianzhou.record.walk import Stop, walk
from tianzhou.replication import raft_entry
from tianzhou.replication.raft_prefix import (
    ROW_BYTES,
    PlainEntries,
    PlainRow,
    decode_rows,
    digest_of,
    row_of,
)
from tianzhou.replication.raft_settings import RaftSettings, check, first_members, text_of
from tianzhou.replication.raft_state import GroupState, RaftFiles, first_group, new_doubt
from tianzhou.replication.raft_storage import GroupLog, Opened, RaftStorage
from tianzhou.replication.witness_state import refuse_witness
from tianzhou.store.commit_log import CommitLog
from tianzhou.store.config import StoreConfig
from tianzhou.store.errors import StoreDamaged
from tianzhou.store.files import Files
from tianzhou.store.layout import paths_of
from tianzhou.store.preflight import examine
from tianzhou.store.scan import NOWHERE
from tianzhou.store.store import MessageStore

log: Final = logging.getLogger("tianzhou.raft")

ENTRY_BYTES: Final = 1 << 20
"""Records of one entry, unless a single one is larger. Followers get an entry in one message."""
_SYNC_ROWS: Final = 1024
"""Rows between two syncs: a gigabyte of the log."""
_START: Final = LogIndex(1)


def open_member(
    settings: RaftSettings, disk: Files, root: str, config: StoreConfig, *, clock: Clock
) -> Opened:
    """Recover the directory of a member. A member that may have lost data is in doubt from now on,
    and its log ends before the damage."""
    members = first_members(settings)
    refuse_witness(settings, disk, root)
    files = RaftFiles(disk, root)
    is_new = files.is_new
    state: HardState | None = HardState(doubt=0 if settings.raft_new else new_doubt())
    if is_new:
        paths = paths_of(root, config)
        examine(disk, paths, config, clock.now_ms())  # before anything is written there
        if disk.list(paths.commit_log):
            raise UsageError(
                f"{root} has the messages of a broker without a group; make it the first member "
                f"with `tianzhou store to-raft {root}`, or give this member an empty directory"
            )
        files.create(first_group(settings.raft_group, settings.raft_id, members), state)
        if state.doubt:
            log.warning(
                "raft.empty",
                extra={
                    "remedy": "the others repair this member, unless the "
                    "group is new: then start all of its members with --raft-new"
                },
            )
    else:
        state = files.load()
    visible = files.committed()[1]
    store = MessageStore(disk, root, config, clock, visible=visible, is_repaired=True)
    damage = [PhysicalOffset(found.start) for found in store.recovered.damage]
    noted = files.load_group().damaged
    damage += [PhysicalOffset(noted)] if noted >= 0 else []

    def doubt(place: PhysicalOffset) -> None:
        """Record the doubt before anything is truncated: a crash must not make the member lose the
        fact that it lost data."""
        nonlocal state
        state = (state or HardState())._replace(doubt=new_doubt())
        files.save(state)
        log.error("raft.in_doubt", extra={"place": place, "remedy": "the others repair it"})

    if state is None or damage:
        doubt(min(damage, default=PhysicalOffset(0)))
    storage = RaftStorage(
        store,
        files,
        sound_end=min(damage, default=NOWHERE),
        # A relaxed group accepts such a loss; in doubt, none of its members could be elected.
        on_loss=(lambda _: None) if settings.raft_relaxed else doubt,
    )
    assert state is not None, "a state that cannot be loaded is in doubt"
    group = storage.group
    if (group.name, group.member) != (settings.raft_group, settings.raft_id):
        raise UsageError(
            f"{root} belongs to {group.member} of group {group.name}, not to "
            f"{settings.raft_id} of {settings.raft_group}"
        )
    return Opened(store, storage, files, _not_before(state, storage))


def _not_before(state: HardState, storage: RaftStorage) -> HardState:
    """Raise the term of a lost state to that of the log."""
    term = storage.terms.last_term
    return state if state.term >= term else state._replace(term=term, vote="")


# Converting a store

Tell = Callable[[int, int], None]
"""Called with the number of bytes that are read, and of all."""


class PlainStore(GroupLog, Protocol):
    """The open store of a broker without a group."""

    @property
    def files(self) -> Files: ...
    @property
    def root(self) -> str: ...
    def flush(self) -> None:
        """Sync everything appended now."""
        ...


class Converted(NamedTuple):
    """What a conversion did."""

    start: int
    """The log offset of the first record."""
    end: int
    """Where the records from before the group end."""
    entries: int
    dropped_bytes: int = 0
    """Bytes at the end of a copy that the group sends again."""


def convert(
    store: PlainStore,
    settings: RaftSettings,
    *,
    term: int,
    tables: RecordChunk,
    tell: Tell,
) -> Converted:
    """Make an open store the first member of a group; the caller closes it. `term` is that of the
    old records, at least 1; `tables` is a record for the new leader. Raises StoreDamaged if the log
    is damaged, and other errors of the store."""
    peers = check(settings)
    _catch_up(store)
    log, member = store.log, settings.raft_id
    voters = Members(frozenset({member}), addresses=text_of({member: peers[member]}))
    start = Start(_START, Term(term))
    group = GroupState(settings.raft_group, member, ((_START, voters),), start, log.min_offset)
    files = RaftFiles(store.files, store.root, is_draft=True)
    try:
        files.begin_draft(group, HardState(Term(term), member))
        rows = PlainEntries(files.plain_file)
        _list(log, rows, start, tell)
        storage = RaftStorage(store, files)
        assert storage.last == (rows.last.index if rows.last else _START)
        end, entries = storage.end_of(storage.last), storage.last - _START
        _catch_up(store)  # the end of a file may have been removed
        storage.append(tables, Term(term), lambda _: None)
        store.flush()
        files.note_commit(storage.last, log.end)
        files.finish_draft()
    finally:
        files.close()
    return Converted(group.place, end, entries)


def follow(
    store: PlainStore, settings: RaftSettings, rows: Sequence[PlainRow], *, tell: Tell
) -> Converted:
    """Make an open store, whose log is a copy of the first member's, a member that joins. `rows`
    are the entries of the first member. Raises UsageError if the log is not a copy."""
    members = first_members(settings)
    log = store.log
    ours = [row for row in rows if row.place >= log.min_offset]
    if not ours or ours[0].place != log.min_offset or log.end == log.min_offset:
        first = f"starts at {rows[0].place}" if rows else "has no records"
        raise UsageError(
            f"the log of {store.root} starts at {log.min_offset}, and the first member's {first}; "
            "start this member with an empty directory"
        )
    equal = _equal_rows(log, ours, tell)
    start = Start(LogIndex(ours[0].index - 1), ours[0].term)
    names = settings.raft_group, settings.raft_id
    group = GroupState(*names, ((start.index, members),), start, log.min_offset)
    files = RaftFiles(store.files, store.root, is_draft=True)
    try:
        files.begin_draft(group, HardState(doubt=new_doubt()))
        listed = PlainEntries(files.plain_file)
        listed.cut(LogIndex(0))
        for row in equal:
            listed.append(row)
        listed.sync()
        dropped = log.end - listed.end
        RaftStorage(store, files)  # truncates the rest
        files.finish_draft()
    finally:
        files.close()
    return Converted(log.min_offset, listed.end, len(equal), dropped)


def _catch_up(store: PlainStore) -> None:
    """Bring queues to the end of the log, and accept appends."""
    store.flush()
    store.dispatch_all()
    store.begin_writing()


# Listing a log


def _list(log: CommitLog, rows: PlainEntries, start: Start, tell: Tell) -> None:
    """List the records of the log. Rows of an earlier attempt are kept if the last of them still
    describes the log: a log is only appended to, or truncated and appended to, so everything before
    that row is then unchanged too."""
    _drop_stale(log, rows, start)
    begin = PhysicalOffset(log.min_offset) if rows.last is None else rows.end
    index = start.index if rows.last is None else rows.last.index
    for place, data in pieces(log, begin):
        index = LogIndex(index + 1)
        rows.append(row_of(index, start.term, place, data))
        tell(rows.end - log.min_offset, log.end - log.min_offset)
        if not index % _SYNC_ROWS:
            rows.sync()
    rows.sync()


def _drop_stale(log: CommitLog, rows: PlainEntries, start: Start) -> None:
    first = rows.find(LogIndex(start.index + 1))
    if first is None or first.place != log.min_offset or first.term != start.term:
        rows.cut(LogIndex(0))
    if rows.last is not None:
        rows.cut(rows.last.index)  # it may have been the end of the log
    while (last := rows.last) is not None and not _describes(log, last):
        rows.cut(last.index)


def _describes(log: CommitLog, row: PlainRow) -> bool:
    data = log.read(row.place, row.size) if row.end <= log.end else None
    return data is not None and digest_of(data) == row.digest


def pieces(log: CommitLog, place: PhysicalOffset) -> Iterator[tuple[PhysicalOffset, bytes]]:
    """The records of the log from here on, as entries: as many as fit into `ENTRY_BYTES`, at least
    one, within a file. Raises StoreDamaged."""
    while place < log.end:
        segment = log.segment_at(place)
        assert segment is not None, f"no file has offset {place}"
        file_end = PhysicalOffset(segment.start + log.file_bytes)
        stop = min(file_end, log.end)
        data = _read(log, place, min(ENTRY_BYTES, stop - place))
        found = walk(data, 0, len(data))
        if not found.starts and found.stop is Stop.TORN and place + len(data) < stop:
            (size,) = INT32.unpack_from(data)
            data = _read(log, place, min(max(size, ENTRY_BYTES), stop - place))
            found = walk(data, 0, len(data), count_max=1)
        if found.starts:
            piece = data[: found.end]
            _check(log, piece, place)
            yield place, piece
            place = PhysicalOffset(place + found.end)
        elif found.stop is Stop.BLANK or (found.stop is Stop.END and stop == file_end):
            place = file_end
        else:
            raise _damaged(log, place, f"no record starts here ({found.stop.name.lower()})")


def _read(log: CommitLog, place: PhysicalOffset, size: int) -> bytes:
    try:
        data = log.read(place, size)
    except OSError as error:
        raise _damaged(log, place, str(error)) from error
    if data is None:
        raise _damaged(log, place, "it cannot be read")
    return bytes(data)


def _check(log: CommitLog, piece: bytes, place: PhysicalOffset) -> None:
    try:
        raft_entry.check_chunk(piece, place)
    except ValueError as error:
        raise _damaged(log, place, str(error)) from error


def _damaged(log: CommitLog, place: int, reason: str) -> StoreDamaged:
    remedy = "a group needs an intact log: `tianzhou store import` copies what is intact"
    return StoreDamaged(log.directory, f"{reason}; {remedy}", offset=place)


# Comparing a copy


def read_rows(files: Files, path: str) -> list[PlainRow]:
    """Read the list of the first member. Raises UsageError if the file is something else."""
    file = files.open(path)
    try:
        size = file.size()
        rows = decode_rows(file.pread(0, size))
    finally:
        file.close()
    if not rows or len(rows) * ROW_BYTES != size:
        raise UsageError(
            f"{path} is not the file raft/plain of a member that was converted, or is incomplete; "
            "copy it again from the directory of the first member"
        )
    return rows


def _equal_rows(log: CommitLog, rows: Sequence[PlainRow], tell: Tell) -> list[PlainRow]:
    """The entries that this log has too. Its last one may be shorter than that of the first member;
    an earlier one that differs shows that the log is not a copy."""
    equal: list[PlainRow] = []
    for row in rows:
        data = log.read(row.place, row.size) if row.end <= log.end else None
        if data is None:
            break
        if digest_of(data) != row.digest:
            raise UsageError(
                f"the log differs from that of the first member between {row.place} and {row.end}, "
                "so it is not a copy of it; nothing was changed. Start this member with an empty "
                "directory, and keep this one until you know that nothing in it is missing"
            )
        equal.append(row)
        tell(row.end - log.min_offset, log.end - log.min_offset)
    if equal and equal[-1] == rows[-1] and next(pieces(log, equal[-1].end), None) is not None:
        raise UsageError(
            f"the log continues after {equal[-1].end}, where that of the first member ended when "
            "it was converted; nothing was changed. Convert the member with the longest log first"
        )
    return equal
