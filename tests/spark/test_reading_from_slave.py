"""Spark reads old messages from the slave: exactly, also if the slave is killed in the middle."""

import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from replication.ha_cluster import Group, Node, until, until_equal, until_read_at_slave
from spark.conftest import Tables
from spark.filling import Filling
from tianzhou.spark.pipelines.builtin import template
from tianzhou.spark.pipelines.pipeline_file import parse
from tianzhou.spark.pipelines.running import run_to_end
from tianzhou.spark.tables.history_table import Cluster, history
from tianzhou.spark.tables.table import Table
from tianzhou.testing.chaos import looking

pytestmark = pytest.mark.slow

TOPIC = "orders"
COUNT = 40_000


@pytest.fixture
def replicated(tmp_path: Path) -> Iterator[tuple[Group, Node, list[str]]]:
    """A master and a slave with the same messages, all of which count as old."""
    with Group(tmp_path, accessMessageInMemoryMaxRatio="0") as group:
        master, slave = group.master, group.add(1)
        master.start()
        slave.start()
        group.create_topic(TOPIC)
        with Filling(group.nameserver) as filling:
            sent = filling.many(TOPIC, COUNT)
        until_equal(master, slave)
        until_read_at_slave(group)
        yield group, slave, sent


def served_by(node: Node) -> int:
    """How many messages a broker has sent to readers."""
    return int(looking.runtime(node.address)["msgGetTotalTodayNow"])


def test_table_sql_and_archive_read_from_the_slave(
    spark: SparkSession, tmp_path: Path, replicated: tuple[Group, Node, list[str]]
) -> None:
    group, slave, sent = replicated
    tables = Tables(spark, group.nameserver)
    expected = sorted(sent)
    reads = {
        "table": lambda: tables.bodies(TOPIC),
        "sql": lambda: bodies_of_sql(spark, group),
        "archive": lambda: bodies_of_archive(spark, group, tmp_path),
    }
    for name, read in reads.items():
        before = served_by(slave)
        assert read() == expected, name
        assert served_by(slave) - before > COUNT * 0.99, name


def bodies_of_sql(spark: SparkSession, group: Group) -> list[str]:
    """As `tianzhou sql` reads a topic."""
    rows = history(spark, TOPIC, Cluster({"nameserver": group.nameserver})).select("body").collect()
    return sorted(bytes(row.body).decode() for row in rows)


def bodies_of_archive(spark: SparkSession, group: Group, directory: Path) -> list[str]:
    """As `tianzhou pipeline run archive --once` writes it."""
    given = {"source.nameserver": group.nameserver, "source.topic": TOPIC}
    run_to_end(spark, parse(template("archive"), "archive", given=given), directory)
    rows = Table(str(directory / "archive")).read(spark).select("body").collect()
    return sorted(bytes(row.body).decode() for row in rows)


def test_kill_of_the_slave_in_the_middle_of_a_batch_keeps_every_row_once(
    spark: SparkSession, replicated: tuple[Group, Node, list[str]]
) -> None:
    group, slave, sent = replicated
    before, killed_at = served_by(slave), list[int]()

    def kill_in_the_middle() -> None:
        until(lambda: served_by(slave) - before > COUNT // 10, "the tasks read from the slave")
        killed_at.append(served_by(slave) - before)
        slave.server.kill()

    killer = threading.Thread(target=kill_in_the_middle)
    killer.start()
    # Small pulls, so that the slave dies between two of them.
    bodies = Tables(spark, group.nameserver).bodies(TOPIC, pullBatchSize=8)
    killer.join()
    assert Counter(bodies) == Counter(sent)
    assert killed_at[0] < COUNT
    assert served_by(group.master) > COUNT // 4
