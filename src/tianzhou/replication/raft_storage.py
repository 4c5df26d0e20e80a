"""The log of a Raft group in the commit log of a store: reading entries, writing and cutting them.

Where possible the log is written before the node requests it: a leader appends its clients' chunks
at once, because only then are their positions known. The node then waits for the disk.
"""

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, Protocol

from tianzhou.base.kinds import PhysicalOffset, QueueKey, QueueOffset, queue_key
from tianzhou.base.limits import BLANK_BYTES_MIN
from tianzhou.raft import membership
from tianzhou.raft.membership import MemberHistory
from tianzhou.raft.messages import Entry, Kind, LogIndex, Start, Term
from tianzhou.raft.ready import Begin, HardState, Saved
from tianzhou.raft.terms import Terms
from tianzhou.record.chunk import RecordChunk, join
from tianzhou.record.errors import RecordTooLarge
from tianzhou.record.layout import BLANK, MAGIC_BLANK
from tianzhou.replication import raft_entry, raft_prefix
from tianzhou.replication.raft_entry import (
    HEADER_BYTES,
    Entries,
    Found,
    Header,
    Places,
    header_chunk,
)
from tianzhou.replication.raft_prefix import PlainEntries
from tianzhou.replication.raft_state import (
    GroupState,
    Mark,
    Marks,
    RaftFiles,
    Spacing,
)
from tianzhou.store.commit_log import Appended, LogSpan
from tianzhou.store.consume_queue import MISSING, Queues
from tianzhou.store.derive import store_time_of
from tianzhou.store.errors import DiskFull, StoreDamaged
from tianzhou.store.protocols import ReplicaLog
from tianzhou.store.scan import NOWHERE
from tianzhou.store.store import MessageStore

_SPACING: Final = Spacing()
_CHECKED: Final = (Kind.CHUNK, Kind.PLAIN)
ENTRY_BYTES_MAX: Final = 4 << 20
"""A larger chunk is split into several entries, so that followers receive it in parts."""


class GroupLog(ReplicaLog, Protocol):
    """What the log of a group needs from a store."""

    queues: Queues

    def append(self, chunk: RecordChunk) -> Appended:
        """See `LogAppender`."""
        ...

    def min_offset(self, key: QueueKey) -> QueueOffset:
        """See `QueueReader`."""
        ...


class RaftStorage:
    """Owner: the broker loop.

    Invariant: terms.last is the last entry of the log, and nothing of the log lies behind its end.
    """

    def __init__(
        self,
        store: GroupLog,
        files: RaftFiles,
        *,
        sound_end: PhysicalOffset = NOWHERE,
        on_loss: Callable[[PhysicalOffset], None] = lambda _end: None,
        spacing: Spacing = _SPACING,
    ) -> None:
        """Use the log up to `sound_end` and truncate the rest. `on_loss` is called first if the
        rest has entries that the member may have acknowledged."""
        self._on_loss = on_loss
        self._store = store
        self._files = files
        self.group: GroupState = files.load_group()
        self._places = Places()
        self._plain = PlainEntries(files.plain_file)
        self._entries = Entries(store.log, self._places, self._plain)
        self._marks = Marks(files.marks_file, spacing.step_bytes)
        self.terms = Terms(self.group.start, (), self.group.start.index)
        self.members = MemberHistory(self.group.members[:1])
        self._time_ms = 0
        self._end = store.log.min_offset
        """Where the last entry ends. The log may end later, with a blank record, if the disk was
        full when the next entry was written."""
        self._load(sound_end, spacing.walk_bytes)

    # Queries

    @property
    def last(self) -> LogIndex:
        return self.terms.last

    def saved(self, state: HardState) -> Saved:
        """What the node needs to start."""
        commit = min(self._files.committed()[0], self.last)
        start, runs, rows = self.terms.start, self.terms.runs()[1:], self.members.rows()
        return Saved(state, start, self.last, runs, rows, max(commit, start.index))

    def entries(self, first: LogIndex, last: LogIndex, bytes_max: int) -> Sequence[Entry]:
        """See `LogStorage`."""
        found, room = self._entries.find(first), bytes_max
        rows: list[Entry] = []
        while True:
            rows.append(self._decode(found))
            room -= found.header.payload_bytes
            if found.header.index == last:
                return rows
            found = self._entries.next(found)
            if found.header.payload_bytes > room:
                return rows

    def _decode(self, found: Found) -> Entry:
        """Read an entry. Raises StoreDamaged if the bytes on disk are not those that were
        written."""
        header, data, place = found.header, found.data, found.place
        if header.kind is Kind.PLAIN:
            entry, records = raft_prefix.encode(header.index, header.term, place, data), data
        else:
            entry, place = raft_entry.decode(header, data, 0), PhysicalOffset(place + HEADER_BYTES)
            records = entry.data
        if entry.kind in _CHECKED and found.place < self._store.log.hot_from:
            try:
                raft_entry.check_chunk(records, place)
            except ValueError as error:
                raise StoreDamaged(
                    self._store.log.directory, str(error), offset=found.place
                ) from error
        return entry

    def note_damage(self, place: int) -> None:
        """Mark damage: the next start truncates the log before the entry at this position."""
        self.group = self.group._replace(damaged=place)
        self._files.save_group(self.group)

    def end_of(self, index: LogIndex) -> PhysicalOffset:
        """Where the entry ends in the commit log."""
        if index == self.terms.start.index:
            return self._store.log.min_offset
        return self._entries.find(index).end

    def _time_of(self, index: LogIndex) -> int:
        """The store timestamp of an entry, which the next one may need."""
        if index == self.terms.start.index:
            return 0
        return self._entries.find(index).time_ms

    def mark(self) -> bytes:
        """Return where another log must start to match this one, and its queue offsets there."""
        store = self._store
        minimums = [(queue.key, store.min_offset(queue.key)) for queue in store.queues]
        ranks = [(key.topic, key.queue_id, minimum) for key, minimum in minimums if minimum > 0]
        return raft_entry.encode_mark(store.log.min_offset, ranks)

    # Starting

    def _load(self, sound_end: PhysicalOffset, walk_bytes: int) -> None:
        """Scan the headers, truncate an incomplete entry, and complete an interrupted reset."""
        log, group = self._store.log, self.group
        if log.min_offset < group.place or log.end < group.place:
            self._store.begin_again(group.place)
        self._keep_ranks()
        self._begin_behind(group.start)
        sound_end, is_lost = min(log.end, sound_end), False
        place = self._resume(sound_end, PhysicalOffset(sound_end - walk_bytes))
        place = self._pass_plain(place, sound_end)
        while place + HEADER_BYTES <= sound_end:
            found = self._entries.maybe_at(place)
            if found is None:
                # Recovery leaves whole records, and the first of each entry is its header.
                is_lost = True
                break
            header = found.header
            if found.end > sound_end:
                break  # the entry is incomplete, so it was never acknowledged
            if place == log.min_offset:
                self._begin_behind(Start(LogIndex(header.index - 1), header.prev_term))
            if header.index != self.last + 1 or header.prev_term != self.terms.last_term:
                raise StoreDamaged(
                    log.directory,
                    f"entry {header.index} of term {header.term} stands behind "
                    f"{self.last}; remove the directory: the others of the group repair it",
                    offset=place,
                )
            self._note(found, found.time_ms)
            place = self._entries.behind(found)
        if is_lost or self.last < self._files.committed()[0]:
            self._on_loss(self._end)
        self._drop_rest()
        if group.damaged >= 0:
            self.group = group._replace(damaged=-1)
            self._files.save_group(self.group)

    def _resume(self, sound_end: PhysicalOffset, walk_from: PhysicalOffset) -> PhysicalOffset:
        """Use the marks before this position; returns where to continue the scan."""
        start, marks = self._store.log.min_offset, self._marks.load()
        live = [mark for mark in marks if mark.place >= start]
        expired = len(marks) - len(live)
        while live and not (live[-1].place <= walk_from and self._is_there(live[-1], sound_end)):
            live.pop()
        first = self._entries.maybe_at(start)
        if not live or first is None:
            self._marks.keep((), expired=0)
            return start
        self._marks.keep(live, expired=expired)
        self._begin_behind(Start(LogIndex(first.header.index - 1), first.header.prev_term))
        self._pass(first.header, start)
        for mark in live:
            if mark.place > start:
                # No entry that needs a mark lies between two marks.
                self.terms.extend(LogIndex(mark.index - 1), self.terms.last_term)
                self._pass(mark, mark.place)
        found = self._entries.at(live[-1].place)
        self._end, self._time_ms = found.end, found.time_ms
        return self._entries.behind(found)

    def _pass_plain(self, place: PhysicalOffset, sound_end: PhysicalOffset) -> PhysicalOffset:
        """Pass the entries without headers that start here; returns where to continue the scan."""
        self._plain.keep_until(sound_end)
        first, last = self._plain.at(place), self._plain.last
        if first is None or last is None:
            return place
        self._begin_behind(Start(LogIndex(first.index - 1), first.term))
        self.terms.extend(last.index, last.term)
        found = self._entries.at(last.place)
        self._end, self._time_ms = found.end, found.time_ms
        return self._entries.behind(found)

    def _is_there(self, mark: Mark, sound_end: PhysicalOffset) -> bool:
        found = self._entries.maybe_at(mark.place)
        if found is None or found.end > sound_end:
            return False
        return (found.header.index, found.header.term) == (mark.index, mark.term)

    def _pass(self, entry: Mark | Header, place: PhysicalOffset) -> None:
        """An entry of the log, known by its header or a mark."""
        self._places.add(entry.index, place)
        self.terms.extend(entry.index, entry.term)
        if entry.kind is Kind.MEMBERS:
            found = self._entries.at(place)
            data = raft_entry.decode(found.header, found.data, 0).data
            self.members.append(entry.index, membership.decode(data))

    def _keep_ranks(self) -> None:
        """Continue queues whose messages had expired on the leader at their offsets there, not at
        0: groups that had read them would skip new messages."""
        for topic, queue_id, rank in self.group.ranks:
            queue = self._store.queues.obtain(queue_key(topic, queue_id))
            if queue.end < rank:
                queue.append(QueueOffset(rank - 1), MISSING)

    def _drop_rest(self) -> None:
        """Remove a blank record after the last entry: the next entry may fit before it."""
        if self._store.log.end > self._end:
            self._store.truncate(self._end)

    def _begin_behind(self, start: Start) -> None:
        """Derive the start of the log from its oldest entry."""
        self.terms = Terms(start, (), start.index)
        rows = [row for row in self.group.members if row[0] <= start.index]
        self.members = MemberHistory(rows[-1:])
        self._end = self._store.log.min_offset

    def _note(self, found: Found, time_ms: int) -> None:
        header = found.header
        self._end, self._time_ms = found.end, time_ms
        if header.kind is Kind.PLAIN:
            self.terms.extend(header.index, header.term)  # `raft/plain` has their positions
            return
        self._pass(header, found.place)
        self._marks.note(Mark(header.index, found.place, header.term, header.kind))

    # Writing

    def append(
        self, chunk: RecordChunk, term: Term, propose: Callable[[bytes], object]
    ) -> Appended:
        """Write a leader's chunk as one entry or several; returns where the records are. Each entry
        is proposed once it is in the log, so that log and node agree even if there is no room for
        the next entry. Raises the same errors as `LogAppender.append`."""
        spans: list[LogSpan] = []
        offsets: list[int] = []
        first = 0
        while first < len(chunk):
            end = self._fitting(chunk, first)
            part = _part(chunk, first, end)
            appended, place = self._append(part, term)
            offsets += appended.queue_offsets[1:]
            segment = appended.spans[0].segment
            spans.append(LogSpan(segment, PhysicalOffset(place + HEADER_BYTES), first, end))
            propose(self.entries(self.last, self.last, 0)[0].data)
            first = end
        return Appended(self._store.log.end, offsets, spans, chunk.starts)

    def _fitting(self, chunk: RecordChunk, first: int) -> int:
        room = self._store.log.file_bytes - HEADER_BYTES - BLANK_BYTES_MIN
        end = chunk.fitting(first, min(room, ENTRY_BYTES_MAX))
        if end > first:
            return end
        size = chunk.ends[first] - chunk.starts[first]
        if size > room:
            raise RecordTooLarge(
                f"a record of {size} bytes does not fit a file of {self._store.log.file_bytes}; "
                "raise commit_log_file_bytes for a new group"
            )
        return first + 1

    def _append(self, chunk: RecordChunk, term: Term) -> tuple[Appended, PhysicalOffset]:
        header = Header(
            Kind.CHUNK,
            LogIndex(self.last + 1),
            term,
            self.terms.last_term,
            len(chunk.data),
            len(chunk),
        )
        log = self._store.log
        if log.end > self._end and self._fits(header.entry_bytes):
            raise DiskFull("the next log file could not be created; free some disk space")
        place = self._make_room(header.entry_bytes)
        joined = join([header_chunk(header), chunk])
        appended = self._store.append(joined)
        assert appended.spans[0].offset == place
        assert len(appended.spans) == 1, "an entry never spans two files"
        self._note(self._entries.at(place), store_time_of(joined.data, 0))
        return appended, place

    def write(self, entries: Sequence[Entry]) -> PhysicalOffset:
        """Append entries that the log does not have yet, after truncating conflicting ones; returns
        where the last one ends. Raises ValueError if they do not fit this log, DiskFull, and other
        errors of the store."""
        for entry in entries:
            if self.terms.at(entry.index) == entry.term and entry.index <= self.last:
                continue
            if entry.index <= self.last:
                self.cut(entry.index)
            if entry.kind is Kind.PLAIN:
                self._write_plain(entry)
            else:
                self._write(entry)
        last = entries[-1].index
        if self.last > last:
            self.cut(LogIndex(last + 1))
        self._plain.sync()
        return self.end_of(last)

    def _write(self, entry: Entry) -> None:
        assert entry.index == self.last + 1, f"{entry.index} behind {self.last}"
        store = self._store
        size = raft_entry.size_of(entry)
        if store.log.end > self._end and self._fits(size):
            self._drop_rest()
        place = self._make_room(size)
        data, time_ms = raft_entry.encode(
            entry, prev_term=self.terms.last_term, place=place, time_ms=self._time_ms
        )
        if store.is_writing:
            store.append_between(data, timestamp=time_ms)
        else:
            store.append_raw(place, data)
        self._note(self._entries.at(place), time_ms)
        if entry.kind is Kind.MEMBERS:
            self._save_members()

    def _write_plain(self, entry: Entry) -> None:
        place, records = raft_prefix.decode(entry)
        raft_entry.check_chunk(records, place)
        log = self._store.log
        if log.end > self._end and place < log.end:
            self._drop_rest()
        if place > log.end and not place % log.file_bytes:
            self._fill_file()
        if place != log.end:
            raise ValueError(f"entry {entry.index} is for {place}, and the log ends at {log.end}")
        self._store.append_raw(place, records)
        self._plain.append(raft_prefix.row_of(entry.index, entry.term, place, records))
        found = self._entries.at(place)
        self._note(found, found.time_ms)

    def _make_room(self, size: int) -> PhysicalOffset:
        """Return the position of the next entry: in this file, or in the next one if it does not
        fit."""
        log = self._store.log
        if log.end == self._end and not self._fits(size):
            self._fill_file()
        return log.end

    def _fill_file(self) -> None:
        log = self._store.log
        room = log.file_bytes - log.end % log.file_bytes
        blank = BLANK.pack(room, MAGIC_BLANK).ljust(room, b"\0")
        self._store.append_between(blank, timestamp=self._time_ms)

    def _fits(self, size: int) -> bool:
        """Whether an entry is in the same file as its predecessor; all members follow this rule."""
        used = self._end % self._store.log.file_bytes
        return not used or used + size + BLANK_BYTES_MIN <= self._store.log.file_bytes

    def cut(self, first: LogIndex) -> None:
        """Truncate entries from `first` on, which were never committed."""
        self._end = self.end_of(LogIndex(first - 1))
        self._time_ms = self._time_of(LogIndex(first - 1))
        self._store.truncate(self._end)
        self._places.cut(first)
        self._plain.cut(first)
        self._marks.cut(first)
        self.terms.cut(first)
        if self.members.cut(first):
            self._save_members()

    def begin(self, begin: Begin) -> None:
        """Discard everything, and restart where the leader's log starts."""
        place, ranks = raft_entry.decode_mark(begin.mark)
        self._plain.cut(LogIndex(0))
        self.group = self.group._replace(
            members=((begin.start.index, begin.members),),
            start=begin.start,
            place=place,
            ranks=ranks,
        )
        self._files.save_group(self.group)  # a start finishes what a crash interrupts
        self._store.begin_again(self.group.place)
        self._keep_ranks()
        self._places.clear()
        self._marks.keep((), expired=0)
        self._begin_behind(begin.start)
        self._time_ms = 0

    def trim(self) -> LogIndex:
        """Drop entries whose files the store has deleted; returns the last index that was
        dropped."""
        place = self._store.log.min_offset
        if self._end > place:
            first = self._entries.at(place).header.index
            index = LogIndex(first - 1)
            if index > self.terms.start.index:
                self._places.trim(first, place)
                self.terms.trim(index)
                self.members.trim(index)
        return self.terms.start.index

    def _save_members(self) -> None:
        self.group = self.group._replace(members=self.members.rows())
        self._files.save_group(self.group)


def _part(chunk: RecordChunk, first: int, end: int) -> RecordChunk:
    if first == 0 and end == len(chunk):
        return chunk
    base, stop = chunk.starts[first], chunk.ends[end - 1]
    return RecordChunk(
        chunk.data[base:stop],
        [start - base for start in chunk.starts[first:end]],
        [at - base for at in chunk.ends[first:end]],
        chunk.queues[first:end],
        has_crc=chunk.has_crc,
        has_long_hosts=chunk.has_long_hosts,
        rooms=[room.moved(-first, -base) for room in chunk.rooms if first <= room.row < end],
    )


class Opened(NamedTuple):
    """The recovered state of a member."""

    store: MessageStore
    storage: RaftStorage
    files: RaftFiles
    state: HardState
