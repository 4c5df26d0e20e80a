"""Histograms: every duration in its range, and the totals."""

import math

from tianzhou.base.probe import SECONDS, Histogram


def test_histogram_counts_a_duration_in_every_bucket_above_it() -> None:
    times = Histogram()
    times.add(SECONDS[0])  # the upper end belongs to its range
    times.add(0.3)
    times.add(99.0, count=5)
    up_to = dict(times.up_to())
    assert up_to[SECONDS[0]] == 1
    assert up_to[0.25] == 1
    assert up_to[0.5] == 2
    assert up_to[SECONDS[-1]] == 2
    assert up_to[math.inf] == times.count == 7
    assert times.total_s == SECONDS[0] + 0.3 + 495.0
    assert times.longest_s == 99.0


def test_histogram_bucket_bounds_are_ascending() -> None:
    assert list(SECONDS) == sorted(set(SECONDS))
    assert [end for end, _ in Histogram().up_to()] == [*SECONDS, math.inf]
