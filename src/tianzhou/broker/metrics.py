"""Metric declarations: each slice declares its metrics once, next to what they measure.

A `Metric` has a name, a help text, a kind, labels and a function that reads its samples. Slices
list their metrics in `Slice.metrics`; `observe/metrics_page.py` reads all of them on a scrape and
renders the page. This module does not import the Prometheus library, so a broker that is never
scraped does not load it.
"""

import enum
import heapq
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from tianzhou.base.probe import Histogram
from tianzhou.base.steps import Steps

SERIES_MAX: Final = 500
"""Series of a family whose labels clients choose. Each costs the event loop 7 µs on a scrape."""

Series = tuple[tuple[str, ...], float]
"""The values of the labels, and the value of the series."""


class MetricKind(enum.Enum):
    GAUGE = "gauge"
    COUNTER = "counter"
    HISTOGRAM = "histogram"


class Samples(NamedTuple):
    """What one metric reads on a scrape."""

    series: Sequence[Series]
    left_out: int | None = None
    """Series dropped because of `SERIES_MAX`; None for a family without that limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One family of series."""

    name: str
    """Without the prefix `tianzhou_`; a counter also without the suffix `_total`."""
    help: str
    kind: MetricKind
    labels: tuple[str, ...] = ()
    read: Callable[[], Samples | Histogram | None]
    """Returns the current samples; None if they are not available, so that none are printed."""
    refresh: Callable[[], Steps[None]] | None = None
    """Computes what `read` returns, in steps between which the event loop serves clients. Runs
    before every scrape; several metrics may share it."""


def gauge(name: str, help_text: str, read: Callable[[], float | None]) -> Metric:
    """Declare one number that goes up and down. It is not printed while `read` returns None."""
    return Metric(name=name, help=help_text, kind=MetricKind.GAUGE, read=_single(read))


def counter(name: str, help_text: str, read: Callable[[], float]) -> Metric:
    """Declare one number that only grows."""
    return Metric(name=name, help=help_text, kind=MetricKind.COUNTER, read=_single(read))


def histogram(name: str, help_text: str, times: Histogram) -> Metric:
    """Declare durations in seconds, counted in ranges."""
    return Metric(name=name, help=help_text, kind=MetricKind.HISTOGRAM, read=lambda: times)


def gauges(
    name: str, help_text: str, labels: tuple[str, ...], read: Callable[[], Iterable[Series]]
) -> Metric:
    """Declare a gauge with labels whose values the broker chooses, so that they are few."""
    return Metric(
        name=name,
        help=help_text,
        kind=MetricKind.GAUGE,
        labels=labels,
        read=lambda: Samples(list(read())),
    )


def counters(
    name: str,
    help_text: str,
    labels: tuple[str, ...],
    read: Callable[[], Iterable[Series]],
    *,
    is_limited: bool = False,
) -> Metric:
    """Declare a counter with labels. `is_limited` keeps the largest series only, as is necessary if
    clients choose the values of the labels."""
    return Metric(
        name=name,
        help=help_text,
        kind=MetricKind.COUNTER,
        labels=labels,
        read=lambda: largest(read()) if is_limited else Samples(list(read())),
    )


def largest(series: Iterable[Series]) -> Samples:
    """Keep the series with the largest values, at most `SERIES_MAX`."""
    found = list(series)
    if len(found) <= SERIES_MAX:
        return Samples(found, left_out=0)
    kept = heapq.nlargest(SERIES_MAX, found, key=lambda row: (row[1], row[0]))
    return Samples(kept, left_out=len(found) - len(kept))


def _single(read: Callable[[], float | None]) -> Callable[[], Samples | None]:
    def read_samples() -> Samples | None:
        value = read()
        return None if value is None else Samples([((), value)])

    return read_samples
