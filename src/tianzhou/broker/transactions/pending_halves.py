"""Undecided half messages in memory: the offset, producer group and check count of each.

Three arrays, in the order of the half queue, 14 bytes a message. A decided message is marked, and
the arrays are compacted when more than half of their rows are marked. Group names are kept once
each. Everything else about a half message is read from the log when it is needed.
"""

from array import array
from bisect import bisect_left
from collections.abc import Iterator
from itertools import compress
from typing import Final

_DECIDED: Final = 0xFFFF
CHECKS_MAX: Final = _DECIDED - 1
"""A count of checks stops here; the setting `transaction_checks_max` is far below."""
_COMPACT_MIN: Final = 1024
"""Decided rows that are not worth compacting."""


class PendingHalves:
    """Owner: the broker loop.

    Invariant: offsets ascend; `_first` is the rank of the oldest undecided row, or of the end
    """

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self._offsets = array("q")
        self._groups = array("I")
        self._checks = array("H")
        self._names: list[str] = []
        self._ids: dict[str, int] = {}
        self._first = 0
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __contains__(self, offset: int) -> bool:
        return self._find(offset) is not None

    def __iter__(self) -> Iterator[int]:
        """Offsets, oldest first. Valid until: the next change."""
        for rank in range(self._first, len(self._offsets)):
            if self._checks[rank] != _DECIDED:
                yield self._offsets[rank]

    @property
    def oldest(self) -> int | None:
        return self._offsets[self._first] if self._count else None

    def add(self, offset: int, group: str, checks: int) -> None:
        """Add a half message with an offset above all others."""
        assert not self._offsets or offset > self._offsets[-1], "the half queue is read in order"
        number = self._ids.get(group)
        if number is None:
            number = self._ids[group] = len(self._names)
            self._names.append(group)
        self._offsets.append(offset)
        self._groups.append(number)
        self._checks.append(min(max(checks, 0), CHECKS_MAX))
        self._count += 1

    def discard(self, offset: int) -> bool:
        """Remove a half message; returns whether it was undecided."""
        rank = self._find(offset)
        if rank is None:
            return False
        self._checks[rank] = _DECIDED
        self._count -= 1
        while self._first < len(self._offsets) and self._checks[self._first] == _DECIDED:
            self._first += 1
        if len(self._offsets) - self._count > max(_COMPACT_MIN, self._count):
            self._compact()
        return True

    def group(self, offset: int) -> str:
        return self._names[self._groups[self._rank(offset)]]

    def checks(self, offset: int) -> int:
        """How often its producer was checked."""
        return self._checks[self._rank(offset)]

    def set_checks(self, offset: int, checks: int) -> None:
        self._checks[self._rank(offset)] = min(checks, CHECKS_MAX)

    def _find(self, offset: int) -> int | None:
        rank = bisect_left(self._offsets, offset, self._first)
        if rank == len(self._offsets) or self._offsets[rank] != offset:
            return None
        return None if self._checks[rank] == _DECIDED else rank

    def _rank(self, offset: int) -> int:
        rank = self._find(offset)
        if rank is None:
            raise KeyError(offset)
        return rank

    def _compact(self) -> None:
        """Drop the rows of decided messages, and the names that only they had."""
        undecided = [checks != _DECIDED for checks in self._checks]
        self._offsets = array("q", compress(self._offsets, undecided))
        self._groups = array("I", compress(self._groups, undecided))
        self._checks = array("H", compress(self._checks, undecided))
        self._first = 0
        if len(self._names) > _COMPACT_MIN:
            used = {number: rank for rank, number in enumerate(sorted(set(self._groups)))}
            self._groups = array("I", map(used.__getitem__, self._groups))
            self._names = [self._names[number] for number in used]
            self._ids = {name: number for number, name in enumerate(self._names)}
