"""The `/metrics` page, parsed by the Prometheus library."""

from collections.abc import Iterator

import msgspec
import pytest
from administrator import Administrator, join, make_topic
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families

from tianzhou.base.steps import Steps
from tianzhou.broker import metrics
from tianzhou.broker.groups import lags
from tianzhou.broker.metrics import Metric as Declaration
from tianzhou.broker.metrics import MetricKind, Samples, gauge, largest
from tianzhou.broker.observe.metrics_page import MetricsPage
from tianzhou.broker.replica.build import replica_metrics
from tianzhou.testing.small_broker import RecordingPeer, SmallBroker
from tianzhou.wire._generated_codes import RequestCode
from tianzhou.wire._generated_headers_pull import PullMessageRequest
from tianzhou.wire.raft_bodies import RaftPeer, RaftView
from tianzhou.wire.replication_bodies import SlaveView

TOPIC, GROUP = "orders", "billing"
Series = dict[tuple[str, frozenset[tuple[str, str]]], float]


def page_of(broker: SmallBroker) -> MetricsPage:
    return MetricsPage(broker.slices.metrics, broker.clock.monotonic_s)


def scraped(broker: SmallBroker) -> Series:
    return series_of(page_of(broker))


def series_of(page: MetricsPage) -> Series:
    text = page.render().decode()
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def value(series: Series, name: str, **labels: str) -> float:
    return series[f"tianzhou_{name}", frozenset(labels.items())]


def pull(broker: SmallBroker, offset: int, group: str = GROUP, topic: str = TOPIC) -> None:
    fields = PullMessageRequest(
        consumer_group=group,
        topic=topic,
        queue_id=0,
        queue_offset=offset,
        max_msg_nums=32,
        sys_flag=4,
        commit_offset=0,
        suspend_timeout_ms=0,
        subscription="*",
        sub_version=0,
    )
    assert broker.ask(RequestCode.PULL_MESSAGE, fields.to_ext())


def test_metric_declared_twice_is_rejected() -> None:
    twice = [gauge("topics", "Topics", lambda: 1), gauge("topics", "Topics", lambda: 2)]
    with pytest.raises(AssertionError, match="declared twice"):
        MetricsPage(twice, SmallBroker().clock.monotonic_s)


def test_gauge_without_a_value_is_not_printed() -> None:
    declared = [gauge("disk_free_bytes", "Free space", lambda: None)]
    text = MetricsPage(declared, SmallBroker().clock.monotonic_s).render()
    assert b"disk_free_bytes" not in text


def test_metrics_that_share_a_refresh_run_it_once() -> None:
    refreshed: list[str] = []

    def refresh() -> Steps[None]:
        refreshed.append("lags")
        yield

    declared = [
        Declaration(
            name=name,
            help="",
            kind=MetricKind.GAUGE,
            read=lambda: Samples([((), 1.0)]),
            refresh=refresh,
        )
        for name in ("first", "second")
    ]
    MetricsPage(declared, SmallBroker().clock.monotonic_s).render()
    assert refreshed == ["lags"]


def test_metrics_largest_keeps_the_largest_series_and_counts_the_rest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(metrics, "SERIES_MAX", 2)
    series = [(("a",), 1.0), (("b",), 3.0), (("c",), 2.0)]
    assert largest(series) == Samples([(("b",), 3.0), (("c",), 2.0)], left_out=1)


def test_metrics_count_messages_in_and_out() -> None:
    broker = SmallBroker()
    make_topic(broker, TOPIC, 1)
    for _ in range(3):
        broker.send(TOPIC)
    pull(broker, 1)
    pull(broker, 3)
    series = scraped(broker)
    assert value(series, "messages_in_total") == 3
    assert value(series, "topic_messages_in_total", topic=TOPIC) == 3
    assert value(series, "messages_out_total") == 2
    assert value(series, "group_messages_out_total", group=GROUP, topic=TOPIC) == 2
    assert value(series, "pulls_total", result="found") == 1
    assert value(series, "pulls_total", result="nothing") == 1
    assert value(series, "log_bytes") == value(series, "message_bytes_in_total") > 0


def test_metrics_report_lag_by_queue_in_messages_and_seconds() -> None:
    broker = SmallBroker()
    make_topic(broker, TOPIC, 2)
    for _ in range(3):
        broker.send(TOPIC)
        broker.clock.advance(seconds=1)
    broker.slices.groups.tables.offsets.put(GROUP, TOPIC, 0, 1)
    series = scraped(broker)
    place = {"group": GROUP, "topic": TOPIC}
    assert value(series, "queue_lag_messages", queue="0", **place) == 2
    assert value(series, "queue_lag_age_seconds", queue="0", **place) == 2.0
    assert value(series, "queue_lag_messages", queue="1", **place) == 0
    assert value(series, "queue_lag_age_seconds", queue="1", **place) == 0
    assert value(series, "group_lag_messages", **place) == 2


def test_metrics_report_durations_as_histograms() -> None:
    broker = SmallBroker()
    broker.send(TOPIC)
    pull(broker, 0)
    series = scraped(broker)
    for name in ("append_seconds", "read_seconds", "dispatch_delay_seconds"):
        assert value(series, f"{name}_count") >= 1, name
        assert value(series, f"{name}_bucket", le="+Inf") == value(series, f"{name}_count")
        # Time stands still in this broker.
        assert value(series, f"{name}_bucket", le="0.0001") == value(series, f"{name}_count")


def test_metrics_dispatch_delay_includes_the_wait_for_the_disk() -> None:
    broker = SmallBroker()
    broker.send(TOPIC)
    times = broker.slices.base.writer.dispatch_delays.histogram
    seen = times.count
    broker.slices.base.writer.put([])  # an append that is never completed
    broker.clock.advance(seconds=3)
    broker.slices.base.writer.settle()
    assert times.count == seen + 1
    assert times.longest_s == 3.0


def test_metrics_count_errors_by_cause() -> None:
    broker = SmallBroker()
    broker.send("no/such:name")
    pull(broker, 0, topic="never-made")
    Administrator(broker).ask(RequestCode.QUERY_CONSUMER_OFFSET, consumerGroup=GROUP, topic="none")
    Administrator(broker).ask(9_999)
    series = scraped(broker)
    causes = {
        dict(labels)["cause"]: count
        for (name, labels), count in series.items()
        if name == "tianzhou_requests_refused_total"
    }
    assert causes["topic_not_exist"] == 1
    assert causes["request_code_not_supported"] == 1
    assert sum(causes.values()) == 4


def test_metrics_count_members_by_role_without_client_names() -> None:
    broker = SmallBroker()
    broker.send(TOPIC, named={"TAGS": "secret-tag", "KEYS": "secret-key"})
    join(broker, GROUP, TOPIC, client_id="10.1.1.1@4711")
    pull(broker, 0)
    pull(broker, 0, topic="never-made")
    broker.slices.groups.tables.offsets.put(GROUP, TOPIC, 0, 0)
    broker.heartbeat(RecordingPeer(), "producer@1", producers=("senders",))
    series = scraped(broker)
    assert value(series, "clients", role="consumer") == 1
    assert value(series, "clients", role="producer") == 1
    labels = {label for _, pairs in series for label, _ in pairs}
    assert labels == {
        "broker",
        "cause",
        "cluster",
        "group",
        "kind",
        "le",
        "metric",
        "part",
        "queue",
        "result",
        "role",
        "topic",
        "version",
    }
    said = " ".join(text for _, pairs in series for _, text in pairs)
    for word in ("4711", "10.1.1.1", "producer@1", "secret"):
        assert word not in said


def test_metrics_bound_the_number_of_series(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "SERIES_MAX", 5)
    broker = SmallBroker()
    for number in range(8):
        make_topic(broker, f"topic-{number}", 2)
        for _ in range(number + 1):
            broker.send(f"topic-{number}")
        broker.slices.groups.tables.offsets.put(GROUP, f"topic-{number}", 0, 0)
    series = scraped(broker)
    names = [name for name, _ in series]
    for name in ("topic_messages_in_total", "queue_lag_messages", "queue_lag_age_seconds"):
        assert names.count(f"tianzhou_{name}") == 5, name
    # The largest are shown, and how many are not.
    assert value(series, "topic_messages_in_total", topic="topic-7") == 8
    assert value(series, "queue_lag_messages", group=GROUP, topic="topic-7", queue="0") == 8
    assert value(series, "series_left_out", metric="tianzhou_topic_messages_in") == 3
    assert value(series, "series_left_out", metric="tianzhou_queue_lag_messages") == 11
    assert value(series, "series_left_out", metric="tianzhou_group_lag_messages") == 3


def test_metrics_page_uses_a_bounded_share_of_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = SmallBroker()
    page = page_of(broker)
    collect = page.collect

    def slowly() -> Iterator[Metric]:
        broker.clock.advance(ms=100)
        yield from collect()

    monkeypatch.setattr(page, "collect", slowly)
    first = page.render()
    broker.send(TOPIC)
    broker.clock.advance(ms=1_900)
    assert page.render() is first
    broker.clock.advance(ms=100)
    assert b"\ntianzhou_messages_in_total 1.0\n" in page.render()


def test_metrics_of_a_single_broker_report_it_as_master() -> None:
    series = scraped(SmallBroker())
    assert value(series, "is_master") == 1
    assert value(series, "replicas_in_sync") == 0
    assert not [name for name, _ in series if "replica_lag" in name]


def test_metrics_label_slaves_by_their_ids() -> None:
    broker = SmallBroker()
    broker.send(TOPIC)
    alone = broker.slices.replica.replication.view()
    rows = [(1, 0, 0, True), (2, 5_000, 1_500, False), (-1, 10, 20, True), (-1, 30, 5, True)]
    slaves = tuple(
        SlaveView(
            acked=9_000 - size,
            address="10.1.1.1:1",
            broker_id=number,
            lag_bytes=size,
            lag_ms=late_ms,
            is_in_sync=in_sync,
        )
        for number, size, late_ms, in_sync in rows
    )
    view = msgspec.structs.replace(alone, slaves=slaves)
    declared = replica_metrics(lambda: view, lambda: None)
    series = series_of(MetricsPage(declared, broker.clock.monotonic_s))
    assert value(series, "replicas_in_sync") == 3
    assert value(series, "replica_lag_bytes", replica="2") == 5_000
    assert value(series, "replica_lag_seconds", replica="2") == 1.5
    assert value(series, "replica_acked_offset", replica="2") == 4_000
    assert value(series, "replica_in_sync", replica="1") == 1
    assert value(series, "replica_in_sync", replica="2") == 0
    assert value(series, "log_end_offset") == alone.end > 0
    # Those that do not say who they are: the one that is furthest behind.
    assert value(series, "replica_lag_bytes", replica="unnamed") == 30


def test_metrics_of_a_raft_leader_list_its_members() -> None:
    broker = SmallBroker()
    peers = tuple(
        RaftPeer(
            address="",
            is_connected=True,
            is_in_doubt=False,
            is_voter=True,
            is_witness=name == "w",
            match=match,
            name=name,
        )
        for name, match in (("a", 100), ("b", 100), ("c", 60), ("w", 100))
    )
    look = RaftView(
        applied=90,
        commit=90,
        first=1,
        group="g",
        is_changing=False,
        is_in_doubt=False,
        is_leading=True,
        last=100,
        leader="a",
        leader_broker="",
        member="a",
        needs_witness=True,
        peers=peers,
        role="leader",
        term=3,
    )
    declared = replica_metrics(broker.slices.replica.replication.view, lambda: look)
    series = series_of(MetricsPage(declared, broker.clock.monotonic_s))
    assert value(series, "replicas_in_sync") == 1
    assert value(series, "replica_lag_entries", replica="c") == 40
    assert value(series, "replica_lag_entries", replica="b") == 0
    assert value(series, "needs_witness") == 1


def test_metrics_page_built_in_steps_allows_groups_to_change(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lags, "ROWS_PER_STEP", 10)
    broker = SmallBroker()
    for topic in range(10):
        broker.slices.topics.topics.ensure(f"topic-{topic}", queues=8)
        broker.slices.groups.tables.offsets.put(GROUP, f"topic-{topic}", 0, 0)
    page, steps = page_of(broker), 0
    for _ in page.steps():
        steps += 1
        broker.slices.groups.tables.offsets.put(f"late-{steps}", "topic-0", 0, 0)
    assert steps == 8, "ten queues in each"
    last = f'tianzhou_queue_lag_messages{{group="{GROUP}",queue="7",topic="topic-9"}} 0.0'
    assert last in page.text.decode()
