"""SQL over a topic and its archive: no duplicate and no missing row, as of any time."""

import re
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs
from pyspark.sql import SparkSession

from clients.waiting import wait_until
from pipelines.conftest import Place
from spark.filling import Filling
from spark.processes import BIN, environment
from spark.test_restarts import KEEP_NOTHING, Start, kept_from, nameserver, start
from tianzhou.spark.pipelines.errors import PipelineError
from tianzhou.spark.pipelines.pipeline_file import parse
from tianzhou.spark.pipelines.running import run_to_end
from tianzhou.spark.tables.errors import TableError
from tianzhou.spark.tables.history_table import Cluster, Range, history, topics_of
from tianzhou.spark.tables.query import Bodies, query, query_once, read_sql
from tianzhou.testing import running_broker

__all__ = ["nameserver", "start"]  # fixtures

TOPICS = {"orders", "pay-ments", "%DLQ%stock"}
ARCHIVE = "sinks: [{type: parquet, path: archive}]\n"


@pytest.mark.parametrize(
    ("text", "spark_text", "wanted"),
    [
        ("SELECT * FROM orders", "SELECT * FROM `orders` AS `orders`", [("orders", Range())]),
        (
            "SELECT orders.tags FROM orders o",
            "SELECT orders.tags FROM `orders` o",
            [("orders", Range())],
        ),
        (
            "SELECT 1 AS orders, 'FROM orders' -- FROM orders\n",
            "SELECT 1 AS orders, 'FROM orders' -- FROM orders\n",
            [],
        ),
        (
            "SELECT * FROM `%DLQ%stock` JOIN `pay-ments` p ON true",
            "SELECT * FROM `%DLQ%stock` AS `%DLQ%stock` JOIN `pay-ments` p ON true",
            [("%DLQ%stock", Range()), ("pay-ments", Range())],
        ),
        (
            "SELECT * FROM orders TIMESTAMP AS OF '1970-01-01T00:00:01Z' WHERE true",
            "SELECT * FROM `orders 0` AS `orders` WHERE true",
            [("orders", Range(as_of_ms=1000))],
        ),
        (
            "select * from orders offset between 3 and 9 limit 5",
            "select * from `orders 0` AS `orders` limit 5",
            [("orders", Range(first_offset=3, last_offset=9))],
        ),
        (
            "SELECT * FROM orders OFFSET 5",
            "SELECT * FROM `orders` AS `orders` OFFSET 5",
            [("orders", Range())],
        ),
        (
            "SELECT * FROM orders, nothing",
            "SELECT * FROM `orders` AS `orders`, nothing",
            [("orders", Range())],
        ),
    ],
)
def test_read_sql_finds_topics(text: str, spark_text: str, wanted: list[tuple[str, Range]]) -> None:
    found, uses = read_sql(text, TOPICS)
    assert found == spark_text
    assert [(use.topic, use.wanted) for use in uses] == wanted


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("SELECT * FROM orders TIMESTAMP AS OF (1)", "needs a time in quotes"),
        ("SELECT * FROM orders TIMESTAMP AS OF 'tea time'", "milliseconds since 1970 or a time"),
        ("SELECT * FROM orders OFFSET BETWEEN 1 OR 2", "needs AND"),
        ("SELECT * FROM orders OFFSET BETWEEN one AND 2", "two whole numbers"),
    ],
)
def test_invalid_clause_after_a_topic_is_an_error(text: str, words: str) -> None:
    with pytest.raises(TableError, match=words):
        read_sql(text, TOPICS)


def ask(
    place: Place, text: str, archive: str | None = "archive", bodies: Bodies = "auto"
) -> list[Any]:
    return query(place.spark, text, place.cluster(archive), bodies=bodies).collect()


def test_topic_and_archive_are_one_table(place: Place) -> None:
    """The archive has the first part; the broker has deleted some of it."""
    topic = place.topic("orders")
    name = f"`{topic}`"
    place.send(topic, [{"n": n, "city": "Ulm"} for n in range(40)], tags="old")
    place.run(place.pipeline(f"name: archive-{topic}\n{ARCHIVE}", topic))
    before_ms = int(time.time() * 1000)
    time.sleep(0.01)  # a later millisecond, so that the time is between the two parts
    place.send(topic, [{"n": n, "city": "Bonn"} for n in range(40, 60)], tags="new")

    (row,) = ask(place, f"SELECT count(*) c, count(DISTINCT body.n) d, sum(body.n) s FROM {name}")
    assert (row.c, row.d, row.s) == (60, 60, sum(range(60)))
    (row,) = ask(
        place, f"SELECT count(*) c FROM {name} TIMESTAMP AS OF '{before_ms}'", bodies="raw"
    )
    assert row.c == 40
    rows = ask(place, f"SELECT queueOffset FROM {name} OFFSET BETWEEN 9 AND 11", bodies="raw")
    assert sorted(row.queueOffset for row in rows) == sorted([9, 10, 11] * 4)
    rows = ask(
        place,
        f"SELECT tags, count(*) c FROM {name} WHERE body.city <> 'Rom' GROUP BY tags ORDER BY 1",
    )
    assert [(row.tags, row.c) for row in rows] == [("new", 20), ("old", 40)]
    # The archive alone, without brokers, and with brokers that no longer have the topic.
    archive = place.cluster("archive").archive
    assert history(place.spark, topic, Cluster({}, archive)).count() == 40
    with running_broker() as other:
        cluster = Cluster({"nameserver": other.nameserver}, archive)
        (row,) = query(place.spark, f"SELECT sum(body.n) s FROM {name}", cluster).collect()
    assert row.s == sum(range(40))


def test_archive_that_starts_late_hides_no_rows(place: Place) -> None:
    """Rows from before the start of the archive come from the broker."""
    topic = place.topic("orders")
    place.send(topic, [{"n": n} for n in range(12)])
    pipeline = place.pipeline(f"name: archive-{topic}\n{ARCHIVE}", topic)
    late = structs.replace(pipeline, source={**pipeline.source, "startingOffsets": "latest"})
    place.run(late)
    place.send(topic, [{"n": n} for n in range(12, 20)])
    place.run(late)
    place.send(topic, [{"n": n} for n in range(20, 24)])
    assert place.table("archive").state().rows == 8
    (row,) = ask(place, f"SELECT count(*) c, count(DISTINCT body.n) d FROM `{topic}`")
    assert (row.c, row.d) == (24, 24)
    rows = ask(place, f"SELECT queueOffset FROM `{topic}` OFFSET BETWEEN 2 AND 3", bodies="raw")
    assert sorted(row.queueOffset for row in rows) == [2] * 4 + [3] * 4


SHORT_LIVED = """sinks:
  - type: parquet
    path: archive
    date: "if({old}, DATE'2001-01-01', current_date())"
    retention: 30d
    compactFiles: {compact_files}
"""


@pytest.mark.parametrize(
    ("old", "kept"),
    [
        pytest.param("queueOffset < 3", 8, id="the-first"),
        pytest.param("queueOffset IN (1, 3)", 12, id="while-the-clock-was-set-back"),
    ],
)
def test_rows_deleted_from_an_archive_are_read_from_the_broker(
    place: Place, old: str, kept: int
) -> None:
    topic = place.topic("orders")
    text = f"name: archive-{topic}\n" + SHORT_LIVED.format(old=old, compact_files=2)
    pipeline = place.pipeline(text, topic)
    for first in (0, 10):  # the second time small files are merged
        place.send(topic, [{"n": n} for n in range(first, first + 10)])
        place.run(pipeline)
    assert place.table("archive").state().rows == kept
    place.broker.create_topic(topic, queues=6)
    place.send(topic, [{"n": n} for n in range(20, 32)])
    (row,) = ask(place, f"SELECT count(*) c, count(DISTINCT body.n) d FROM `{topic}`")
    assert (row.c, row.d) == (32, 32)
    (row,) = ask(place, f"SELECT count(*) c FROM `{topic}` OFFSET BETWEEN 1 AND 3", bodies="raw")
    assert row.c == sum(1 <= one.queue_offset <= 3 for one in place.broker.stored(topic))


def test_archive_with_a_gap_hides_no_rows(place: Place) -> None:
    """Its pipeline restarted at a later offset."""
    topic = place.topic("orders")
    pipeline = place.pipeline(f"name: archive-{topic}\n{ARCHIVE}", topic)
    place.send(topic, [{"n": n} for n in range(8)])
    place.run(pipeline)
    place.send(topic, [{"n": n} for n in range(8, 16)])
    late = structs.replace(
        pipeline, source={**pipeline.source, "startingOffsets": "latest"}, checkpoint="another"
    )
    place.run(late)
    place.send(topic, [{"n": n} for n in range(16, 20)])
    place.run(late)
    assert place.table("archive").state().rows == 12
    (row,) = ask(place, f"SELECT count(*) c, count(DISTINCT body.n) d FROM `{topic}`")
    assert (row.c, row.d) == (20, 20)
    again = structs.replace(
        pipeline, source={**pipeline.source, "startingOffsets": "earliest"}, checkpoint="third"
    )
    with pytest.raises(PipelineError, match="would be duplicates"):
        place.run(again)
    assert place.table("archive").state().rows == 12


def test_table_of_filtered_messages_is_rejected_as_archive(place: Place) -> None:
    topic = place.topic("orders")
    place.send(topic, ["x"], tags="paid")
    place.send(topic, ["y"], tags="open")
    pipeline = place.pipeline(f"name: archive-{topic}\n{ARCHIVE}", topic)
    place.run(structs.replace(pipeline, source={**pipeline.source, "tags": "paid"}))
    with pytest.raises(TableError, match=rf"archive does not have all messages of {topic}"):
        ask(place, f"SELECT count(*) FROM `{topic}`")
    (row,) = ask(place, f"SELECT count(*) c FROM `{topic}`", archive=None)
    assert row.c == 2


def test_query_once_pushes_filters_where_that_is_safe(place: Place) -> None:
    """A SELECT that reads a topic twice would apply the filter of one place to the other."""
    topic = place.topic("orders")
    place.send(topic, [f"{n}" for n in range(16)])
    # One task per row shows what is planned.
    cluster = Cluster({"nameserver": place.nameserver, "maxRowsPerPartition": "1"})

    def once(text: str) -> Any:
        return query_once(place.spark, text, cluster, bodies="raw")

    few = once(f"SELECT queueOffset FROM `{topic}` WHERE queueId = 1 AND queueOffset >= 2")
    assert sorted(row.queueOffset for row in few.collect()) == [2, 3]
    assert few.rdd.getNumPartitions() == 2
    some = history(place.spark, topic, cluster, Range(first_offset=1, last_offset=2))
    assert some.rdd.getNumPartitions() == some.count() == 8
    both = f"""SELECT a.queueOffset FROM `{topic}` a WHERE queueId = 1
               UNION ALL SELECT queueOffset FROM `{topic}` WHERE queueId = 2
               UNION ALL SELECT (SELECT count(*) FROM `{topic}`)"""
    assert sorted(row[0] for row in once(both).collect()) == sorted([*range(4), *range(4), 16])


def test_gap_between_archive_and_broker_is_an_error(place: Place) -> None:
    """Rows that neither side has are an error; a topic created again is another topic."""
    topic = place.topic("orders", queues=1)
    place.send(topic, ["x"] * 10)
    place.run(place.pipeline(f"name: archive-{topic}\n{ARCHIVE}", topic))
    table = place.table("archive")
    state = table.state()
    other = place.topic("orders", queues=1)
    place.send(other, ["x"] * 4)
    starts, ends = {other: state.starts[topic]}, {other: state.ends[topic]}
    from tianzhou.spark.tables.log import Change, Log

    Log(table.files).append(Change(starts=starts, ends=ends), 50)
    with pytest.raises(TableError, match=r"archive ends at 10, the broker at 4: .* created again"):
        history(place.spark, other, place.cluster("archive"))


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_sql_fails_for_rows_that_neither_archive_nor_broker_has(
    start: Start, nameserver: str, spark: SparkSession, tmp_path: Path
) -> None:
    """The retention of the broker was faster than the archive."""
    broker = start("broker-a")
    topic = "orders"
    with Filling(nameserver) as filling:
        filling.many(topic, 200, size=500)
        source = f"name: archive\nsource: {{nameserver: '{nameserver}', topic: {topic}}}\n"
        run_to_end(spark, parse(source + ARCHIVE, "archive.yml"), tmp_path)
        filling.many(topic, 3_000, first=200, size=500)
        assert broker.stop() == 0
        start("broker-a", KEEP_NOTHING)
        wait_until(
            lambda: min(kept_from(filling, topic).values()) > 50,
            within_s=30,
            what="the first files are gone",
        )
    command = ["sql", "SELECT count(*) FROM orders", "-n", nameserver, "--archive", "archive"]
    refused = subprocess.run(
        [BIN / "tianzhou", *command],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
    )
    assert (refused.returncode, refused.stdout) == (1, "")
    assert re.search(
        r"queue \d of orders on broker-a: offsets 50 to \d+ are neither in the archive, which ends "
        r"at 50, nor on the broker, which starts at \d+; omit --archive to read only what",
        refused.stderr.replace("\n", " "),
    ), refused.stderr


def test_read_sql_decodes_bodies_by_their_content(place: Place) -> None:
    text_topic, raw_topic = place.topic("text"), place.topic("raw")
    place.send(text_topic, ["one", "two"])
    place.send(raw_topic, [b"\xff\x00"])
    rows = ask(place, f"SELECT body FROM `{text_topic}` ORDER BY 1", archive=None)
    assert [row.body for row in rows] == ["one", "two"]
    (row,) = ask(place, f"SELECT body, rawBody FROM `{raw_topic}`", archive=None)
    assert bytes(row.body) == bytes(row.rawBody) == b"\xff\x00"


def test_unknown_table_error_lists_topics(place: Place) -> None:
    topic = place.topic("known")
    with pytest.raises(TableError, match=r"catalog\. Topics here: .*known"):
        ask(place, "SELECT * FROM nothing_of_the_kind", archive=None)
    assert topic in topics_of(place.cluster(archive=None))
    assert not topics_of(place.cluster(archive=None)) & {"DefaultCluster", "broker-a"}
    with pytest.raises(TableError, match="nothing"):
        ask(place, f"SELECT nothing FROM `{topic}`", archive=None, bodies="raw")
