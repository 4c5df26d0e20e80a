"""Invalid input: one clear sentence each, in Spark's style, before data is read where possible."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql.functions import lit

from clients.server_process import spare_port
from spark.conftest import Tables
from spark.filling import Filling

pytestmark = pytest.mark.slow


def said(act: Callable[[], Any]) -> str:
    """Return what the user reads, without the stack trace."""
    with pytest.raises(PySparkException) as caught:
        act()
    assert "UnboundLocalError" not in str(caught.value)
    (line,) = {
        line.partition("[ROCKETMQ.")[2]
        for line in str(caught.value).splitlines()
        if "[ROCKETMQ." in line
    }
    return line


def test_load_reports_unknown_options_and_invalid_values(tables: Tables, topic: str) -> None:
    for load in (lambda: tables.read(topic, topc="x"), tables.stream(topic, topc="x").load):
        assert said(load).startswith("WRONG_OPTION] unknown option 'topc': did you mean topic?")
    assert "option failOnDataLoss is 'perhaps'; it must be true or false" in said(
        lambda: tables.read(topic, failOnDataLoss="perhaps")
    )


def test_load_reports_missing_options(tables: Tables) -> None:
    reader = tables.spark.read.format("rocketmq")
    assert "option nameserver is missing" in said(lambda: reader.load("orders"))
    reader = tables.spark.read.format("rocketmq").option("nameserver", tables.nameserver)
    assert "no topics to read" in said(reader.load)
    assert "option path is missing" in said(tables.spark.read.format("rocketmq-store").load)


def test_load_reports_unknown_topics(tables: Tables, topic: str) -> None:
    wanted = f"UNKNOWN_TOPIC] topic '{topic}' does not exist at {tables.nameserver}"
    assert said(tables.read(topic).count) == wanted


def test_load_reports_an_unreachable_nameserver(tables: Tables) -> None:
    address = f"127.0.0.1:{spare_port()}"
    reader = tables.spark.read.format("rocketmq").option("nameserver", address)
    sentence = said(reader.load("orders").count)
    assert sentence.startswith(f"NAMESERVER_UNREACHABLE] no name server responded: {address}: ")
    assert sentence.endswith("check option nameserver")


def test_load_reports_offsets_out_of_range(tables: Tables, filling: Filling, topic: str) -> None:
    filling.many(topic, 8)
    ends = filling.ends(topic)
    far = f'{{"{topic}":{{"broker-a":{{"0":1000}}}}}}'
    sentence = said(tables.read(topic, startingOffsets=far).count)
    assert "OFFSET_OUT_OF_RANGE] startingOffsets names offset 1000 of queue 0" in sentence
    assert f"which has offsets 0 to {ends[0]}" in sentence
    rows = tables.read(topic, startingOffsets=far, failOnDataLoss="false")
    assert rows.count() == 8 - ends[0]
    first, second = (f'{{"{topic}":{{"broker-a":{{"0":{offset}}}}}}}' for offset in (2, 1))
    assert "is 2, which is after endingOffsets, 1; it must not be greater" in said(
        tables.read(topic, startingOffsets=first, endingOffsets=second).count
    )
    unknown = f'{{"{topic}":{{"broker-x":{{"0":1}}}}}}'
    assert "UNKNOWN_QUEUE] startingOffsets names queue 0 of topic" in said(
        tables.read(topic, startingOffsets=unknown).count
    )


def test_load_reports_schemas_that_do_not_match(
    tables: Tables, filling: Filling, topic: str
) -> None:
    filling.many(topic, 1)
    other = tables.reader(topic).schema("body string").load()
    assert "column body is binary; the schema says string: correct the schema and cast" in said(
        other.count
    )
    unknown = tables.reader(topic).schema("price int").load()
    assert "the schema has a column 'price'; columns are topic, brokerName" in said(unknown.count)
    assert "option columns has 'price'" in said(lambda: tables.read(topic, columns="price"))


def test_stream_with_invalid_options_fails_at_start(
    tables: Tables, filling: Filling, topic: str, tmp_path: Path
) -> None:
    """Streams fail at once, also those that would end by themselves, with a single error
    message."""

    def started(rows: DataFrame, *, once: bool) -> Callable[[], Any]:
        writer = rows.writeStream.format("noop").option("checkpointLocation", str(tmp_path))
        writer = writer.trigger(availableNow=True) if once else writer
        return lambda: writer.start().awaitTermination(20)

    unknown = tables.stream(topic).load()
    for once in (False, True):
        assert said(started(unknown, once=once)).startswith(f"UNKNOWN_TOPIC] topic '{topic}' does")
    filling.create(topic, 1)
    assert "a stream has no end" in said(
        started(tables.stream(topic, endingOffsets="latest").load(), once=True)
    )
    narrow = tables.stream(topic).schema("body string").load()
    assert "column body is binary; the schema says string" in said(started(narrow, once=False))
    far = f'{{"{topic}":{{"broker-a":{{"0":1000}}}}}}'
    assert "OFFSET_OUT_OF_RANGE] startingOffsets names offset 1000 of queue 0" in said(
        started(tables.stream(topic, startingOffsets=far).load(), once=True)
    )


def test_write_reports_invalid_rows_and_options(tables: Tables, topic: str) -> None:
    rows = tables.spark.range(3)
    good = rows.select(lit("x").alias("value"))

    def save(what: Any, *, mode: str = "append", **options: str) -> Callable[[], None]:
        writer = what.write.format("rocketmq").option("nameserver", tables.nameserver).mode(mode)
        return writer.options(**options).save

    assert "column 'id' cannot be written" in said(save(rows, topic=topic))
    assert "no topic to write to" in said(save(good))
    assert "APPEND_ONLY] messages of a topic cannot be replaced" in said(
        save(good, mode="overwrite", topic=topic)
    )
    assert "topic 'a b' is not made of letters" in said(save(good, topic="a b"))
    empty = rows.select(lit("").alias("value"))
    assert f"WRONG_ROW] a row for topic {topic} has an empty body" in said(save(empty, topic=topic))


def test_store_table_reports_invalid_input(tables: Tables, tmp_path: Path) -> None:
    reader = tables.spark.read.format("rocketmq-store")
    assert "NO_STORE]" in said(reader.load(str(tmp_path)).count)
