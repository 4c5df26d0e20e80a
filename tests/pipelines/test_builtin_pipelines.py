"""The built-in pipelines."""

import json
from decimal import Decimal
from typing import Any

import pytest

from pipelines.conftest import Place
from tianzhou.client.core.trace import ConsumeBegun, ConsumeEnded, Published, encode_trace
from tianzhou.client.sync import Message, Producer
from tianzhou.spark.pipelines import trace
from tianzhou.spark.pipelines.builtin import template
from tianzhou.spark.pipelines.model import Pipeline
from tianzhou.spark.pipelines.order_check import LastMessage, is_violation
from tianzhou.spark.pipelines.pipeline_directory import PipelineDirectory
from tianzhou.spark.pipelines.pipeline_file import parse
from tianzhou.spark.tables.history_table import history


def builtin(place: Place, name: str, topic: str, **given: Any) -> Pipeline:
    changes = {"source.nameserver": place.nameserver, "source.topic": topic, **given}
    return parse(template(name), name, given=changes)


def test_archive_without_its_checkpoint_resumes_after_its_last_row(place: Place) -> None:
    """Several topics, further micro-batches, a lost checkpoint: every message is stored once, and
    the brokers know the committed offsets."""
    first, second = place.topic("a"), place.topic("b")
    pipeline = builtin(place, "archive", f"{first},{second}", **{"source.group": f"g-{first}"})
    place.send(first, [f"{n}" for n in range(30)])
    place.run(pipeline)
    place.send(second, [f"{n}" for n in range(20)])
    place.run(pipeline)
    PipelineDirectory(pipeline, place.directory).reset()
    place.send(first, ["last"])
    place.run(pipeline)
    rows = place.rows("archive", "topic", "brokerName", "queueId", "queueOffset", "body")
    places = {(row.topic, row.brokerName, row.queueId, row.queueOffset) for row in rows}
    assert len(rows) == len(places) == 51
    stored = {
        (m.topic, m.queue_id, m.queue_offset): m.body
        for topic in (first, second)
        for m in place.broker.stored(topic)
    }
    assert {(r.topic, r.queueId, r.queueOffset): bytes(r.body) for r in rows} == stored
    assert place.broker.lag(f"g-{first}", first) == 0


def test_aggregate_sums_are_exact(place: Place) -> None:
    topic = place.topic("payments")
    pipeline = builtin(place, "aggregate", topic)
    for city, amount, at in (
        ("北京", "0.10", "08:00:10"),
        ("北京", "0.20", "08:00:50"),
        ("上海", "7.00", "08:00:20"),
        ("北京", "5.00", "08:01:00"),
        ("closing", "1.00", "09:00:00"),
    ):
        place.send(topic, [{"amount": amount, "paidAt": f"2026-11-16T{at}Z"}], tags=city)
    place.send(topic, ["broken"], tags="北京")
    place.run(pipeline)
    rows = place.rows("city_amounts", "window.start", "topic", "city", "payments", "amount")
    found = {(row.start.minute, row.city): (row.payments, row.amount) for row in rows}
    assert found == {
        (0, "北京"): (2, Decimal("0.30")),
        (0, "上海"): (1, Decimal("7.00")),
        (1, "北京"): (1, Decimal("5.00")),
    }
    assert place.table("checkpoints/aggregate/quarantine").state().rows == 1


@pytest.mark.parametrize(
    ("before", "state", "wrong"),
    [
        ("", "未支付", False),
        ("", "已支付", True),
        ("未支付", "PAID", False),
        ("未支付", "发货中", True),
        ("发货中", "发货失败", False),
        ("发货失败", "发货中", False),
        ("发货成功", "已支付", True),
        ("已支付", "已支付", False),
    ],
)
def test_order_check_allows_only_following_states(before: str, state: str, wrong: bool) -> None:
    assert is_violation(LastMessage(before), state) is wrong


def test_order_check_remembers_orders(place: Place) -> None:
    """An order whose messages are in different queues or skip a state is found, also across
    runs."""
    topic = place.topic("ORDER_STATUS")
    pipeline = builtin(place, "order-check", topic)

    def tell(*steps: tuple[str, str]) -> None:
        with Producer("tests", nameserver=place.nameserver) as producer:
            for order, state in steps:
                body = json.dumps({"orderId": order, "state": state}).encode()
                producer.send(Message(topic, body, keys=order, sharding_key=order))

    tell(("T1", "未支付"), ("T2", "未支付"), ("T1", "已支付"), ("T3", "发货中"))
    place.run(pipeline)
    tell(("T1", "发货中"), ("T2", "发货中"), ("T1", "发货成功"))
    place.run(pipeline)
    rows = place.rows("order_violations")
    found = {(row.orderId, row.before, row.state, row.expected) for row in rows}
    assert found == {("T3", "", "发货中", "未支付"), ("T2", "未支付", "发货中", "已支付")}


def traces(place: Place, topic: str) -> str:
    """A trace topic: ten messages sent, one send failed; nine consumed, one of them twice."""
    made = place.topic("traces")
    base = 1_794_787_200_000
    bodies = [
        encode_trace(
            [
                Published(
                    timestamp_ms=base + n,
                    group="shop",
                    topic=topic,
                    message_id=f"M{n}",
                    cost_ms=5 + n,
                    is_success=n != 9,
                )
            ]
        )
        for n in range(10)
    ]
    for rank, n in enumerate([*range(9), 0]):
        request = f"R{rank}"
        bodies.append(
            encode_trace(
                [
                    ConsumeBegun(
                        timestamp_ms=base + n + 50,
                        group="stock",
                        request_id=request,
                        message_id=f"M{n}",
                    )
                ]
            )
        )
        bodies.append(
            encode_trace(
                [
                    ConsumeEnded(
                        request_id=request,
                        message_id=f"M{n}",
                        cost_ms=20,
                        is_success=n != 4,
                        timestamp_ms=base + n + 70,
                        group="stock",
                    )
                ]
            )
        )
    place.send(made, [*bodies, b"no trace\x01\x02", b"Pub\x01x\x02"])
    return made


def test_latency_report_counts_stages_and_failures(place: Place) -> None:
    records = trace.records(history(place.spark, traces(place, "orders"), place.cluster()))
    (row,) = trace.latency_report(records).collect()
    assert (row.topic, row.groupName, row.messages, row.failures) == ("orders", "stock", 10, 1)
    assert (row.storeP50Ms, row.consumeP50Ms, row.totalP99Ms) == (8, 20, 70)
    kinds = {row.kind: row["count"] for row in records.groupBy("kind").count().collect()}
    assert kinds == {"pub": 10, "begin": 10, "end": 10, "broken": 1}


def test_trace_pipeline_writes_latencies_per_minute(place: Place) -> None:
    topic = traces(place, "orders")
    late = Published(timestamp_ms=1_794_790_800_000, group="late", topic="t", message_id="L")
    place.send(topic, [encode_trace([late])])
    place.run(builtin(place, "trace", topic))
    rows = {row.side: row for row in place.rows("trace")}
    produced, consumed = rows["produce"], rows["consume"]
    assert (produced.topic, produced.groupName, produced.messages) == ("orders", "shop", 10)
    assert (produced.failures, produced.maxMs) == (1, 14)
    assert (consumed.groupName, consumed.messages, consumed.failures) == ("stock", 10, 1)


def test_audit_counts_lost_duplicated_and_late_messages(place: Place) -> None:
    """M3 was acknowledged and is lost, M4 is stored twice, M9 is stored although its send
    failed."""
    topic = place.topic("orders")
    records = trace.records(history(place.spark, traces(place, topic), place.cluster()))
    rows = [(f"M{n}", 1_000 * n, 1_000 * n + 10) for n in (0, 1, 2, 4, 4, 5, 6, 7, 8, 9)]
    rows += [("X", 1_000, 9_000)]
    there = place.spark.createDataFrame(  # pyright: ignore[reportUnknownMemberType]
        rows, "msgId string, born bigint, stored bigint"
    ).selectExpr(
        "msgId",
        "timestamp_millis(born) AS bornTimestamp",
        "timestamp_millis(stored) AS storeTimestamp",
    )
    made, done = trace.produced(records, topic), trace.consumed(records)
    found = {
        row.producer: row for row in trace.audit_report(made, trace.stored(there), done).collect()
    }
    shop, other = found["shop"], found[trace.UNKNOWN]
    assert (shop.produced, shop.stored, shop.consumed) == (9, 9, 7)
    assert (shop.lost, shop.doubled, shop.unsure, shop.late) == (1, 1, 1, 0)
    assert shop.unconsumed == 2
    assert (other.stored, other.late, other.produced) == (1, 1, 0)
