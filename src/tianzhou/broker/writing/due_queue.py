"""A priority queue of (due time, queue offset) with 16 to 32 bytes per entry.

New entries gather in a heap of Python integers. When the heap holds `RUN_COUNT` entries it becomes
a run: two sorted arrays of 8-byte numbers. The soonest entry is the smaller of the heap's first and
the first of all runs, whose heads are kept in a second heap. A run that is half consumed goes back
into the heap, so that no more than half of any array is dead, and so that the number of runs stays
proportional to the number of entries.

Every operation is bounded: the longest, turning the heap into a run, takes a few milliseconds.
"""

import heapq
from array import array
from collections.abc import Iterable, Iterator
from typing import Final

RUN_COUNT: Final = 8192
"""Entries of a run: few enough to sort in the event loop, enough that runs are few."""
OFFSET_BITS: Final = 40
"""Enough for 10^12 messages in a queue, more than a disk will ever write."""
TIME_MS_MAX: Final = (1 << 63) - 1
"""The largest time that fits into an array of 8-byte integers; a property can hold more."""
_OFFSET_MASK: Final = (1 << OFFSET_BITS) - 1


class Schedule:
    """Owner: the broker loop.

    Invariant: an offset occurs at most once; every run has at least half of its entries left
    """

    def __init__(self) -> None:
        self._fresh: list[int] = []
        """A heap of `time_ms << OFFSET_BITS | offset`."""
        self._heads: list[tuple[int, _Run]] = []
        """A heap of the runs by their first entry."""
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def push(self, time_ms: int, offset: int) -> None:
        """Add an entry. Times outside `0 <= time_ms <= TIME_MS_MAX` count as the nearer bound."""
        time_ms = min(max(0, time_ms), TIME_MS_MAX)
        heapq.heappush(self._fresh, time_ms << OFFSET_BITS | offset)
        self._count += 1
        if len(self._fresh) >= RUN_COUNT:
            self._start_run()

    def first(self) -> tuple[int, int] | None:
        """Time and offset of the soonest entry; of equal times the lowest offset comes first."""
        if not self._count:
            return None
        number = self._heads[0][0] if self._is_first_in_run() else self._fresh[0]
        return number >> OFFSET_BITS, number & _OFFSET_MASK

    def pop(self) -> tuple[int, int]:
        """Remove and return the soonest entry."""
        if not self._is_first_in_run():
            number = heapq.heappop(self._fresh)
        else:
            number, run = self._heads[0]
            run.start += 1
            if run.is_half_consumed:
                heapq.heappop(self._heads)
                self._gather(run.numbers())
            else:
                heapq.heapreplace(self._heads, (run.head, run))
        self._count -= 1
        return number >> OFFSET_BITS, number & _OFFSET_MASK

    def __iter__(self) -> Iterator[int]:
        """Offsets in the order in which they are due."""
        runs = (run.numbers() for _, run in self._heads)
        for number in heapq.merge(sorted(self._fresh), *runs):
            yield number & _OFFSET_MASK

    def lowest_offset(self) -> int | None:
        """The smallest offset of all entries, whenever they are due."""
        lows = [run.lowest_offset() for _, run in self._heads]
        lows += [number & _OFFSET_MASK for number in self._fresh]
        return min(lows, default=None)

    def discard(self, offset: int) -> bool:
        """Remove the entry with this offset; returns whether there was one. Searches all
        entries."""
        if any(number & _OFFSET_MASK == offset for number in self._fresh):
            numbers, self._fresh = self._fresh, []
        else:
            rank = next((n for n, (_, run) in enumerate(self._heads) if run.has(offset)), None)
            if rank is None:
                return False
            numbers = list(self._heads.pop(rank)[1].numbers())
            heapq.heapify(self._heads)
        self._gather(number for number in numbers if number & _OFFSET_MASK != offset)
        self._count -= 1
        return True

    def _is_first_in_run(self) -> bool:
        return bool(self._heads) and (not self._fresh or self._heads[0][0] < self._fresh[0])

    def _start_run(self) -> None:
        run = _Run(sorted(self._fresh))
        self._fresh = []
        heapq.heappush(self._heads, (run.head, run))

    def _gather(self, numbers: Iterable[int]) -> None:
        self._fresh += numbers
        if len(self._fresh) >= RUN_COUNT:
            self._start_run()
        else:
            heapq.heapify(self._fresh)


class _Run:
    """Entries in order; those before `start` are consumed."""

    __slots__ = ("_lowest_at", "offsets", "start", "times")

    def __init__(self, numbers: list[int]) -> None:
        self.times = array("q", [number >> OFFSET_BITS for number in numbers])
        self.offsets = array("q", [number & _OFFSET_MASK for number in numbers])
        self.start = 0
        self._lowest_at = -1
        """Rank of the lowest offset; unknown when it is consumed."""

    @property
    def head(self) -> int:
        return self.times[self.start] << OFFSET_BITS | self.offsets[self.start]

    @property
    def is_half_consumed(self) -> bool:
        return 2 * self.start >= len(self.times)

    def has(self, offset: int) -> bool:
        return offset in self.offsets[self.start :]

    def numbers(self) -> Iterator[int]:
        for at in range(self.start, len(self.times)):
            yield self.times[at] << OFFSET_BITS | self.offsets[at]

    def lowest_offset(self) -> int:
        if self._lowest_at < self.start:
            self._lowest_at = self.offsets.index(min(self.offsets[self.start :]))
        return self.offsets[self._lowest_at]
