"""Writes: every column, order, delays and retried batches; also read by RocketMQ's C++ client."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col, concat, lit

from clients.cpp_client import clients_of, installed
from clients.server_process import ServerProcess
from clients.waiting import wait_until
from spark.conftest import Tables
from spark.filling import Filling
from tianzhou.spark.idempotence import MARK_PROPERTY, PROGRESS_FILE

pytestmark = pytest.mark.slow


def save(rows: DataFrame, tables: Tables, topic: str | None, **options: object) -> None:
    writer = rows.write.format("rocketmq").option("nameserver", tables.nameserver).mode("append")
    if topic is not None:
        writer = writer.option("topic", topic)
    writer.options(**{k: str(v) for k, v in options.items()}).save()


def numbered(spark: SparkSession, count: int) -> DataFrame:
    return spark.range(count).select(concat(lit("n"), col("id")).alias("value"))


def test_write_maps_every_column_to_the_message(
    tables: Tables, filling: Filling, topic: str
) -> None:
    rows = tables.of(
        [
            (b"one", f"{topic}-a", "north", ["k1", "k2"], {"city": "大连"}, "T1"),
            (b"two", None, None, None, None, None),
        ],
        "body binary, topic string, tags string, keys array<string>, "
        "properties map<string,string>, shardingKey string",
    )
    save(rows, tables, f"{topic}-b")
    (one,) = tables.read(f"{topic}-a").collect()
    assert (bytes(one.body), one.tags, one.keys) == (b"one", "north", ["k1", "k2"])
    assert one.properties["city"] == "大连"
    assert one.properties["__SHARDINGKEY"] == "T1"
    (two,) = tables.read(f"{topic}-b").collect()
    assert (bytes(two.body), two.tags, two.keys) == (b"two", None, [])


def test_every_row_is_written_with_its_mark(tables: Tables, filling: Filling, topic: str) -> None:
    save(numbered(tables.spark, 10_000).repartition(3), tables, topic)
    rows = tables.read(topic, columns="body,properties,msgId").collect()
    assert sorted(bytes(row.body).decode() for row in rows) == sorted(
        f"n{n}" for n in range(10_000)
    )
    found = {row.properties[MARK_PROPERTY.decode()] for row in rows}
    assert len(found) == 10_000
    assert len({row.msgId for row in rows}) == 10_000
    assert {mark.split(":")[2] for mark in found} == {"0", "1", "2"}
    assert sum(end > 0 for end in filling.ends(topic).values()) == 3, "each task began elsewhere"


def test_write_keeps_order_within_a_sharding_key(
    tables: Tables, filling: Filling, topic: str
) -> None:
    filling.create(topic, 4)
    rows = tables.spark.range(5_000, numPartitions=1).select(
        concat(col("id")).cast("string").alias("value"),
        concat(lit("key-"), col("id") % 7).alias("shardingKey"),
    )
    save(rows, tables, topic)
    places: dict[str, set[int]] = {}
    orders: dict[str, list[int]] = {}
    found = tables.read(topic).orderBy("queueId", "queueOffset").collect()
    for row in found:
        key = row.properties["__SHARDINGKEY"]
        places.setdefault(key, set()).add(row.queueId)
        orders.setdefault(key, []).append(int(bytes(row.body)))
    assert len(found) == 5_000
    assert all(len(queues) == 1 for queues in places.values())
    assert all(numbers == sorted(numbers) for numbers in orders.values())


def test_write_delays_messages(tables: Tables, filling: Filling, topic: str) -> None:
    filling.create(topic, 2)
    soon = datetime.now(UTC) + timedelta(seconds=2)
    rows = tables.of(
        [(b"now", None, None), (b"by level", 1, None), (b"at a time", None, soon)],
        "body binary, delayLevel int, deliverAt timestamp",
    )
    save(rows, tables, topic)
    wait_until(lambda: sum(filling.ends(topic).values()) == 3, within_s=20, what="all delivered")
    found = {bytes(row.body): row for row in tables.read(topic).collect()}
    assert found.keys() == {b"now", b"by level", b"at a time"}
    later, at_a_time = found[b"by level"], found[b"at a time"]
    assert later.storeTimestamp - later.bornTimestamp >= timedelta(seconds=1)
    assert at_a_time.storeTimestamp.timestamp() >= soon.timestamp() - 0.001
    assert found[b"now"].storeTimestamp < min(later.storeTimestamp, at_a_time.storeTimestamp)


def test_write_creates_a_missing_topic(tables: Tables, filling: Filling, topic: str) -> None:
    save(numbered(tables.spark, 10), tables, topic)
    assert len(tables.bodies(topic)) == 10


def test_cpp_clients_and_spark_read_each_others_messages(
    tables: Tables, server: ServerProcess, topic: str, tmp_path: Path
) -> None:
    clients = clients_of(server, installed(), tmp_path)
    try:
        producer = clients.producer()
        producer.send("sync", topic, "from C++", tags="north", keys="k1")
        producer.close()
        (row,) = tables.read(topic).collect()
        assert (bytes(row.body), row.tags, row.keys) == (b"from C++", "north", ["k1"])
        rows = numbered(tables.spark, 20).select("value", lit("south").alias("tags"))
        save(rows, tables, topic)
        got = clients.pull(f"group-{topic}", topic)
        assert sorted(fact["body"] for fact in got) == sorted(
            ["from C++", *(f"n{n}" for n in range(20))]
        )
    finally:
        clients.end()


def copy(tables: Tables, source: str, target: str, place: Path, **options: object) -> DataFrame:
    """Run a query once that copies new messages of one topic to another, and return the copies."""
    rows = tables.stream(source, startingOffsets="earliest", maxOffsetsPerTrigger=400).load()
    query = (
        rows.select("body", "tags", "keys")
        .writeStream.format("rocketmq")
        .option("nameserver", tables.nameserver)
        .option("topic", target)
        .option("checkpointLocation", str(place))
        .options(**{k: str(v) for k, v in options.items()})
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination(150)
    assert query.exception() is None
    return tables.read(target)


def forget_last_batch(place: Path) -> None:
    """As if the driver had been killed before Spark recorded that the batch was done."""
    last = max(int(path.name) for path in (place / "commits").iterdir() if path.name.isdecimal())
    for path in (place / "commits").iterdir():
        if path.name.strip(".").split(".")[0] == str(last):
            path.unlink()


def forget_sink_commit(place: Path, began: dict[str, object]) -> None:
    """As if the driver had been killed before the sink recorded that its last batch was done."""
    progress = json.loads((place / PROGRESS_FILE).read_text())
    committed = progress["committed"] - 1
    kept = {"query": progress["query"], "committed": committed, "began": began}
    (place / PROGRESS_FILE).write_text(json.dumps(kept))


def test_stream_write_marks_a_retried_batch(
    tables: Tables, filling: Filling, topic: str, tmp_path: Path
) -> None:
    filling.many(topic, 1_000)
    target = f"{topic}-copy"
    assert copy(tables, topic, target, tmp_path).count() == 1_000
    forget_last_batch(tmp_path)
    rows = copy(tables, topic, target, tmp_path)
    # At least once: the last 200 are stored twice, with equal marks.
    assert rows.count() == 1_200
    assert rows.selectExpr(f"properties['{MARK_PROPERTY.decode()}']").distinct().count() == 1_000


def test_idempotent_retry_adds_no_duplicates(
    tables: Tables, filling: Filling, topic: str, tmp_path: Path
) -> None:
    bodies = filling.many(topic, 1_000)
    target = f"{topic}-copy"
    copy(tables, topic, target, tmp_path, idempotent=True)
    forget_last_batch(tmp_path)
    copy(tables, topic, target, tmp_path, idempotent=True)
    assert tables.bodies(target) == bodies
    bodies += filling.many(topic, 100, first=1_000)
    copy(tables, topic, target, tmp_path, idempotent=True)
    assert tables.bodies(target) == bodies


def test_idempotent_retry_finds_rows_however_old_they_are(
    tables: Tables, filling: Filling, topic: str, tmp_path: Path
) -> None:
    """The driver was killed in the first micro-batch, which created the topic; the broker has no
    offset of the query, and the topic has grown since. Nothing here depends on a clock."""
    bodies = filling.many(topic, 300)
    target = f"{topic}-copy"
    copy(tables, topic, target, tmp_path, idempotent=True)
    others = filling.many(target, 500, first=5_000)
    forget_last_batch(tmp_path)
    forget_sink_commit(tmp_path, began={})
    copy(tables, topic, target, tmp_path, idempotent=True)
    assert tables.bodies(target) == sorted(bodies + others)


def test_idempotent_retry_adds_missing_rows(
    tables: Tables, filling: Filling, topic: str, tmp_path: Path
) -> None:
    """A batch whose first half was written before the driver was killed."""
    filling.many(topic, 300)
    target = f"{topic}-copy"
    copy(tables, topic, target, tmp_path, idempotent=True)
    whole = tables.read(target).collect()
    half = f"{topic}-half"
    filling.create(half, 4)
    for row in whole[:150]:
        kept = {k: v for k, v in row.properties.items() if k in ("TAGS", "KEYS", "SPARK_MARK")}
        filling.send(half, bytes(row.body), queue=row.queueId, **kept)
    # The same query, according to its checkpoint, with its batch not done.
    forget_last_batch(tmp_path)
    forget_sink_commit(tmp_path, began={})
    copy(tables, topic, half, tmp_path, idempotent=True)
    rows = tables.read(half).collect()
    assert sorted(bytes(r.body) for r in rows) == sorted(bytes(r.body) for r in whole)


def test_idempotent_stream_rejects_a_lost_record(
    tables: Tables, filling: Filling, topic: str, tmp_path: Path
) -> None:
    filling.many(topic, 10)
    copy(tables, topic, f"{topic}-copy", tmp_path, idempotent=True)
    (tmp_path / PROGRESS_FILE).unlink()
    filling.many(topic, 10, first=10)
    with pytest.raises(StreamingQueryException, match="it cannot be known which rows are stored"):
        copy(tables, topic, f"{topic}-copy", tmp_path, idempotent=True)
