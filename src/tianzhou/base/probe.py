"""Measurements as plain numbers, which exporters read on request; nothing is pushed."""

from bisect import bisect_left
from itertools import accumulate
from typing import Final

SECONDS: Final = (
    0.0001,
    0.00025,
    0.0005,
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
)
"""Upper bounds of the histogram buckets: three per decade, from the duration of a copy in memory to
durations longer than any timeout."""


class Histogram:
    """A histogram of durations. One thread adds; any thread may read.

    Invariant: sum(counts) == number of durations added
    """

    __slots__ = ("counts", "longest_s", "total_s")

    def __init__(self) -> None:
        self.counts = [0] * (len(SECONDS) + 1)
        self.total_s = 0.0
        self.longest_s = 0.0

    def add(self, seconds: float, count: int = 1) -> None:
        """Add `count` durations of equal length; call it once for a whole batch."""
        self.counts[bisect_left(SECONDS, seconds)] += count
        self.total_s += seconds * count
        if seconds > self.longest_s:
            self.longest_s = seconds

    @property
    def count(self) -> int:
        return sum(self.counts)

    def up_to(self) -> list[tuple[float, int]]:
        """Return for each upper bound how many durations were at most that long."""
        ends = (*SECONDS, float("inf"))
        return list(zip(ends, accumulate(self.counts), strict=True))
