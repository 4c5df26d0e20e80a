"""Numbers of a real broker: what the page says is printed, and the board asks for nothing else."""

import json
import logging
import re
import time
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tianzhou.broker.alarms import Alarm
from tianzhou.broker.observe.metrics import Metrics
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
    """Every family with its labels; ranges of histograms are no labels of ours."""
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


@pytest.fixture
def text(mq: RunningBroker) -> str:
    """The numbers of a broker that has seen one of everything that makes a label."""
    mq.create_topic("orders", queues=2)
    with Producer("shop", nameserver=mq.nameserver) as producer:
        for _ in range(20):
            producer.send(Message("orders", b"two apples"))

    def touch(broker: Broker, _: object) -> str:
        parts = broker.parts
        parts.offsets.put("billing", "orders", 0, 1)
        parts.stats.got("orders", "billing", 1, 100)
        parts.stats.sent_back("orders", "billing")
        parts.stats.refused(17)
        parts.alarms.add(lambda: [Alarm(kind="made_up", text="t", remedy="r", since_ms=1)])
        parts.metric_sources.missing_brokers = lambda: {"broker-b": 1}
        slave = SlaveView(acked=0, address="", broker_id=1, lag_bytes=0, lag_ms=0, is_in_sync=True)
        look = parts.replication.look()
        parts.metric_sources.replication = lambda: msgspec.structs.replace(look, slaves=(slave,))
        peer = RaftPeer(
            address="", is_connected=True, is_in_doubt=False, is_voter=True, match=1, name="b"
        )
        parts.metric_sources.raft = lambda: RaftView(
            applied=1, commit=1, first=1, group="g", is_changing=False, is_in_doubt=False,
            is_leading=True, last=1, leader="a", leader_broker="", member="a", peers=(peer,),
            role="leader", term=1,
        )  # fmt: skip
        return Metrics(parts.metric_sources).page().decode()

    return mq._look(touch)


def test_the_page_names_exactly_what_is_printed(text: str) -> None:
    assert page("metrics.md") == printed(text)


def test_both_languages_have_the_same_table() -> None:
    assert page("metrics.zh-CN.md") == page("metrics.md")


def test_real_traffic_shows(text: str) -> None:
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


def test_the_board_asks_only_for_what_a_broker_prints(text: str) -> None:
    known = printed(text)
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
    "tianzhou_alarms", "tianzhou_broker_missing_since_seconds", "tianzhou_damaged_index_files",
    "tianzhou_damaged_records", "tianzhou_parked_transactions", "tianzhou_watchdog_findings",
}  # fmt: skip
"""Metrics that call for an operator."""


def test_board_shows_every_metric_that_calls_for_an_operator(text: str) -> None:
    shown = {name for _, expression in expressions() for name in NAME.findall(expression)}
    assert printed(text).keys() >= ALARMING, "every one of them is printed"
    assert shown >= ALARMING


def test_names_of_lines_are_labels_that_there_are(text: str) -> None:
    known = printed(text)
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
"""The part of PromQL that the board uses, from the inside out."""


def test_every_question_of_the_board_is_one_that_prometheus_can_read() -> None:
    for panel in board()["panels"]:
        for target in panel.get("targets", ()):
            expression, before = target["expr"], ""
            while expression != before:
                before = expression
                for form, kind in REDUCTIONS:
                    expression = re.sub(form, kind, expression)
            assert expression == "VECTOR", f"{panel['title']}: {target['expr']} is {expression}"


def test_the_board_can_be_imported() -> None:
    """What Grafana needs: panels with ids of their own that do not lie on each other."""
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


def test_a_loop_that_stands_is_measured_and_logged(
    mq: RunningBroker, caplog: pytest.LogCaptureFixture
) -> None:
    """Everybody waits while somebody holds up the loop: here for longer than a second."""

    def stalls() -> float:
        text = mq._look(lambda broker, _: Metrics(broker.parts.metric_sources).page().decode())
        (up_to_one,) = re.findall(r'loop_delay_seconds_bucket\{le="1.0"\} (\S+)', text)
        (all_of_them,) = re.findall(r"loop_delay_seconds_count (\S+)", text)
        return float(all_of_them) - float(up_to_one)

    assert stalls() == 0
    with caplog.at_level(logging.WARNING):
        mq._look(lambda _broker, _store: time.sleep(1.3))
        mq.wait_until(lambda: stalls() == 1, what="the stall is counted")
    (line,) = [record for record in caplog.records if record.message == "loop.stalled"]
    assert 1.0 <= vars(line)["seconds"] < 10
