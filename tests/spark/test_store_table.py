"""Store directories as tables: those that a Java broker wrote, and one in use."""

from pathlib import Path
from typing import Any
from zlib import crc32

import pytest
from pyspark.sql import DataFrame, SparkSession

from clients import server_process
from golden.java_sample import KINDS, sent, unpack
from spark.filling import Filling

pytestmark = pytest.mark.slow


def table(spark: SparkSession, path: Path, **options: object) -> DataFrame:
    reader = spark.read.format("rocketmq-store")
    return reader.options(**{k: str(v) for k, v in options.items()}).load(str(path))


def stored_under(kind: str, topic: str, queue_id: int) -> tuple[str, int]:
    """The broker keeps delayed messages and half messages in queues of internal topics."""
    if kind.startswith("delay"):
        return "SCHEDULE_TOPIC_XXXX", int(kind[5:]) - 1
    if kind.startswith("tx_"):
        return "RMQ_SYS_TRANS_HALF_TOPIC", 0
    return topic, queue_id


@pytest.mark.parametrize("kind", KINDS)
def test_store_written_by_java_matches_its_send_results(
    spark: SparkSession, kind: str, tmp_path: Path
) -> None:
    rows = table(spark, unpack(kind, tmp_path)).collect()
    assert len(rows) == 142
    by_place: dict[tuple[str, int, int], Any] = {
        (row.topic, row.queueId, row.queueOffset): row for row in rows
    }
    expected = sent(kind)
    for message in expected:
        place = stored_under(message.kind, message.topic, message.queue_id)
        row = by_place[*place, message.queue_offset]
        assert row.msgId == message.unique_id
        assert row.tags == message.tags
        assert row.keys == list(message.keys)
        assert len(row.body) == message.body_size
        assert crc32(bytes(row.body)) == message.body_crc
        assert bool(row.sysFlag & 1) == (message.kind == "compressed")
        assert row.bornHost.startswith("127.0.0.1:")
        if message.offset_id is not None:
            assert int(message.offset_id[-16:], 16) == row.physicalOffset
    assert len(expected) > 100


def test_store_table_filters_and_selects_columns(spark: SparkSession, tmp_path: Path) -> None:
    root = unpack("terminated", tmp_path)
    every = table(spark, root).collect()
    orders = table(spark, root, topic="golden_orders", columns="topic, physicalOffset")
    assert orders.columns == ["topic", "physicalOffset"]
    assert orders.count() == sum(row.topic == "golden_orders" for row in every)
    assert table(spark, root, topic="golden_.*").count() == sum(
        row.topic.startswith("golden_") for row in every
    )
    assert table(spark, root, tags="beijing").count() == sum(row.tags == "beijing" for row in every)
    times = sorted(row.storeTimestamp for row in every)
    middle_ms = round(times[70].timestamp() * 1000)
    late = table(spark, root, startingTimestamp=middle_ms).count()
    assert late == sum(row.storeTimestamp >= times[70] for row in every)
    assert table(spark, root, endingTimestamp=middle_ms).count() == len(every) - late
    assert table(spark, root, verify="false").count() == 142


def test_store_table_reads_a_live_directory_in_many_tasks(
    spark: SparkSession, tmp_path: Path
) -> None:
    server = server_process.up(tmp_path)
    try:
        with Filling(server.nameserver) as filling:
            bodies = filling.many("orders", 5_000, size=500)
        rows = table(spark, tmp_path / "data", topic="orders", maxPartitionBytes=300_000)
        # Divided at records that queue files name; a running broker has the others in memory.
        assert rows.rdd.getNumPartitions() > 2
        found = sorted(bytes(row.body).decode() for row in rows.select("body").collect())
        assert found == bodies
    finally:
        server.end()


def test_store_table_reports_damage(spark: SparkSession, tmp_path: Path) -> None:
    from pyspark.errors import PySparkException

    root = unpack("killed", tmp_path)
    first = root / "commitlog" / f"{0:020d}"
    data = bytearray(first.read_bytes())
    data[100] ^= 0xFF  # in the body of the first record
    first.write_bytes(data)
    with pytest.raises(PySparkException, match=r"ROCKETMQ.DATA_LOSS\] .*are not sound records"):
        table(spark, root).count()
    found = table(spark, root, failOnDataLoss="false").count()
    assert found == 141
