"""Tables of Parquet files: each micro-batch once, wherever a writer was killed, for all readers."""

from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tianzhou.spark.tables.errors import TableError
from tianzhou.spark.tables.log import RECORDS_KEPT, Change, DataFile, Log, State
from tianzhou.spark.tables.table import Table

PARTITIONS = ("date", "topic")


def messages(spark: SparkSession, first: int, count: int, *, day: str = "2026-11-16") -> DataFrame:
    return spark.range(first, first + count).select(
        F.lit(day).cast("date").alias("date"),
        F.lit("%DLQ%stock").alias("topic"),
        F.lit("broker-a").alias("brokerName"),
        (F.col("id") % 2).cast("int").alias("queueId"),
        F.floor(F.col("id") / 2).cast("bigint").alias("queueOffset"),
        F.col("id").alias("n"),
    )


def write(table: Table, rows: DataFrame, batch: int, query: str = "query-of-the-test") -> None:
    table.write(rows.coalesce(1), query=query, batch=batch, partition_by=PARTITIONS)


def numbers(table: Table, spark: SparkSession) -> list[int]:
    return sorted(row.n for row in table.read(spark).select("n").collect())


def seen_by_arrow(path: Path) -> list[int]:
    """Return what a reader sees that ignores the log."""
    datasets: Any = import_module("pyarrow.dataset")
    found = datasets.dataset(str(path), partitioning="hive").to_table(columns=["n"])
    return sorted(found.column("n").to_pylist())


def test_table_writes_a_batch_once_and_records_its_offsets(
    spark: SparkSession, tmp_path: Path
) -> None:
    table = Table(str(tmp_path))
    write(table, messages(spark, 0, 10), 0)
    write(table, messages(spark, 10, 6), 1)
    write(table, messages(spark, 10, 6), 1)  # a retry of the same micro-batch
    write(table, messages(spark, 0, 10), 0)
    assert numbers(table, spark) == seen_by_arrow(tmp_path) == list(range(16))
    assert table.state().starts == {"%DLQ%stock": {"broker-a": {"0": 0, "1": 0}}}
    assert table.state().ends == {"%DLQ%stock": {"broker-a": {"0": 8, "1": 8}}}
    assert {str(row.date) for row in table.read(spark).collect()} == {"2026-11-16"}
    assert {row.topic for row in table.read(spark).collect()} == {"%DLQ%stock"}


def test_repair_deletes_files_of_interrupted_writes(spark: SparkSession, tmp_path: Path) -> None:
    """Killed while writing to the staging directory, and killed between moving files and the log
    record."""
    table = Table(str(tmp_path))
    write(table, messages(spark, 0, 4), 0)
    write(table, messages(spark, 4, 4), 1)
    (
        tmp_path / "_tianzhou" / "log" / f"{1:012d}.json"
    ).unlink()  # as if it had been killed before this step
    (tmp_path / "_tianzhou" / "staging" / "half").mkdir(parents=True)
    (tmp_path / "_tianzhou" / "staging" / "half" / "x.parquet").write_bytes(b"PAR1")
    assert numbers(table, spark) == list(range(4))
    table.repair()
    assert seen_by_arrow(tmp_path) == list(range(4))
    write(table, messages(spark, 4, 4), 1)
    assert numbers(table, spark) == seen_by_arrow(tmp_path) == list(range(8))


def test_compact_merges_small_files(spark: SparkSession, tmp_path: Path) -> None:
    table = Table(str(tmp_path))
    for batch in range(4):
        write(table, messages(spark, batch * 10, 10), batch)
    write(table, messages(spark, 40, 10, day="2026-11-17"), 4)
    assert table.compact(spark, files=5, below=1 << 20) == 0
    assert table.compact(spark, files=4, below=1 << 20) == 4
    assert len(table.state().files) == 2
    assert numbers(table, spark) == seen_by_arrow(tmp_path) == list(range(50))
    write(table, messages(spark, 30, 10), 3)  # still recorded as committed
    assert numbers(table, spark) == list(range(50))


def test_write_adds_columns_and_rejects_changed_types(spark: SparkSession, tmp_path: Path) -> None:
    table = Table(str(tmp_path))
    write(table, messages(spark, 0, 2), 0)
    write(table, messages(spark, 2, 2).withColumn("more", F.lit("x")), 1)
    write(table, messages(spark, 4, 2), 2)
    assert [row.more for row in table.read(spark).orderBy("n").collect()] == [
        None,
        None,
        "x",
        "x",
        None,
        None,
    ]
    with pytest.raises(TableError, match="column n of the table is bigint; the new rows have"):
        write(table, messages(spark, 6, 1).withColumn("n", F.lit("six")), 3)
    with pytest.raises(TableError, match="is partitioned by date, topic; the pipeline says date"):
        table.write(messages(spark, 6, 1), query="q", batch=3, partition_by=("date",))
    table.compact(spark, files=2, below=1 << 20)
    assert numbers(table, spark) == list(range(6))


def test_expire_deletes_old_days(spark: SparkSession, tmp_path: Path) -> None:
    table = Table(str(tmp_path))
    for rank, day in enumerate(("2026-11-01", "2026-11-15", "2026-11-16")):
        write(table, messages(spark, rank * 2, 2, day=day), rank)
    assert table.expire("2026-11-15") == 2
    assert numbers(table, spark) == seen_by_arrow(tmp_path) == [2, 3, 4, 5]
    assert table.state().starts == {"%DLQ%stock": {"broker-a": {"0": 1, "1": 1}}}
    assert table.expire("2026-11-17") == 4
    assert (
        table.state().starts == table.state().ends == {"%DLQ%stock": {"broker-a": {"0": 3, "1": 3}}}
    )


def test_write_rejects_messages_that_the_table_has(spark: SparkSession, tmp_path: Path) -> None:
    """For a query that restarts, not for a retried micro-batch."""
    table = Table(str(tmp_path))
    write(table, messages(spark, 0, 10), 0)
    with pytest.raises(
        TableError,
        match=(
            r"queue 0 of %DLQ%stock on broker-a up to offset 4; the new ones start at 3 and would "
            "be duplicates. Omit startingOffsets"
        ),
    ):
        write(table, messages(spark, 6, 10), 0, query="another")
    assert numbers(table, spark) == seen_by_arrow(tmp_path) == list(range(10))
    rows = messages(spark, 6, 10)
    table.write(rows, query="counts", batch=0, partition_by=PARTITIONS, is_part=True)
    assert table.state().rows == 20


def test_table_without_rows_has_no_columns(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(TableError, match="has no rows yet"):
        Table(str(tmp_path)).read(spark)
    write(Table(str(tmp_path)), messages(spark, 0, 0), 0)
    assert Table(str(tmp_path)).read(spark).count() == 0


def test_table_log_is_checkpointed(tmp_path: Path) -> None:
    table = Table(str(tmp_path))
    log = Log(table.files)
    count = 3 * RECORDS_KEPT
    for number in range(count):
        _, following = log.read()
        log.append(
            Change(added=[DataFile(f"{number}.parquet", 1, 10)], query="q", batch=number), following
        )
        log.write_checkpoint()
    assert len(list((tmp_path / "_tianzhou" / "log").iterdir())) <= RECORDS_KEPT + 1
    state = table.state()
    assert len(state.files) == count
    assert state.has("q", count - 1)
    assert not state.has("q", count)


def test_invalid_log_record_is_an_error(tmp_path: Path) -> None:
    place = tmp_path / "_tianzhou" / "log"
    place.mkdir(parents=True)
    (place / f"{0:012d}.json").write_text("half a rec")
    with pytest.raises(TableError, match="is not a valid log record"):
        Table(str(tmp_path)).state()


def test_states_do_not_share_mutable_defaults() -> None:
    """Defaults of a struct are copied: tables do not share their files."""
    first = State()
    first.add(Change(added=[DataFile("a", 1, 1)]))
    assert State().files == {}


def test_state_records_offsets_without_gaps() -> None:
    """Not across a gap, and without what retention deleted."""
    state = State()

    def take(first: int, end: int) -> None:
        state.add(
            Change(starts={"orders": {"a": {"0": first}}}, ends={"orders": {"a": {"0": end}}})
        )

    def has() -> tuple[int, int]:
        return state.starts["orders"]["a"]["0"], state.ends["orders"]["a"]["0"]

    take(3, 5)
    take(5, 9)
    assert has() == (3, 9)
    take(12, 20)
    assert has() == (12, 20)
    state.add(Change(gone={"orders": {"a": {"0": 15}}}))
    assert has() == (15, 20)
    state.add(Change(gone={"orders": {"a": {"0": 4}}}))
    assert has() == (15, 20)
    state.add(Change(gone={"orders": {"a": {"0": 20}}}))
    take(20, 21)
    assert has() == (20, 21)
