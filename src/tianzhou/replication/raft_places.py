"""Positions of entries in the log: exact for the newest, sampled for older ones.

From a known entry the next one is one step away, because headers contain the size of entries. So a
few numbers suffice for a log of any size, and a scan can rebuild all of them.
"""

from bisect import bisect_left, bisect_right
from typing import Final

from tianzhou.base.kinds import PhysicalOffset
from tianzhou.raft.messages import LogIndex

EXACT: Final = 4096
"""The number of newest entries with exact positions; followers mostly lack these."""
STEP_BYTES: Final = 256 * 1024
"""Distance between the known positions of older entries: some hundred steps at most."""


class Places:
    """Owner: the storage.    Invariant: indices and places grow."""

    __slots__ = ("_indices", "_places", "_thinned")

    def __init__(self) -> None:
        self._indices: list[LogIndex] = []
        self._places: list[PhysicalOffset] = []
        self._thinned = 0
        """Rows before this rank are already sampled."""

    def __len__(self) -> int:
        return len(self._indices)

    def add(self, index: LogIndex, place: PhysicalOffset) -> None:
        assert not self._indices or self._indices[-1] < index
        self._indices.append(index)
        self._places.append(place)
        if len(self._indices) - self._thinned > 2 * EXACT:
            self._thin()

    def _thin(self) -> None:
        end, last = len(self._indices) - EXACT, -STEP_BYTES
        kept: list[int] = []
        for rank in range(self._thinned, end):
            if self._places[rank] - last >= STEP_BYTES:
                last = self._places[rank]
                kept.append(rank)
        self._indices[self._thinned : end] = [self._indices[rank] for rank in kept]
        self._places[self._thinned : end] = [self._places[rank] for rank in kept]
        self._thinned += len(kept)

    def at_or_before(self, index: LogIndex) -> tuple[LogIndex, PhysicalOffset]:
        """Return the last known entry up to this one."""
        rank = bisect_right(self._indices, index) - 1
        assert rank >= 0, f"entry {index} has expired, or the log is empty"
        return self._indices[rank], self._places[rank]

    def cut(self, first: LogIndex) -> None:
        """Drop everything from `first` on."""
        rank = bisect_left(self._indices, first)
        del self._indices[rank:], self._places[rank:]
        self._thinned = min(self._thinned, rank)

    def trim(self, first: LogIndex, place: PhysicalOffset) -> None:
        """Record that the log now starts with the entry `first` at this position."""
        rank = bisect_left(self._indices, first)
        del self._indices[:rank], self._places[:rank]
        self._thinned = max(0, self._thinned - rank)
        if not self._indices or self._indices[0] != first:
            self._indices.insert(0, first)
            self._places.insert(0, place)
            self._thinned += 1

    def clear(self) -> None:
        self._indices.clear()
        self._places.clear()
        self._thinned = 0
