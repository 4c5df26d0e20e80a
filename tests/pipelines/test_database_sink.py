"""The jdbc sink on PostgreSQL, SQLite and Derby: each row once, upserts, and rows of others."""

from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from pipelines import databases
from pipelines.conftest import Place
from tianzhou.spark.pipelines.database import LEDGER, ToDatabase
from tianzhou.spark.pipelines.errors import PipelineError
from tianzhou.spark.pipelines.model import JdbcSink

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def postgresql() -> Iterator[str]:
    with databases.postgresql() as url:
        yield url


@pytest.fixture(params=["postgresql", "sqlite", "derby"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    match request.param:
        case "postgresql":
            return request.getfixturevalue("postgresql")
        case "sqlite":
            databases.need("sqlite-jdbc.jar")
            return f"jdbc:sqlite:{tmp_path}/db"
        case _:
            return f"jdbc:derby:{tmp_path}/db;create=true"


@pytest.fixture(params=["postgresql", "sqlite"])
def upserting(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "postgresql":
        return request.getfixturevalue("postgresql")
    databases.need("sqlite-jdbc.jar")
    return f"jdbc:sqlite:{tmp_path}/db"


def stored(spark: SparkSession, url: str, table: str) -> list[tuple[Any, ...]]:
    rows: list[Any] = spark.read.format("jdbc").options(url=url, dbtable=table).load().collect()
    return sorted(tuple(row) for row in rows)


def totals(spark: SparkSession, **amounts: str) -> DataFrame:
    rows = ", ".join(f"('{city}', {amount}BD)" for city, amount in amounts.items())
    columns = "city, CAST(amount AS DECIMAL(18,2)) AS amount"
    return spark.sql(f"SELECT {columns} FROM VALUES {rows} AS t(city, amount)")


def test_jdbc_sink_stores_a_repeated_micro_batch_once(spark: SparkSession, url: str) -> None:
    write = ToDatabase(JdbcSink(url=url, table="once"), "p-sink-0")
    rows = spark.range(5).toDF("n")
    for batch in (0, 1, 1):
        write(rows, batch)
    assert [row[0] for row in stored(spark, url, "once")] == sorted([*range(5)] * 2)
    assert stored(spark, url, LEDGER)[-1] == ("p-sink-0", 1)


def test_jdbc_sink_keeps_rows_of_other_pipelines(spark: SparkSession, url: str) -> None:
    sink = JdbcSink(url=url, table="shared", batch_column="batch")
    first, second = ToDatabase(sink, "first-sink-0"), ToDatabase(sink, "second-sink-0")
    for write in (first, second, first, second):
        write(spark.range(5).toDF("n"), 0)
    assert stored(spark, url, "shared") == sorted([(n, 0) for n in range(5)] * 2)


def test_jdbc_sink_repeats_what_a_killed_driver_left(spark: SparkSession, url: str) -> None:
    """The driver was killed after its rows were staged: nothing of them is in the table."""
    write = ToDatabase(JdbcSink(url=url, table="again"), "k-sink-0")
    write(spark.range(3).toDF("n"), 0)
    left = ToDatabase(JdbcSink(url=url, table=write.staging_table()), "earlier-attempt")
    left(spark.range(50).toDF("n"), 0)
    write(spark.range(3, 6).toDF("n"), 1)
    assert [row[0] for row in stored(spark, url, "again")] == [*range(6)]


def test_jdbc_sink_with_keys_keeps_one_row_for_each_key(
    spark: SparkSession, upserting: str
) -> None:
    write = ToDatabase(JdbcSink(url=upserting, table="totals", keys=["city"]), "u-sink-0")
    write(totals(spark, Ulm="1.10", 北京="6.01"), 0)
    write(totals(spark, Ulm="3.30", Köln="0.07"), 1)
    write(totals(spark, Ulm="9.99"), 1)  # repeated: already stored
    found = {city: Decimal(str(amount)) for city, amount in stored(spark, upserting, "totals")}
    assert found == {"Ulm": Decimal("3.30"), "北京": Decimal("6.01"), "Köln": Decimal("0.07")}


def test_jdbc_sink_rejects_rows_that_share_keys(spark: SparkSession, upserting: str) -> None:
    write = ToDatabase(JdbcSink(url=upserting, table="doubled", keys=["n"]), "d-sink-0")
    twice = spark.range(3).union(spark.range(1)).toDF("n")
    with pytest.raises(PipelineError, match="two rows of a micro-batch have the same n; group by"):
        write(twice, 0)
    missing = spark.sql("SELECT CAST(null AS BIGINT) AS n")
    with pytest.raises(PipelineError, match="a row has no value for one of n"):
        write(missing, 0)
    assert stored(spark, upserting, "doubled") == []


def test_jdbc_sink_rejects_a_table_without_a_unique_index(
    spark: SparkSession, upserting: str
) -> None:
    rows = spark.range(3).toDF("n")
    ToDatabase(JdbcSink(url=upserting, table="plain"), "without-keys")(rows, 0)
    write = ToDatabase(JdbcSink(url=upserting, table="plain", keys=["n"]), "i-sink-0")
    with pytest.raises(PipelineError, match="plain has no primary key or unique index"):
        write(rows, 0)


def test_jdbc_sink_names_a_missing_column(spark: SparkSession, url: str) -> None:
    write = ToDatabase(JdbcSink(url=url, table="narrow"), "c-sink-0")
    write(spark.range(1).toDF("n"), 0)
    with pytest.raises(PipelineError, match="table narrow has no column city; it has n"):
        write(spark.sql("SELECT 1L AS n, 'Ulm' AS city"), 1)


def test_pipeline_keeps_running_totals_in_a_database(place: Place, upserting: str) -> None:
    topic = place.topic()
    text = (
        "decode: {format: json, schema: 'city STRING, amount DECIMAL(18,2)'}\n"
        "transform: {sql: 'SELECT body.city AS city, sum(body.amount) AS amount FROM messages "
        "GROUP BY 1'}\n"
        f"sinks:\n  - {{type: jdbc, url: '{upserting}', table: sums, keys: [city], mode: update}}\n"
    )
    pipeline = place.pipeline(text, topic)
    for amounts in (("1.10", "2.20"), ("0.05",)):
        place.send(topic, [f'{{"city": "Ulm", "amount": {amount}}}' for amount in amounts])
        place.run(pipeline)
    ((city, amount),) = stored(place.spark, upserting, "sums")
    assert (city, Decimal(str(amount))) == ("Ulm", Decimal("3.35"))
