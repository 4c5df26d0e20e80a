"""The `/metrics` page for Prometheus, generated from plain numbers on each scrape.

Each metric answers one question; docs/metrics.md lists them, and a test compares that page with
this output.

Topics and groups are names that clients may choose, so the number of series is bounded: each family
prints the rows with the largest values, and `tianzhou_series_left_out` counts the others. Nothing
else that a client chose becomes a label: no client id, address, tag or key.

The page is generated in the loop that serves clients. Computing the lag of every group in every
queue takes long with many queues, so it runs in steps, between which the loop serves clients.
"""

import heapq
from collections.abc import Iterator
from itertools import islice
from typing import Final, NamedTuple

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

import tianzhou
from tianzhou.base.steps import Steps
from tianzhou.broker.groups.lags import ROWS_PER_STEP, Lag
from tianzhou.broker.observe.findings import Kind
from tianzhou.broker.observe.metric_families import (
    PREFIX,
    counter,
    counters,
    gauge,
    gauges,
    histogram,
)
from tianzhou.broker.observe.metric_sources import MetricSources
from tianzhou.broker.observe.replication_metrics import ReplicationMetrics
from tianzhou.wire._generated_codes import ResponseCode

ROWS_MAX: Final = 500
"""Rows of one family. A page is made in the loop that serves clients, and costs it 7 µs a row."""
SHARE_MAX: Final = 0.05
"""Of the loop's time that pages may take: who asks more often gets the last one again."""

_CODES: Final = {code.value: code.name.lower() for code in ResponseCode}


GAUGES: Final = {
    "connections": "Open connections",
    "held_pulls": "Pulls that wait for a message",
    "waiting_sends": "Rows of sends whose answers wait for the disk",
    "pending_timers": "Messages that wait for their moment",
    "pending_transactions": "Transactions that nobody decided yet",
    "parked_transactions": "Transactions that no producer decided and that are no longer checked",
}
COUNTERS: Final = {
    "connections_refused": "Connections closed because the limit was reached",
    "connections_expired": "Connections closed because no valid frame arrived in time",
    "connections_broken": "Connections that were closed because what came was no sound frame",
    "requests_failed": "Requests that ended in an error of the broker's own",
}


class _Lagging(NamedTuple):
    """The lag of all groups."""

    totals: dict[tuple[str, str], int]
    """Messages, by group and topic."""
    shown: list[Lag]
    ages_ms: list[int]
    """Ages for the rows that are shown."""
    left_out: int


class Metrics(Collector):
    """Owner: the broker loop."""

    def __init__(self, metric_sources: MetricSources) -> None:
        self.metric_sources = metric_sources
        self._left_out: dict[str, int] = {}
        self._lagging = _Lagging({}, [], [], 0)
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        self._registry.register(self)
        self.text = b""
        """The last page."""
        self._page_until_s = 0.0

    def page(self) -> bytes:
        """Return the page in the text format of Prometheus."""
        for _ in self.steps():
            pass
        return self.text

    def steps(self) -> Iterator[None]:
        """Refresh `text` unless it is recent enough. Each step takes a few milliseconds; between
        steps the caller lets the loop serve clients."""
        monotonic_s = self.metric_sources.clock.monotonic_s
        begun_s = monotonic_s()
        if self.text and begun_s < self._page_until_s:
            return
        taken_s = 0.0
        for _ in self._find_lags():
            taken_s += monotonic_s() - begun_s
            yield
            begun_s = monotonic_s()
        self.text = generate_latest(self._registry)
        ended_s = monotonic_s()
        self._page_until_s = ended_s + (taken_s + ended_s - begun_s) / SHARE_MAX

    def _find_lags(self) -> Steps[None]:
        lags, totals = self.metric_sources.lags, dict[tuple[str, str], int]()
        shown, count = list[Lag](), 0
        every = lags.all()
        while rows := list(islice(every, ROWS_PER_STEP)):
            for lag in rows:
                place = (lag.group, lag.queue.topic)
                totals[place] = totals.get(place, 0) + lag.messages
            shown = lags.largest([*shown, *rows], ROWS_MAX)
            count += len(rows)
            if len(rows) == ROWS_PER_STEP:
                yield
        ages_ms = yield from lags.ages_ms(shown, self.metric_sources.clock.now_ms())
        self._lagging = _Lagging(totals, shown, ages_ms, count - len(shown))

    def collect(self) -> Iterator[Metric]:
        self._left_out = {}
        yield from self._about()
        yield from self._traffic()
        yield from self._lag()
        yield from self._times()
        yield from self._store()
        yield from self._clients()
        yield from self._watched()
        yield from ReplicationMetrics(
            self.metric_sources.replication, self.metric_sources.raft
        ).families()
        left = GaugeMetricFamily(
            f"{PREFIX}series_left_out", "Rows of a family that are not printed", labels=["metric"]
        )
        for name, count in self._left_out.items():
            left.add_metric([name], count)
        yield left

    # Families, by the question they answer

    def _about(self) -> Iterator[Metric]:
        config = self.metric_sources.config
        about = {"version": tianzhou.__version__, "cluster": config.cluster, "broker": config.name}
        yield InfoMetricFamily(f"{PREFIX}broker", "Which broker this is", value=about)
        yield gauge("topics", "Topics of this broker", len(self.metric_sources.topics))
        yield gauge(
            "groups", "Consumer groups of this broker", len(self.metric_sources.groups.all())
        )

    def _traffic(self) -> Iterator[Metric]:
        stats = self.metric_sources.stats
        yield counter("messages_in", "Messages stored", stats.puts.count)
        yield counter("message_bytes_in", "Their size in the log", stats.puts.size)
        yield counter("messages_out", "Messages given to consumers", stats.gets.count)
        yield counter("message_bytes_out", "Their size in the log", stats.gets.size)
        pulls = counters("pulls", "Pulls answered, by whether they found anything", "result")
        pulls.add_metric(["found"], stats.found_count)
        pulls.add_metric(["nothing"], stats.missed_count)
        yield pulls
        topics = counters("topic_messages_in", "Messages stored, by topic", "topic")
        rows = [(flow.count, (topic,)) for topic, flow in stats.topic_puts.items()]
        self._fill(topics, rows)
        yield topics
        for name, help_, flows in (
            ("group_messages_out", "Messages given to consumers, by group", stats.group_gets),
            ("group_messages_sent_back", "Messages to be retried", stats.group_send_backs),
        ):
            family = counters(name, help_, "group", "topic")
            self._fill(family, [(flow.count, (group, topic))
                                for (topic, group), flow in flows.items()])  # fmt: skip
            yield family

    def _lag(self) -> Iterator[Metric]:
        totals, shown, ages_ms, left_out = self._lagging
        family = gauges("group_lag_messages", "Messages that wait for a group", "group", "topic")
        self._fill(family, [(messages, place) for place, messages in totals.items()])
        yield family
        labels = ("group", "topic", "queue")
        count = gauges("queue_lag_messages", "Messages that wait in a queue for a group", *labels)
        age = gauges("queue_lag_age_seconds", "How long the oldest of them has waited", *labels)
        for lag, age_ms in zip(shown, ages_ms, strict=True):
            values = [lag.group, lag.queue.topic, str(lag.queue.queue_id)]
            count.add_metric(values, lag.messages)
            age.add_metric(values, age_ms / 1000)
        self._left_out[count.name] = self._left_out[age.name] = left_out
        yield count
        yield age

    def _times(self) -> Iterator[Metric]:
        metric_sources = self.metric_sources
        yield histogram("append_seconds", "Writing a chunk of messages to the log",
                         metric_sources.stats.put_seconds)  # fmt: skip
        yield histogram("read_seconds", "Finding the messages of a pull",
                         metric_sources.stats.get_seconds)  # fmt: skip
        yield histogram("flush_seconds", "Syncing the log to the medium",
                         metric_sources.store.flush_times)  # fmt: skip
        yield histogram("dispatch_delay_seconds", "From append to visible, by chunk",
                         metric_sources.writer.dispatch_times)  # fmt: skip
        yield histogram("loop_delay_seconds", "How late the heartbeat of the loop was",
                         metric_sources.loop_delays)  # fmt: skip

    def _disk(self) -> Iterator[Metric]:
        """Nothing if the disk is gone: the other metrics, which say so, must not go with it."""
        try:
            usage = self.metric_sources.store.usage
        except OSError:
            return
        yield gauge("disk_size_bytes", "Size of the disk of the log", usage.total)
        yield gauge("disk_free_bytes", "Free space on it", usage.free)

    def _store(self) -> Iterator[Metric]:
        store = self.metric_sources.store
        marks = store.watermarks
        yield gauge("log_bytes", "Size of the log", marks.appended - marks.minimum)
        yield gauge("unflushed_bytes", "Appended, not synced", marks.appended - marks.flushed)
        yield gauge("undispatched_bytes", "Appended, not visible",
                     marks.appended - marks.dispatched)  # fmt: skip
        yield from self._disk()
        yield gauge("writes_refused", "1 while messages are refused for lack of space",
                     int(bool(store.refusal)))  # fmt: skip
        yield gauge("store_broken", "1 after a write or sync failed", int(store.is_broken))
        yield gauge("damaged_records", "Records whose checksum fails", len(store.damaged))
        yield gauge("damaged_index_files", "Index files that can't be read or were shortened",
                     len(store.index.damaged) if store.index is not None else 0)  # fmt: skip
        yield self._last_start()

    def _last_start(self) -> Metric:
        report = self.metric_sources.store.recovered
        found = gauges("last_start", "Findings of the last start, by kind", "kind")
        for kind, count in (
            ("cuts", int(report.cut_at is not None)),
            ("damaged_ranges", len(report.damage)),
            ("offsets_set_back", report.clamped),
            ("quarantined", int(bool(report.quarantine))),
            ("rebuilds", int(bool(report.rebuilt))),
        ):
            found.add_metric([kind], count)
        return found

    def _clients(self) -> Iterator[Metric]:
        metric_sources, counts = self.metric_sources, self.metric_sources.counts
        for name, help_ in GAUGES.items():
            yield gauge(name, help_, counts[name]())
        for name, help_ in COUNTERS.items():
            yield counter(name, help_, counts[name]())
        clients = gauges("clients", "Living members of groups, by role", "role")
        consumers = metric_sources.sessions.consumers.values()
        clients.add_metric(["producer"], sum(map(len, metric_sources.sessions.producers.values())))
        clients.add_metric(["consumer"], sum(len(group.clients) for group in consumers))
        yield clients
        refused = counters("requests_refused", "Requests answered with an error", "cause")
        for code, count in sorted(metric_sources.stats.refusals.items()):
            refused.add_metric([_CODES.get(code, str(code))], count)
        yield refused

    def _watched(self) -> Iterator[Metric]:
        watchdog = self.metric_sources.watchdog
        now, ever = watchdog.counts(), watchdog.found_counts
        stuck = gauges("watchdog_findings", "What stands still now, by kind", "kind")
        found = counters("watchdog_found", "What the watchdog has found, by kind", "kind")
        for kind in Kind:
            stuck.add_metric([kind.value], now[kind])
            found.add_metric([kind.value], ever[kind])
        yield stuck
        yield found
        missing = gauges(
            "broker_missing_since_seconds", "Unix time at which a broker went missing", "broker"
        )
        for name, since_ms in sorted(self.metric_sources.missing_brokers().items()):
            missing.add_metric([name], since_ms / 1000)
        yield missing
        alarms = gauges("alarms", "1 while an alarm of this kind holds", "kind")
        for kind in sorted({alarm.kind for alarm in self.metric_sources.alarms()}):
            alarms.add_metric([kind], 1)
        yield alarms

    def _fill(
        self,
        family: GaugeMetricFamily | CounterMetricFamily,
        rows: list[tuple[int, tuple[str, ...]]],
    ) -> None:
        """Add the largest rows, as many as there may be."""
        shown = rows if len(rows) <= ROWS_MAX else heapq.nlargest(ROWS_MAX, rows)
        for number, labels in shown:
            family.add_metric(labels, number)
        self._left_out[family.name] = len(rows) - len(shown)
