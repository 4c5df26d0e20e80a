"""The disk of one simulated member: what is durable, and what is only written.

One write is on its way at a time, as the node asks for it. A crash keeps a part of it: nothing,
the state alone, or a prefix of the entries; one that is torn is noticed at recovery by its checksum
and dropped. Wiping and damage take what was durable; the member is then in doubt.

The disk of a witness is one of entries without data. It begins where it is told, without a mark,
and it is written whole or not at all.

Every entry is chained to the one before by a hash over all its bytes, so that one number stands
for a whole log up to some index.
"""

from collections.abc import Sequence
from random import Random

from tianzhou.raft.membership import Members, decode
from tianzhou.raft.messages import Entry, Kind, LogIndex, Start, Term
from tianzhou.raft.ready import Begin, HardState, Save, Saved
from tianzhou.raft.terms import UNKNOWN

ENTRY_HEADER_BYTES = 48


class RaftDisk:
    """Implements the node's `LogStorage`."""

    def __init__(self, members: Members) -> None:
        self._first_members = members
        self.state = HardState()
        self.commit = LogIndex(0)
        self.pending: Save | None = None
        self.lost: dict[LogIndex, Term] = {}
        self.lost_start = LogIndex(0)
        """What was durable before the disk was damaged, while the member is in doubt."""
        self._reset(Start(LogIndex(0), Term(0)), members, chain=0, physical=0)

    def _reset(self, start: Start, members: Members, *, chain: int, physical: int) -> None:
        self.start = start
        self._members = members
        self._log: list[Entry] = []
        self._chains = [chain]
        self._physical = [physical]

    # What is durable

    @property
    def last(self) -> LogIndex:
        return LogIndex(self.start.index + len(self._log))

    def term_at(self, index: LogIndex) -> Term:
        if index == self.start.index:
            return self.start.term
        rank = index - self.start.index - 1
        return self._log[rank].term if 0 <= rank < len(self._log) else UNKNOWN

    def has(self, index: LogIndex, term: Term) -> bool:
        """Return whether the entry is here, or was here until it expired."""
        return index < self.start.index or self.term_at(index) == term

    def chains(self, first: LogIndex, end: LogIndex) -> list[int]:
        """Chain values of the indices from `first` to before `end`."""
        base = self.start.index
        return self._chains[first - base : end - base]

    def physical_of(self, index: LogIndex) -> int:
        """Where the entry ends in the commit log."""
        return self._physical[index - self.start.index]

    def entries(self, first: LogIndex, last: LogIndex, bytes_max: int) -> Sequence[Entry]:
        at = end = first - self.start.index - 1
        assert at >= 0, f"{first} has expired; the log begins behind {self.start.index}"
        stop, log = last - self.start.index, self._log
        assert stop <= len(log), f"{last} is not on disk, which ends at {self.last}"
        while end < stop and (end == at or len(log[end].data) <= bytes_max):
            bytes_max -= len(log[end].data)
            end += 1
        return log[at:end]

    def entries_all(self) -> list[Entry]:
        return list(self._log)

    def mark(self) -> bytes:
        return b"%d %d" % (self._chains[0], self._physical[0])

    def saved(self) -> Saved:
        """What a recovery finds."""
        runs: list[tuple[LogIndex, Term]] = []
        members = [(self.start.index, self._members)]
        term = self.start.term
        for entry in self._log:
            if entry.term != term:
                term = entry.term
                runs.append((entry.index, term))
            if entry.kind is Kind.MEMBERS:
                members.append((entry.index, decode(entry.data)))
        commit = min(self.commit, self.last)
        return Saved(self.state, self.start, self.last, tuple(runs), tuple(members), commit)

    # Writing

    def write(self, save: Save) -> None:
        assert self.pending is None, "one save at a time"
        self.pending = save

    def sync(self, commit: LogIndex) -> None:
        assert self.pending is not None
        self._keep(self.pending, len(self.pending.entries))
        self.pending = None
        self.commit = max(self.commit, min(commit, self.last))

    def chain(self, before: int, entry: Entry) -> int:
        return hash((before, entry.term, entry.kind, entry.data))

    def chain_before(self, save: Save) -> int:
        """The chain value in front of the first entry of a save."""
        if save.begin is not None:
            return _places(save.begin)[0]
        return self._chains[save.entries[0].index - self.start.index - 1]

    def _keep(self, save: Save, count: int) -> None:
        if save.state is not None:
            self.state = save.state
        if save.begin is not None:
            self._begin(save.begin)
        if count:
            rank = save.entries[0].index - self.start.index - 1
            del self._log[rank:], self._chains[rank + 1 :], self._physical[rank + 1 :]
            for entry in save.entries[:count]:
                self._log.append(entry)
                self._chains.append(self.chain(self._chains[-1], entry))
                self._physical.append(self._physical[-1] + ENTRY_HEADER_BYTES + len(entry.data))

    def _begin(self, begin: Begin) -> None:
        chain, physical = _places(begin)
        self._reset(begin.start, begin.members, chain=chain, physical=physical)
        self.commit = max(self.commit, begin.start.index)

    def trim(self, index: LogIndex) -> None:
        """The oldest entries expire."""
        rank = index - self.start.index
        for entry in self._log[:rank]:
            if entry.kind is Kind.MEMBERS:
                self._members = decode(entry.data)
        self.start = Start(index, self.term_at(index))
        del self._log[:rank], self._chains[:rank], self._physical[:rank]

    # Faults

    def crash(self, dice: Random, lose_all: float) -> None:
        """Stop the machine: a part of the pending save may have arrived."""
        save, self.pending = self.pending, None
        if save is None or dice.random() < lose_all:
            return
        if self._is_of_witness(save):
            self._keep(save, len(save.entries))
            return
        if dice.random() < 0.2:
            save = save._replace(begin=None, entries=())
        # Torn at any byte: recovery keeps the whole entries before that.
        self._keep(save, dice.randrange(len(save.entries) + 1) if save.entries else 0)

    @staticmethod
    def _is_of_witness(save: Save) -> bool:
        if save.begin is not None:
            return not save.begin.mark
        return any(entry.kind is Kind.OMITTED for entry in save.entries)

    def _note_loss(self) -> None:
        assert not self.state.doubt, "damaged twice"
        self.lost = {entry.index: entry.term for entry in self._log}
        self.lost_start = self.start.index

    def had(self, index: LogIndex, term: Term) -> bool:
        """Whether this entry was durable before the damage."""
        return index <= self.lost_start or self.lost.get(index) == term

    def wipe(self, doubt: int) -> None:
        """Replace the disk by an empty one."""
        self._note_loss()
        self.state = HardState(doubt=doubt)
        self.commit = LogIndex(0)
        start = Start(LogIndex(0), Term(0))
        self._reset(start, self._first_members, chain=0, physical=0)

    def damage(self, index: LogIndex, doubt: int) -> None:
        """Make the entry at `index` unreadable. Recovery keeps the entries before it and is in
        doubt."""
        assert self.start.index < index <= self.last
        self._note_loss()
        rank = index - self.start.index - 1
        del self._log[rank:], self._chains[rank + 1 :], self._physical[rank + 1 :]
        self.state = self.state._replace(doubt=doubt)
        self.commit = min(self.commit, self.last)


def _places(begin: Begin) -> tuple[int, int]:
    """The chain value and the physical offset where a log begins."""
    chain, physical = begin.mark.split() or (b"0", b"0")
    return int(chain), int(physical)
