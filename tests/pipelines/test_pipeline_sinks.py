"""Steps between topic and sink, and every kind of sink, with a real broker and a real database."""

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from pipelines.conftest import Place
from tianzhou.spark.pipelines.database import ToDatabase
from tianzhou.spark.pipelines.errors import PipelineError
from tianzhou.spark.pipelines.model import JdbcSink

JSON = 'decode: {format: json, schema: "city STRING, amount INT, at TIMESTAMP"}\n'


def test_sql_and_python_steps_write_a_partitioned_table(place: Place) -> None:
    (place.directory / "steps.py").write_text(
        "from pyspark.sql import functions as F\n"
        "@F.udf('string')\n"
        "def loud(text):\n    return text.upper()\n"
        "def shouted(rows):\n    return rows.withColumn('city', loud('city'))\n"
    )
    topic = place.topic()
    place.send(topic, [{"city": "bonn", "amount": 1}, {"city": "ulm", "amount": 5}])
    text = JSON + (
        "transform:\n"
        "  sql: SELECT topic, storeTimestamp, body.city, body.amount * 2 AS twice FROM messages"
        " WHERE body.amount > 1\n"
        "  python: steps.py:shouted\n"
        "sinks: [{type: parquet, path: out}]\n"
    )
    (sample,) = [s for s in place.run(place.pipeline(text, topic)) if s.query == "sink-0"]
    (row,) = place.rows("out")
    assert (row.city, row.twice, row.topic) == ("ULM", 10, topic)
    (name,) = place.table("out").state().files
    assert name.startswith(f"date={row.date}/topic={topic}/")
    assert (sample.rows_in, sample.rows_out, sample.behind) == (2, 1, 0)
    assert sample.latency_ms is not None
    assert sample.latency_ms > 0


def test_windows_close_when_the_watermark_has_passed(place: Place) -> None:
    topic = place.topic()
    pipeline = place.pipeline(
        JSON + "transform:\n"
        "  watermark: {column: body.at, delay: 2 minutes}\n"
        "  window: {size: 1 minute, groupBy: {city: tags}, select: {n: count(*), sum: "
        "sum(body.amount)}}\n"
        "sinks: [{type: parquet, path: out}]\n",
        topic,
    )

    def pay(minute: int, second: int, amount: int) -> None:
        at = f"2026-11-16T08:{minute:02d}:{second:02d}Z"
        place.send(topic, [{"amount": amount, "at": at}], tags="北京")

    pay(5, 0, 100)
    pay(4, 30, 10)  # out of order, but in time
    place.run(pipeline)
    pay(1, 0, 1_000_000)  # the watermark is at 8:03: too late
    pay(9, 0, 1)
    place.run(pipeline)
    rows = place.rows("out", "window.start", "city", "n", "sum")
    assert sorted((r.start.minute, r.city, r.n, r["sum"]) for r in rows) == [
        (4, "北京", 1, 10),
        (5, "北京", 1, 100),
    ]


def test_an_event_from_the_future_does_not_stop_an_aggregate(place: Place) -> None:
    topic = place.topic()
    text = (
        f"name: future\n{JSON}"
        "transform:\n  watermark: {column: body.at, delay: 2 minutes}\n"
        "  window: {size: 1 minute, select: {n: count(*)}}\n"
        "sinks: [{type: parquet, path: out}]\n"
    )
    pipeline = place.pipeline(text, topic)
    for at in ("2099-01-01T00:00:00Z", "2026-11-16T08:05:00Z", "2026-11-16T08:09:00Z"):
        place.send(topic, [{"amount": 1, "at": at}])
        place.run(pipeline)
    rows = place.rows("out", "window.start", "n")
    assert [(row.start.minute, row.n) for row in rows] == [(5, 1)]
    (bad,) = place.rows("checkpoints/future/quarantine", "body", "reason")
    assert b"2099" in bytes(bad.body)
    assert bad.reason == (
        "the event time 2099-01-01 00:00:00 is more than 1h after the message was stored"
    )


def test_topic_sink_writes_messages(place: Place) -> None:
    topic, other = place.topic(), place.topic("other")
    place.send(topic, [{"city": "Ulm", "amount": n} for n in range(50)])
    text = JSON + (
        "transform: {sql: \"SELECT to_json(body) AS body, 'big' AS tags FROM messages"
        ' WHERE body.amount >= 40"}\n'
        f"sinks:\n  - type: topic\n    options: {{nameserver: '{place.nameserver}', "
        f"topic: {other}, idempotent: true}}\n"
    )
    pipeline = place.pipeline(text, topic)
    place.run(pipeline)
    place.run(pipeline)
    found = place.broker.stored(other)
    assert len(found) == 10
    assert {message.tags for message in found} == {"big"}


def derby(directory: Path) -> str:
    return f"jdbc:derby:{directory}/db;create=true"


def read_database(spark: SparkSession, url: str, table: str) -> list[Any]:
    return spark.read.format("jdbc").options(url=url, dbtable=table).load().collect()


def test_jdbc_and_console_sinks_write_rows(place: Place, capfd: pytest.CaptureFixture[str]) -> None:
    topic = place.topic()
    place.send(topic, [{"city": "Ulm", "amount": n} for n in range(7)])
    url = derby(place.directory)
    text = JSON + (
        "transform: {sql: SELECT body.amount AS amount FROM messages}\n"
        "sinks:\n"
        f"  - {{type: jdbc, url: '{url}', table: amounts, batchColumn: batch}}\n"
        "  - {type: console, rows: 3}\n"
    )
    place.run(place.pipeline(text, topic))
    rows = read_database(place.spark, url, "amounts")
    assert sorted(row[0] for row in rows) == list(range(7))
    assert {row[1] for row in rows} == {0}
    assert "only showing top 3 rows" in capfd.readouterr().out


def test_jdbc_sink_without_exactly_once_appends_again(place: Place) -> None:
    write = ToDatabase(JdbcSink(url=derby(place.directory), table="again", exactly_once=False), "q")
    for _ in range(2):
        write(place.spark.range(5).toDF("n"), 0)
    assert len(read_database(place.spark, derby(place.directory), "again")) == 10


@pytest.mark.parametrize(
    ("transform", "words"),
    [
        ("{sql: SELECT nothing FROM messages}", "nothing"),
        ("{sql: SELEKT}", "SELEKT"),
        ("{python: nowhere.py:f}", r"nowhere\.py does not exist"),
        ("{python: tianzhou.spark.sessions:nothing}", "has no function 'nothing'"),
        ("{python: just_words}", r"must be file\.py:function"),
        ("{watermark: {column: body.nothing, delay: 1 minute}}", "nothing"),
    ],
)
def test_invalid_transform_fails_before_data_is_read(
    place: Place, transform: str, words: str
) -> None:
    topic = place.topic()
    text = f"{JSON}transform: {transform}\nsinks: [{{type: parquet, path: out}}]\n"
    with pytest.raises(PipelineError, match=words):
        place.run(place.pipeline(text, topic))
    assert not (place.directory / "out").exists()


def test_missing_source_topic_is_an_error(place: Place) -> None:
    with pytest.raises(PipelineError, match=r"UNKNOWN_TOPIC.*nothing-here"):
        place.run(place.pipeline("sinks: [{type: parquet, path: out}]\n", "nothing-here"))
