"""Which term each index of the log has, as runs.

Terms never fall along a log, and a leader appends many entries in its term, so a few numbers tell
the term of every entry. Neither comparing logs nor finding where two of them part reads the disk.
"""

from bisect import bisect_right
from collections.abc import Iterable

from tianzhou.raft.messages import LogIndex, Start, Term

UNKNOWN = Term(-1)
"""The term of an index that is not in the log. Equal to no term of an entry."""


class Terms:
    """Runs of equal terms between `start` and `last`.

    Invariant: firsts and terms grow; firsts[0] == start.index.
    """

    __slots__ = ("_firsts", "_terms", "last", "last_term")

    def __init__(self, start: Start, runs: Iterable[tuple[LogIndex, Term]], last: LogIndex) -> None:
        self._firsts: list[LogIndex] = [start.index]
        self._terms: list[Term] = [start.term]
        self.last = start.index
        self.last_term = start.term
        for first, term in runs:
            self.extend(LogIndex(first - 1), self.last_term)
            self.extend(first, term)
        self.extend(last, self.last_term)

    @property
    def start(self) -> Start:
        return Start(self._firsts[0], self._terms[0])

    def extend(self, last: LogIndex, term: Term) -> None:
        """The entries behind the last one, up to the new last one, have this term."""
        assert term >= self.last_term, f"term {term} behind term {self.last_term}"
        if term > self.last_term:
            self._firsts.append(LogIndex(self.last + 1))
            self._terms.append(term)
            self.last_term = term
        self.last = last

    def at(self, index: LogIndex) -> Term:
        if index >= self._firsts[-1]:
            return self._terms[-1] if index <= self.last else UNKNOWN
        rank = bisect_right(self._firsts, index) - 1
        return self._terms[rank] if rank >= 0 else UNKNOWN

    def cut(self, first: LogIndex) -> None:
        """Forget everything from `first` on."""
        assert first > self._firsts[0]
        while self._firsts[-1] >= first:
            self._firsts.pop()
            self._terms.pop()
        self.last = LogIndex(first - 1)
        self.last_term = self._terms[-1]

    def trim(self, index: LogIndex) -> None:
        """Everything up to and including `index` is gone from the disk."""
        rank = bisect_right(self._firsts, index) - 1
        assert rank >= 0
        assert index <= self.last
        del self._firsts[:rank], self._terms[:rank]
        self._firsts[0] = index

    def last_at_most(self, index: LogIndex, term: Term) -> LogIndex:
        """The last index up to `index` whose term is at most `term`.

        Where two logs diverge, entries with a higher term than the other log has there cannot
        match, so this skips whole terms at a time. If all remaining entries are above `term`, the
        result is before the start: the logs diverge in entries that have expired.
        """
        index = min(index, self.last)
        rank = bisect_right(self._firsts, index) - 1
        while rank >= 0 and self._terms[rank] > term:
            index = LogIndex(self._firsts[rank] - 1)
            rank -= 1
        return index

    def runs(self) -> tuple[tuple[LogIndex, Term], ...]:
        """First index and term of each run; the first run begins at the start."""
        return tuple(zip(self._firsts, self._terms, strict=True))
