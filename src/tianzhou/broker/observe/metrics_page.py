"""The `/metrics` page for Prometheus, rendered from the metrics that the slices declare.

Topics and groups are names that clients choose, so the number of series is limited: such a family
prints its largest values, and `tianzhou_series_left_out` counts the others. No other value that a
client chose becomes a label: no client id, address, tag or key.

The page is rendered in the event loop that serves clients. Computing the lag of every group in
every queue takes long if there are many, so metrics are refreshed in steps, between which the loop
serves clients.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.core import Metric as Family
from prometheus_client.registry import Collector

from tianzhou.base.probe import Histogram
from tianzhou.broker.metrics import Metric, MetricKind, Samples

PREFIX: Final = "tianzhou_"
LOOP_SHARE_MAX: Final = 0.05
"""Part of the loop's time that pages may take: more frequent scrapes get the previous page."""


class MetricsPage(Collector):
    """Renders the page and keeps it. Owner: the broker loop."""

    def __init__(self, metrics: Sequence[Metric], monotonic_s: Callable[[], float]) -> None:
        names = [metric.name for metric in metrics]
        assert len(set(names)) == len(names), "a metric is declared twice"
        self._metrics = metrics
        self._monotonic_s = monotonic_s
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        self._registry.register(self)
        self.text = b""
        """The page as it was last rendered."""
        self._valid_until_s = 0.0

    def render(self) -> bytes:
        """Return the page in the text format of Prometheus, without pausing between the steps."""
        for _ in self.steps():
            pass
        return self.text

    def steps(self) -> Iterator[None]:
        """Refresh `text` unless it is recent enough. Each step takes a few milliseconds; between
        steps the caller lets the loop serve clients."""
        begun_s = self._monotonic_s()
        if self.text and begun_s < self._valid_until_s:
            return
        spent_s = 0.0
        for refresh in dict.fromkeys(metric.refresh for metric in self._metrics if metric.refresh):
            for _ in refresh():
                spent_s += self._monotonic_s() - begun_s
                yield
                begun_s = self._monotonic_s()
        self.text = generate_latest(self._registry)
        ended_s = self._monotonic_s()
        self._valid_until_s = ended_s + (spent_s + ended_s - begun_s) / LOOP_SHARE_MAX

    def collect(self) -> Iterator[Family]:
        """Yield every family; called by the Prometheus library."""
        left_out = GaugeMetricFamily(
            f"{PREFIX}series_left_out", "Series of a family that are not printed", labels=["metric"]
        )
        for metric in self._metrics:
            samples = metric.read()
            if samples is None:
                continue
            if isinstance(samples, Histogram):
                yield _histogram_family(metric, samples)
                continue
            yield _family(metric, samples)
            if samples.left_out is not None:
                left_out.add_metric([PREFIX + metric.name], samples.left_out)
        yield left_out


def _family(metric: Metric, samples: Samples) -> Family:
    name = PREFIX + metric.name
    if metric.kind is MetricKind.COUNTER:
        family = CounterMetricFamily(name, metric.help, labels=metric.labels)
    else:
        family = GaugeMetricFamily(name, metric.help, labels=metric.labels)
    for values, number in samples.series:
        family.add_metric(values, number)
    return family


def _histogram_family(metric: Metric, times: Histogram) -> Family:
    buckets = [("+Inf" if end == float("inf") else str(end), count) for end, count in times.up_to()]
    name = PREFIX + metric.name
    return HistogramMetricFamily(name, metric.help, buckets=buckets, sum_value=times.total_s)
