"""Where entries stand in the log: exactly for the newest, and for one of many among the older.

From an entry that is known the next is one step away, because headers say how long entries are.
So few numbers are enough for a log of any size, and all of them can be found again by a walk.
"""

from bisect import bisect_left, bisect_right
from typing import Final

from tianzhou.base.kinds import PhysicalOffset
from tianzhou.raft.messages import LogIndex

EXACT: Final = 4096
"""So many of the newest entries are known exactly: what followers lack is mostly among them."""
STEP_BYTES: Final = 256 * 1024
"""Of older entries, one in so many bytes: some hundred steps at most."""


class Places:
    """Owner: the storage.    Invariant: indices and places grow."""

    __slots__ = ("_indices", "_places", "_thinned")

    def __init__(self) -> None:
        self._indices: list[LogIndex] = []
        self._places: list[PhysicalOffset] = []
        self._thinned = 0
        """Rows before this rank are thinned out already."""

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
        """The last known entry that is not behind this one."""
        rank = bisect_right(self._indices, index) - 1
        assert rank >= 0, f"entry {index} has expired, or there are none"
        return self._indices[rank], self._places[rank]

    def cut(self, first: LogIndex) -> None:
        """Forget everything from `first` on."""
        rank = bisect_left(self._indices, first)
        del self._indices[rank:], self._places[rank:]
        self._thinned = min(self._thinned, rank)

    def trim(self, first: LogIndex, place: PhysicalOffset) -> None:
        """The log begins with the entry `first` now, which stands here."""
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
