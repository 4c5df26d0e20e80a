"""Metrics of a real broker: the declarations match the page in docs/, and the dashboard uses
nothing else."""

import json
import logging
import re
import time
from collections.abc import Iterator, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tianzhou.broker.alarms import Alarm
from tianzhou.broker.metrics import Metric, MetricKind
from tianzhou.broker.observe.metrics_page import MetricsPage
from tianzhou.broker.replica.build import replica_metrics
from tianzhou.broker.server import Broker
from tianzhou.client.sync import Message, Producer
from tianzhou.testing import RunningBroker
from tianzhou.wire.raft_bodies import RaftPeer, RaftView
from tianzhou.wire.replication_bodies import SlaveView

DOCS = Path(__file__).parents[2] / "docs"
ROW = re.compile(r"^\| `((?:tianzhou|process)_\w+)` \| (\w+) \| ([\w, ]*) \|", re.MULTILINE)
NAME = re.compile(r"\b(?:tianzhou|process)_[a-z_]+\b")
SELECTOR = re.compile(r"\b((?:tianzhou|process)_[a-z_]+)(?:\{([^}]*)\})?")
SCRAPED = frozenset({"job", "instance"})
"""Labels that Prometheus adds."""
PARTS = ("_bucket", "_count", "_sum")


class Family(NamedTuple):
    kind: str
    labels: frozenset[str]


def page(name: str) -> dict[str, Family]:
    rows = ROW.findall((DOCS / name).read_text(encoding="utf-8"))
    assert len(rows) == len({row[0] for row in rows})
    return {
        metric: Family(kind, frozenset(labels.split(", ") if labels else ()))
        for metric, kind, labels in rows
    }


def printed(text: str) -> dict[str, Family]:
    """Every family with its labels; the bounds of histograms are not counted as labels."""
    types = dict(re.findall(r"^# TYPE (\w+) (\w+)$", text, re.MULTILINE))
    labels: dict[str, set[str]] = {name: set() for name in types}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            name = sample.name
            for part in PARTS:
                if name.endswith(part) and types.get(name.removesuffix(part)) == "histogram":
                    name = name.removesuffix(part)
            labels[name] |= sample.labels.keys() - {"le"}
    return {name: Family(kind, frozenset(labels[name])) for name, kind in types.items()}


def declared(metrics: Sequence[Metric]) -> dict[str, Family]:
    families = {
        f"tianzhou_{metric.name}" + ("_total" if metric.kind is MetricKind.COUNTER else ""): Family(
            metric.kind.value, frozenset(metric.labels)
        )
        for metric in metrics
    }
    return families | {"tianzhou_series_left_out": Family("gauge", frozenset({"metric"}))}


def rendered(metrics: Sequence[Metric]) -> str:
    return MetricsPage(metrics, time.monotonic).render().decode()


class Scrape(NamedTuple):
    text: str
    declared: dict[str, Family]


@pytest.fixture
def scrape(mq: RunningBroker) -> Scrape:
    """The metrics of a broker in which nearly every family has a series."""
    mq.create_topic("orders", queues=2)
    with Producer("shop", nameserver=mq.nameserver) as producer:
        for _ in range(20):
            producer.send(Message("orders", b"two apples"))

    def touch(broker: Broker, _: object) -> Scrape:
        slices = broker.slices
        stats, alarms = slices.base.stats, slices.base.alarms
        slices.groups.tables.offsets.put("billing", "orders", 0, 1)
        stats.got("orders", "billing", 1, 100)
        stats.sent_back("orders", "billing")
        stats.refused(17)
        alarms.add(lambda: [Alarm(kind="made_up", text="t", remedy="r", since_ms=1)])
        slave = SlaveView(acked=0, address="", broker_id=1, lag_bytes=0, lag_ms=0, is_in_sync=True)
        look = slices.replica.replication.view()
        view = msgspec.structs.replace(look, slaves=(slave,))
        peer = RaftPeer(
            address="", is_connected=True, is_in_doubt=False, is_voter=True, match=1, name="b"
        )
        raft = RaftView(
            applied=1,
            commit=1,
            first=1,
            group="g",
            is_changing=False,
            is_in_doubt=False,
            is_leading=True,
            last=1,
            leader="a",
            leader_broker="",
            member="a",
            peers=(peer,),
            role="leader",
            term=1,
        )
        replaced = {metric.name: metric for metric in replica_metrics(lambda: view, lambda: raft)}
        metrics = [replaced.get(metric.name, metric) for metric in broker.monitor.metrics]
        return Scrape(rendered(metrics), declared(metrics))

    return mq._look(touch)


@pytest.fixture
def text(scrape: Scrape) -> str:
    return scrape.text


@pytest.fixture
def known(scrape: Scrape) -> dict[str, Family]:
    """Every family that a broker prints: the declared ones, and those of the process."""
    process = {n: f for n, f in printed(scrape.text).items() if n.startswith("process_")}
    return scrape.declared | process


def test_metrics_page_of_the_docs_lists_exactly_the_declared_metrics(
    known: dict[str, Family],
) -> None:
    assert page("metrics.md") == known


def test_metrics_families_are_printed_as_declared(text: str, known: dict[str, Family]) -> None:
    found = printed(text)
    assert found.keys() == known.keys()
    for name, family in found.items():
        assert family.kind == known[name].kind, name
        if name != "tianzhou_broker_missing_since_seconds":  # no broker is missing
            assert family.labels == known[name].labels, name


def test_metrics_pages_of_both_languages_have_the_same_table() -> None:
    assert page("metrics.zh-CN.md") == page("metrics.md")


def test_metrics_reflect_real_traffic(text: str) -> None:
    values = {
        sample.name: sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if not sample.labels
    }
    assert values["tianzhou_messages_in_total"] == 20
    assert values["tianzhou_append_seconds_count"] >= 1
    assert 0 < values["tianzhou_append_seconds_sum"] < 10
    assert values["tianzhou_dispatch_delay_seconds_count"] >= 1
    assert values["tianzhou_connections"] >= 0
    assert 0 < values["process_resident_memory_bytes"] < 1 << 34


def expressions() -> Iterator[tuple[str, str]]:
    for panel in board()["panels"]:
        for target in panel.get("targets", ()):
            yield panel["title"], target["expr"]
    for variable in board()["templating"]["list"]:
        if variable["type"] == "query":
            yield variable["name"], variable["query"]["query"]


def board() -> Any:
    return json.loads(files("tianzhou.admin").joinpath("grafana/tianzhou.json").read_bytes())


def test_board_queries_only_metrics_that_a_broker_prints(known: dict[str, Family]) -> None:
    asked: set[str] = set()
    for title, expression in expressions():
        for name, chosen in SELECTOR.findall(expression):
            metric = name if name in known else name.removesuffix("_bucket")
            assert metric in known, f"{title}: {name}"
            asked.add(metric)
            kind = known[metric].kind
            assert (kind != "gauge") == (f"rate({name}" in expression), f"{title}: {expression}"
            assert (kind == "histogram") == name.endswith("_bucket"), f"{title}: {expression}"
            labels = {part.split("=")[0] for part in chosen.split(",") if part} - SCRAPED
            assert labels <= known[metric].labels, f"{title}: {expression}"
        labels = re.findall(r"by \(([\w, ]+)\)", expression)
        for label in {word for group in labels for word in group.split(", ")} - {"le"}:
            assert any(label in known[name].labels for name in known if name in expression)
    assert len(asked) > 30


ALARMING = {
    "tianzhou_alarms",
    "tianzhou_broker_missing_since_seconds",
    "tianzhou_damaged_index_files",
    "tianzhou_damaged_records",
    "tianzhou_parked_transactions",
    "tianzhou_watchdog_findings",
}
"""Metrics that need an operator's attention."""


def test_board_shows_every_alarming_metric(known: dict[str, Family]) -> None:
    shown = {name for _, expression in expressions() for name in NAME.findall(expression)}
    assert known.keys() >= ALARMING, "every one of them is printed"
    assert shown >= ALARMING


def test_board_legends_use_existing_labels(known: dict[str, Family]) -> None:
    for panel in board()["panels"]:
        for target in panel.get("targets", ()):
            expression = target["expr"]
            kept = re.findall(r"by \(([\w, ]+)\)", expression)
            labels = {word for group in kept for word in group.split(", ")}
            if not kept and "sum(" not in expression and "max(" not in expression:
                labels = SCRAPED.union(*(known[name].labels for name in NAME.findall(expression)))
            used = set(re.findall(r"\{\{(\w+)\}\}", target.get("legendFormat", "")))
            assert used <= labels, f"{panel['title']}: {target}"


REDUCTIONS = (
    (r"[a-z_]+\{(?:\w+=~?\"[^\"]*\",?)+\}\[\$__rate_interval\]", "RANGE"),
    (r"[a-z_]+\{(?:\w+=~?\"[^\"]*\",?)+\}", "VECTOR"),
    (r"\brate\(RANGE\)", "VECTOR"),
    (r"\b(?:sum|max)(?: by \(\w+(?:, \w+)*\) )?\(VECTOR\)", "VECTOR"),
    (r"\btopk\(\d+, VECTOR\)", "VECTOR"),
    (r"\bhistogram_quantile\(0\.\d+, VECTOR\)", "VECTOR"),
    (r"(?:VECTOR|\b\d+) [-+*/] VECTOR", "VECTOR"),
)
"""The part of PromQL that the board uses, innermost first."""


def test_board_queries_are_valid_promql() -> None:
    for panel in board()["panels"]:
        for target in panel.get("targets", ()):
            expression, before = target["expr"], ""
            while expression != before:
                before = expression
                for form, kind in REDUCTIONS:
                    expression = re.sub(form, kind, expression)
            assert expression == "VECTOR", f"{panel['title']}: {target['expr']} is {expression}"


def test_board_can_be_imported_by_grafana() -> None:
    """What Grafana needs: panels with unique ids that do not overlap."""
    found = board()
    assert found["schemaVersion"] >= 36
    ids = [panel["id"] for panel in found["panels"]]
    assert len(ids) == len(set(ids))
    taken: set[tuple[int, int]] = set()
    for panel in found["panels"]:
        at = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        }
        assert at["x"] + at["w"] <= 24, panel["title"]
        assert not cells & taken, panel["title"]
        taken |= cells
        if panel["type"] != "row":
            assert panel["description"], panel["title"]
            assert panel["datasource"]["uid"] == "${source}"
    assert "source" in {variable["name"] for variable in found["templating"]["list"]}


def test_blocked_event_loop_is_measured_and_logged(
    mq: RunningBroker, caplog: pytest.LogCaptureFixture
) -> None:
    """All clients wait while something blocks the event loop: here for longer than a second."""

    def stalls() -> float:
        text = mq._look(lambda broker, _: rendered(broker.monitor.metrics))
        (up_to_one,) = re.findall(r'loop_delay_seconds_bucket\{le="1.0"\} (\S+)', text)
        (all_of_them,) = re.findall(r"loop_delay_seconds_count (\S+)", text)
        return float(all_of_them) - float(up_to_one)

    assert stalls() == 0
    with caplog.at_level(logging.WARNING):
        mq._look(lambda _broker, _store: time.sleep(1.3))
        mq.wait_until(lambda: stalls() == 1, what="the stall is counted")
    (line,) = [record for record in caplog.records if record.message == "loop.stalled"]
    assert 1.0 <= vars(line)["seconds"] < 10
