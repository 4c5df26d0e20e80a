"""Filters of batch reads: what Spark does with them, and where they are used.

A table in Spark has one plan of its partitions. A query with pushed filters replaces the plan, and
a query without filters uses the plan of the last one. A Python source cannot tell the two apart, so
filters limit what is read only if the option `pushdown` says that the table has one query.
"""

from collections.abc import Iterable, Iterator
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, EqualTo, Filter, InputPartition
from pyspark.sql.functions import col

from spark.conftest import Tables
from spark.filling import Filling

pytestmark = pytest.mark.slow

SWITCH = "spark.sql.python.filterPushdown.enabled"


def source_of_ten() -> type[DataSource]:
    """A minimal source like that in the documentation of Spark: ten rows, or the one that a filter
    selects."""

    class Reader(DataSourceReader):
        def __init__(self) -> None:
            self.numbers = list(range(10))

        def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
            for one in filters:
                if isinstance(one, EqualTo):
                    self.numbers = [one.value]
            return filters

        def partitions(self) -> list[InputPartition]:
            return [InputPartition(number) for number in self.numbers]

        def read(self, partition: InputPartition) -> Iterator[Any]:
            yield (partition.value,)

    class Ten(DataSource):
        @classmethod
        def name(cls) -> str:
            return "ten-numbers"

        def schema(self) -> str:
            return "n int"

        def reader(self, schema: object) -> DataSourceReader:
            return Reader()

    return Ten


def test_spark_keeps_pushed_filters_with_the_table(spark: SparkSession) -> None:
    """The reason why `pushdown` is an option. If this test fails, Spark has fixed it, and
    `pushdown` can become the default."""
    spark.dataSource.register(source_of_ten())
    rows = spark.read.format("ten-numbers").load()
    assert rows.count() == 10
    assert rows.where("n = 3").count() == 1
    assert rows.count() == 1, "ten would be right"
    rows = spark.read.format("ten-numbers").load()
    both = rows.where("n = 3").union(rows.where("n = 5"))
    assert both.count() < 2, "two would be right"


def task_count(rows: DataFrame) -> int:
    return rows.rdd.getNumPartitions()


def test_queries_over_one_table_are_independent(
    tables: Tables, filling: Filling, topic: str
) -> None:
    """Queries in any order, nested, with and without filters."""
    assert tables.spark.conf.get(SWITCH) == "true"
    filling.many(topic, 60)
    rows, ends = tables.read(topic), filling.ends(topic)
    assert rows.where("queueId = 1").count() == ends[1]
    assert rows.count() == 60
    assert rows.where("queueId = 2 AND queueOffset < 3").count() == 3
    both = rows.where("queueId = 1").union(rows.where("tags = 'tag-1'"))
    assert both.count() == ends[1] + 20
    assert rows.join(rows.where("queueOffset = 0"), "queueId").count() == 60


@pytest.mark.parametrize(
    "chosen",
    [
        "queueId IN (1, 2) AND queueOffset < 10",
        "tags = 'tag-1' AND queueOffset >= 5 AND storeTimestamp > '2020-01-01'",
        "topic = 'another'",
        "storeTimestamp < '2020-01-01'",
        "tags IS NULL",
        "tags = 'tag-1' OR queueId = 0",
    ],
)
def test_pushed_filter_returns_the_same_rows(
    tables: Tables, filling: Filling, topic: str, chosen: str
) -> None:
    filling.many(topic, 120)
    columns = ("queueId", "queueOffset")
    plain = tables.read(topic).where(chosen).select(*columns)
    pushed = tables.read(topic, pushdown=True).where(chosen).select(*columns)
    assert sorted(pushed.collect()) == sorted(plain.collect())


def test_pushed_filter_reduces_reads_from_the_broker(
    tables: Tables, filling: Filling, topic: str
) -> None:
    filling.many(topic, 400)
    options = {"pushdown": True, "maxRowsPerPartition": 10}
    assert task_count(tables.read(topic, **options)) == 40
    chosen = (col("queueId") == 2) & (col("queueOffset") >= 80)
    assert task_count(tables.read(topic, **options).where(chosen)) == 2
    assert task_count(tables.read(topic, maxRowsPerPartition=10).where(chosen)) == 40


def test_pushdown_without_the_spark_setting_is_an_error(
    tables: Tables, filling: Filling, topic: str
) -> None:
    filling.many(topic, 3)
    tables.spark.conf.set(SWITCH, "false")
    try:
        assert tables.read(topic).where("queueId = 0").count() <= 3
        with pytest.raises(PySparkException, match=SWITCH):
            tables.read(topic, pushdown=True).count()
    finally:
        tables.spark.conf.set(SWITCH, "true")
