"""Filters of a query limit what is read, and never lose a row."""

from datetime import UTC, datetime

from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
)

from tianzhou.spark.pushdown import CLOCK_MARGIN_MS, narrow


def test_filters_on_topic_and_queue_select_queues() -> None:
    found = narrow(
        [EqualTo(("topic",), "orders"), In(("queueId",), (1, 2, 5)), LessThan(("queueId",), 5)]
    )
    assert found.includes_queue("orders", 1)
    assert not found.includes_queue("orders", 5)
    assert not found.includes_queue("orders", 0)
    assert not found.includes_queue("paid", 1)


def test_filters_on_offsets_give_an_interval() -> None:
    found = narrow([GreaterThan(("queueOffset",), 9), LessThanOrEqual(("queueOffset",), 20)])
    assert (found.offset.start, found.offset.end) == (10, 21)
    one = narrow([EqualTo(("queueOffset",), 7)])
    assert (one.offset.start, one.offset.end) == (7, 8)


def test_filters_on_tags_give_the_tags_to_subscribe() -> None:
    found = narrow([In(("tags",), ("a", "b")), EqualTo(("tags",), "b")])
    assert found.tags == {"b"}
    # No consumer can subscribe to this tag, so Spark compares it.
    assert narrow([EqualTo(("tags",), "a||b")]).tags is None


def test_filters_on_store_time_have_a_margin() -> None:
    noon = datetime(2026, 11, 15, 12, tzinfo=UTC)
    noon_ms = int(noon.timestamp() * 1000)
    found = narrow([GreaterThanOrEqual(("storeTimestamp",), noon)])
    assert found.starting_ms == noon_ms - CLOCK_MARGIN_MS
    assert found.ending_ms is None
    assert narrow([LessThan(("storeTimestamp",), noon)]).ending_ms == noon_ms + CLOCK_MARGIN_MS


def test_other_filters_are_left_to_spark() -> None:
    filters: list[Filter] = [
        Not(EqualTo(("topic",), "orders")),
        IsNotNull(("tags",)),
        EqualTo(("msgId",), "x"),
        EqualTo(("topic",), None),
        EqualTo(("properties", "a"), "b"),
    ]
    assert narrow(filters) == narrow([])
