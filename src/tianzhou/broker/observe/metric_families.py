"""Families of Prometheus with our prefix, made of plain numbers."""

from typing import Final

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)

from tianzhou.base.probe import Histogram

PREFIX: Final = "tianzhou_"


def gauge(name: str, help_: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(PREFIX + name, help_, value=value)


def counter(name: str, help_: str, value: float) -> CounterMetricFamily:
    return CounterMetricFamily(PREFIX + name, help_, value=value)


def gauges(name: str, help_: str, *labels: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(PREFIX + name, help_, labels=labels)


def counters(name: str, help_: str, *labels: str) -> CounterMetricFamily:
    return CounterMetricFamily(PREFIX + name, help_, labels=labels)


def histogram(name: str, help_: str, times: Histogram) -> HistogramMetricFamily:
    buckets = [(_end(end), count) for end, count in times.up_to()]
    return HistogramMetricFamily(PREFIX + name, help_, buckets=buckets, sum_value=times.total_s)


def _end(seconds: float) -> str:
    return "+Inf" if seconds == float("inf") else str(seconds)
