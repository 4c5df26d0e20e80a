"""Sinks of a pipeline. Every sink is a streaming query with its own checkpoint.

| sink | after a crash |
| --- | --- |
| parquet | exactly once: see `tables.table` |
| topic | exactly once with `idempotent: true`, otherwise at least once: see the connector |
| jdbc | exactly once: see `database` |
| console | rows may be shown again |
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.streaming.readwriter import DataStreamWriter
from pyspark.sql.types import StructType, TimestampType

from tianzhou.spark.option_values import read_duration_ms
from tianzhou.spark.pipelines.database import ToDatabase
from tianzhou.spark.pipelines.errors import PipelineError
from tianzhou.spark.pipelines.model import ConsoleSink, JdbcSink, ParquetSink, Sink, TopicSink
from tianzhou.spark.pipelines.pipeline_directory import PipelineDirectory, absolute
from tianzhou.spark.pipelines.pipeline_file import as_text
from tianzhou.spark.pipelines.units import read_size
from tianzhou.spark.tables.table import Table

DAY_MS = 86_400_000
Each = Callable[[DataFrame, int], None]


def writer_of(
    rows: DataFrame, sink: Sink, place: PipelineDirectory, *, name: str, is_part: bool = True
) -> "DataStreamWriter":
    """Return the query of a sink, ready to be started. `is_part` is false if the rows are all
    messages of their topics, unchanged."""
    mode = "append" if isinstance(sink, ParquetSink) else sink.mode
    match sink:
        case ParquetSink():
            table = absolute(sink.path, place.directory)
            query = f"{place.identity()}-{name}"
            write = to_table(rows.schema, sink, table, query=query, is_part=is_part)
            writer = rows.writeStream.foreachBatch(write)
        case TopicSink():
            chosen = _analyzed(name, lambda: rows.selectExpr(*(sink.columns or ("*",))))
            writer = chosen.writeStream.format("rocketmq").options(**as_text(sink.options))
        case JdbcSink():
            writer = rows.writeStream.foreachBatch(ToDatabase(sink, f"{place.identity()}-{name}"))
        case ConsoleSink():
            writer = rows.writeStream.foreachBatch(ToConsole(sink.rows))
    return writer.outputMode(mode)


def _analyzed(name: str, make: Callable[[], DataFrame]) -> DataFrame:
    try:
        return make()
    except AnalysisException as error:
        key = f"{name.replace('-', 's.')}.columns"  # sink-0 is sinks.0
        raise PipelineError(f"{key}: {str(error).partition(';')[0]}") from error


@dataclass(frozen=True)
class ToTable:
    """Writes micro-batches to a table. Holds only values, so a Connect server can run it."""

    path: str
    query: str
    date: str | None
    partition_by: Sequence[str]
    compact_files: int
    compact_below: int
    keep_days: int | None
    is_part: bool

    def __call__(self, rows: DataFrame, batch: int) -> None:
        table = Table(self.path)
        if self.date is not None:
            rows = rows.withColumn("date", F.to_date(F.expr(self.date)))
        table.write(
            rows,
            query=self.query,
            batch=batch,
            partition_by=self.partition_by,
            is_part=self.is_part,
        )
        table.compact(rows.sparkSession, files=self.compact_files, below=self.compact_below)
        if self.keep_days is not None:
            oldest_s = time.time() - self.keep_days * DAY_MS / 1000
            table.expire(time.strftime("%Y-%m-%d", time.gmtime(oldest_s)))


def to_table(
    schema: StructType, sink: ParquetSink, path: str, *, query: str, is_part: bool
) -> ToTable:
    names = set(schema.names)
    date = sink.date or _usual_date(schema)
    if "date" in names:
        date = sink.date
    has = names | ({"date"} if date else set[str]())
    return ToTable(
        path=path,
        query=query,
        date=date,
        partition_by=[name for name in sink.partition_by if name in has],
        compact_files=sink.compact_files,
        compact_below=read_size(sink.compact_below),
        keep_days=_days(sink.retention),
        is_part=is_part,
    )


def _usual_date(schema: StructType) -> str | None:
    for field in schema.fields:
        if field.name == "storeTimestamp" and isinstance(field.dataType, TimestampType):
            return field.name
        if field.name == "window" and isinstance(field.dataType, StructType):
            return "window.start"
    return None


def _days(retention: str | None) -> int | None:
    """Return whole days, at least one: a day is deleted when all of it has expired."""
    return None if retention is None else max(1, -(-read_duration_ms(retention) // DAY_MS))


@dataclass(frozen=True)
class ToConsole:
    """Prints micro-batches."""

    rows: int

    def __call__(self, rows: DataFrame, batch: int) -> None:
        rows.show(self.rows, truncate=60)
