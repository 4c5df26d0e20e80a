"""Batch reads: columns, bounds, filters and tasks."""

import json
import time

import pytest

from clients.waiting import wait_until
from spark.conftest import Tables
from spark.filling import Filling
from tianzhou.client.sync import Admin
from tianzhou.record import flags
from tianzhou.spark.schema import TOPIC

pytestmark = pytest.mark.slow


def test_batch_read_returns_every_column(tables: Tables, filling: Filling, topic: str) -> None:
    before_ms = int(time.time() * 1000)
    filling.send(topic, b"two apples", TAGS="fruit", KEYS="T1 T2", city="大连", UNIQ_KEY="A" * 32)
    (row,) = tables.read(topic).collect()
    assert list(row.asDict()) == list(TOPIC)
    found = row.asDict()
    for name in ("bornTimestamp", "storeTimestamp"):
        assert 0 <= found.pop(name).timestamp() * 1000 - before_ms + 1 < 20_000
    assert found.pop("bornHost").startswith("127.0.0.1:")
    properties = found.pop("properties")
    assert properties["city"] == "大连"
    assert properties["TAGS"] == "fruit"
    assert "__CRC32#" not in properties
    assert found == {
        "topic": topic,
        "brokerName": "broker-a",
        "queueId": 0,
        "queueOffset": 0,
        "msgId": "A" * 32,
        "tags": "fruit",
        "keys": ["T1", "T2"],
        "body": b"two apples",
        "reconsumeTimes": 0,
        "sysFlag": 0,
        "transactionId": None,
    }


def test_compressed_bodies_are_decompressed(tables: Tables, filling: Filling, topic: str) -> None:
    kinds = (flags.COMPRESSION_ZLIB, flags.COMPRESSION_LZ4, flags.COMPRESSION_ZSTD)
    for kind in kinds:
        filling.send(topic, b"%d" % kind * 1000, compressed=kind)
    filling.send(topic, b"plain")
    assert tables.bodies(topic) == sorted([*[str(kind) * 1000 for kind in kinds], "plain"])


def test_batch_read_returns_every_message_once(
    tables: Tables, filling: Filling, topic: str
) -> None:
    bodies = filling.many(topic, 20_000, size=100)
    assert tables.bodies(topic) == bodies
    rows = tables.read(topic).groupBy("queueId").count().collect()
    counts = {row.queueId: row["count"] for row in rows}
    assert counts == filling.ends(topic)


def test_schema_and_option_columns_select_columns(
    tables: Tables, filling: Filling, topic: str
) -> None:
    filling.many(topic, 10)
    narrow = tables.reader(topic).schema("queueOffset long, tags string").load()
    assert narrow.columns == ["queueOffset", "tags"]
    assert narrow.where("tags = 'tag-1'").count() == 3
    assert tables.read(topic, columns="Tags, queueid").columns == ["tags", "queueId"]


def test_batch_read_between_offsets(tables: Tables, filling: Filling, topic: str) -> None:
    filling.many(topic, 100)
    ends = filling.ends(topic)
    start = {topic: {"broker-a": {"0": 5, "1": -2, "2": -1}}}
    end = {topic: {"broker-a": {"0": 10}}}
    rows = tables.read(topic, startingOffsets=json.dumps(start), endingOffsets=json.dumps(end))
    found = {row.queueId: row["count"] for row in rows.groupBy("queueId").count().collect()}
    # A queue that is not named starts at the earliest and ends at the latest offset.
    assert found == {0: 5, 1: ends[1], 3: ends[3]}


def test_batch_read_between_times(tables: Tables, filling: Filling, topic: str) -> None:
    early = filling.many(topic, 50)
    rows = tables.read(topic, columns="storeTimestamp").collect()
    last_ms = max(round(row.storeTimestamp.timestamp() * 1000) for row in rows)
    wait_until(lambda: time.time() * 1000 > last_ms + 2, within_s=5, what="the clock goes on")
    late = filling.many(topic, 50, first=50)
    cut = last_ms + 1
    assert tables.bodies(topic, startingTimestamp=cut) == late
    assert tables.bodies(topic, endingTimestamp=cut) == early
    assert tables.bodies(topic, startingTimestamp=cut + 3_600_000) == []


def test_batch_read_of_several_topics_and_patterns(
    tables: Tables, filling: Filling, topic: str
) -> None:
    names = [f"{topic}-a", f"{topic}-b", f"{topic}x"]
    for name in names:
        filling.many(name, 10)
    assert len(tables.bodies(",".join(names[:2]))) == 20
    assert len(tables.bodies(f"{topic}-.*")) == 20
    assert len(tables.bodies(f"{topic}.+")) == 30


def test_tags_and_expressions_filter_at_the_broker(
    tables: Tables, filling: Filling, topic: str
) -> None:
    bodies = filling.many(topic, 90)
    assert tables.bodies(topic, tags="tag-0 || tag-2") == [
        body for n, body in enumerate(bodies) if n % 3 != 1
    ]
    assert tables.bodies(topic, sql92="number >= 80 AND TAGS = 'tag-1'") == [
        body for n, body in enumerate(bodies) if n >= 80 and n % 3 == 1
    ]


def test_tags_with_the_same_hash_are_distinguished(
    tables: Tables, filling: Filling, topic: str
) -> None:
    filling.send(topic, b"wanted", TAGS="Aa")
    filling.send(topic, b"stranger", TAGS="BB")  # both strings have the same hash code in Java
    assert tables.bodies(topic, tags="Aa") == ["wanted"]


def test_partition_options_set_size_and_number_of_tasks(
    tables: Tables, filling: Filling, topic: str
) -> None:
    bodies = filling.many(topic, 1_000)
    rows = tables.read(topic, maxRowsPerPartition=100)
    assert rows.rdd.getNumPartitions() >= 10
    assert max(rows.rdd.mapPartitions(lambda part: [sum(1 for _ in part)]).collect()) <= 100
    assert tables.read(topic, minPartitions=7).rdd.getNumPartitions() >= 7
    assert tables.bodies(topic, minPartitions=13) == bodies
    # One task is enough for so little data.
    assert tables.read(topic).rdd.getNumPartitions() == 1


def test_small_pull_responses_are_read_completely(
    tables: Tables, filling: Filling, topic: str
) -> None:
    bodies = filling.many(topic, 500)
    assert tables.bodies(topic, pullBatchSize=7) == bodies


def test_empty_topic_is_an_empty_table(tables: Tables, filling: Filling, topic: str) -> None:
    filling.create(topic, 2)
    assert tables.read(topic).count() == 0


def test_topic_can_be_queried_as_a_view(tables: Tables, filling: Filling, topic: str) -> None:
    filling.many(topic, 30)
    tables.spark.sql(
        f"CREATE OR REPLACE TEMPORARY VIEW messages USING rocketmq "
        f"OPTIONS (nameserver '{tables.nameserver}', topic '{topic}')"
    )
    (row,) = tables.spark.sql(
        "SELECT count(*) AS n, count(DISTINCT tags) AS t FROM messages"
    ).collect()
    assert (row.n, row.t) == (30, 3)


def test_path_of_load_is_the_topic(tables: Tables, filling: Filling, topic: str) -> None:
    filling.many(topic, 3)
    reader = tables.spark.read.format("rocketmq").option("nameserver", tables.nameserver)
    assert reader.load(topic).count() == 3


def test_light_queue_is_read_like_a_topic(tables: Tables, filling: Filling, topic: str) -> None:
    """Light queues are switched on in the running broker."""
    with Admin(nameserver=tables.nameserver) as admin:
        settings = {"enableLmq": "true", "enableMultiDispatch": "true"}
        admin.brokers.configure("broker-a", settings)
    light = f"%LMQ%{topic}"
    filling.send(topic, b"1", queue=0, INNER_MULTI_DISPATCH=light)
    filling.send(topic, b"2", queue=1)
    filling.send(topic, b"3", queue=1, INNER_MULTI_DISPATCH=light)
    rows = tables.read(light).orderBy("queueOffset").collect()
    assert [(row.topic, row.queueId, row.queueOffset, bytes(row.body)) for row in rows] == [
        (topic, 0, 0, b"1"),
        (topic, 0, 1, b"3"),
    ]
