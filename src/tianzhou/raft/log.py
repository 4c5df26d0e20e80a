"""The log as a node sees it: the part on disk, and the tail in memory."""

from collections.abc import Sequence
from typing import Protocol

from tianzhou.raft.membership import MemberHistory, Members, decode
from tianzhou.raft.messages import Entry, Kind, LogIndex, Start, Term
from tianzhou.raft.ready import Begin, Saved
from tianzhou.raft.terms import Terms


class LogStorage(Protocol):
    """Storage of the saved entries. The node only reads it."""

    def entries(self, first: LogIndex, last: LogIndex, bytes_max: int) -> Sequence[Entry]:
        """Return entries from `first` to at most `last`: as many as fit, and at least one."""
        ...

    def mark(self) -> bytes:
        """Return what another storage needs to start where this one does; see `Install`."""
        ...


class RaftLog:
    """Entries by index. Entries up to `stable` are on disk, entries up to `commit` are permanent.

    Invariant: start.index <= commit <= last, stable <= last, and `_tail` holds exactly what is
    behind `stable`. While a log is reset, stable is 0.
    """

    __slots__ = ("_saving", "_tail", "begin", "commit", "members", "stable", "storage", "terms")

    def __init__(self, storage: LogStorage, saved: Saved) -> None:
        self.storage = storage
        self.terms = Terms(saved.start, saved.terms, saved.last)
        self.members = MemberHistory(saved.members)
        self.commit = max(saved.commit, saved.start.index)
        self.stable = saved.last
        self.begin: Begin | None = None
        self._tail: list[Entry] = []
        self._saving = LogIndex(0)
        assert self.commit <= saved.last, f"committed {self.commit}, but the log ends {saved.last}"

    # Queries

    @property
    def last(self) -> LogIndex:
        return self.terms.last

    @property
    def start(self) -> Start:
        return self.terms.start

    @property
    def _tail_first(self) -> LogIndex:
        return LogIndex(self.terms.last - len(self._tail) + 1)

    def matches(self, index: LogIndex, term: Term) -> bool:
        """Whether this log equals, up to `index`, a log that has `term` at `index`."""
        return index <= self.commit or self.terms.at(index) == term

    def is_ahead_of(self, last_index: LogIndex, last_term: Term) -> bool:
        """Whether this log is more recent than one that ends like this (section 5.4.1)."""
        return (self.terms.last_term, self.terms.last) > (last_term, last_index)

    def slice(self, first: LogIndex, bytes_max: int) -> tuple[Entry, ...]:
        """Return entries from `first` on: as many as fit, and at least one."""
        if first <= self.stable:
            return tuple(self.storage.entries(first, self.stable, bytes_max))
        tail, room = self._tail, bytes_max
        at = end = first - self._tail_first
        while end < len(tail) and (end == at or len(tail[end].data) <= room):
            room -= len(tail[end].data)
            end += 1
        return tuple(tail[at:end])

    def headers(self, first: LogIndex, last: LogIndex) -> tuple[Entry, ...]:
        """Return the entries from `first` to `last` as a witness gets them, from memory. They must
        not be known to be committed: older memberships may be forgotten."""
        rows = dict(self.members.rows())
        return tuple(
            Entry(index, self.terms.at(index), Kind.MEMBERS, rows[index].encode())
            if index in rows
            else Entry(index, self.terms.at(index), Kind.OMITTED, b"")
            for index in map(LogIndex, range(first, last + 1))
        )

    # Changes

    def append(self, entries: Sequence[Entry]) -> bool:
        """Append entries. Returns whether the membership has changed."""
        before = self.members.current_index
        for entry in entries:
            assert entry.index == self.terms.last + 1
            self.terms.extend(entry.index, entry.term)
            if entry.kind is Kind.MEMBERS:
                self.members.append(entry.index, decode(entry.data))
        self._tail += entries
        return self.members.current_index != before

    def merge(self, entries: Sequence[Entry]) -> bool:
        """Append a leader's entries after truncating conflicting ones; True: new membership.

        Matching entries stay, even if the leader's message ends earlier: it may be an old message,
        and later entries may have been acknowledged already.
        """
        terms, commit = self.terms, self.commit
        for rank, entry in enumerate(entries):
            if entry.index > commit and terms.at(entry.index) != entry.term:
                changed = self._cut(entry.index)
                return self.append(entries[rank:]) or changed
        return False

    def _cut(self, first: LogIndex) -> bool:
        if first > self.terms.last:
            return False
        assert first > self.commit, f"{first} is committed (up to {self.commit}) and stays"
        if first <= self.stable:
            self.stable = LogIndex(first - 1)
            self._tail.clear()
        else:
            del self._tail[first - self._tail_first :]
        self._saving = min(self._saving, LogIndex(first - 1))
        self.terms.cut(first)
        return self.members.cut(first)

    def begin_at(self, begin: Begin) -> None:
        """Discard all entries: the log restarts where the leader's log starts."""
        self.begin = begin
        self._tail.clear()
        self._saving = self.stable = LogIndex(0)
        self.terms = Terms(begin.start, (), begin.start.index)
        self.members.replace(begin.start.index, begin.members)
        self.commit = begin.start.index

    def trim(self, index: LogIndex) -> None:
        """Record that the storage dropped everything up to `index`. A call about a log that was
        reset since, which the storage does not know yet, is ignored."""
        if index > self.start.index:
            assert index <= min(self.commit, self.stable)
            self.terms.trim(index)
            self.members.trim(index)

    def members_at_start(self) -> Members:
        return self.members.at(self.start.index)

    # Saving

    def after(self, index: LogIndex) -> tuple[Entry, ...]:
        """Return the unsaved entries after this index."""
        return tuple(self._tail[max(0, index - self._tail_first + 1) :])

    def unsaved(self) -> tuple[Entry, ...]:
        return tuple(self._tail)

    def saving(self) -> None:
        """Mark all unsaved entries as being saved."""
        self._saving = self.terms.last
        self.begin = None

    def saved(self) -> None:
        """Mark the entries being saved as durable, except those truncated meanwhile."""
        if self.begin is None and self._saving > self.stable:
            del self._tail[: self._saving - self._tail_first + 1]
            self.stable = self._saving
        self._saving = LogIndex(0)
