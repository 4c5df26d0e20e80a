"""A table of Parquet files, to which each micro-batch of a query is written exactly once.

A micro-batch is written to a staging directory, its files are moved to their places under new
names, and one log record makes them visible. If the process is killed in between, the retried
micro-batch either finds its record and does nothing, or finds orphaned files, which the writer
deletes on its next start. Tools that ignore the log and read all Parquet files of the directory see
the same rows, except while files are being moved.
"""

import json
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Final
from urllib.parse import unquote

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from tianzhou.spark.tables.columns import merged
from tianzhou.spark.tables.errors import TableError
from tianzhou.spark.tables.files import Files
from tianzhou.spark.tables.log import STAGING, Change, DataFile, Log, State
from tianzhou.spark.tables.spans import QueueOffsets, fold, reject_duplicates

_parquet: Any = import_module("pyarrow.parquet")
_PLACE: Final = ("brokerName", "queueId", "queueOffset")
"""Columns that identify the message of a row."""


class Table:
    """Reads and writes a table. Owner: one writer, or any number of readers."""

    def __init__(self, path: str) -> None:
        self.files = Files(path)
        self._log = Log(self.files)

    def state(self) -> State:
        return self._log.read()[0]

    # Reading

    def read(self, spark: SparkSession, state: State | None = None) -> DataFrame:
        """Return all current rows. Raises TableError if the table was never written."""
        state = state or self.state()
        if not state.schema:
            raise TableError(f"{self.files.uri} has no rows yet, so its columns are unknown")
        schema = StructType.fromJson(_json(state.schema))
        if not state.files:
            nothing = [F.lit(None).cast(one.dataType).alias(one.name) for one in schema.fields]
            return spark.range(0).select(*nothing)
        return self._frame(spark, schema, state.files)

    def _frame(self, spark: SparkSession, schema: StructType, names: Iterable[str]) -> DataFrame:
        reader = spark.read.schema(schema).option("basePath", self.files.uri)
        return reader.parquet(*(self.files.uri_of(name) for name in names))

    # Writing

    def write(
        self,
        rows: DataFrame,
        *,
        query: str,
        batch: int,
        partition_by: Sequence[str],
        is_part: bool = False,
    ) -> None:
        """Add the rows of a micro-batch, unless it is already committed.

        `is_part` means that messages of the topics were filtered or transformed. Raises TableError
        if the columns or partitions do not match, or if rows would be duplicates.
        """
        state, number = self._log.read()
        if state.has(query, batch):
            return
        before = StructType.fromJson(_json(state.schema)) if state.schema else StructType()
        schema = merged(before, rows.schema)
        if state.schema and state.partitions != list(partition_by):
            raise TableError(
                f"{self.files.uri} is partitioned by {', '.join(state.partitions) or 'nothing'}; "
                f"the pipeline says {', '.join(partition_by) or 'nothing'}; write to another table"
            )
        staged = self._stage(rows, partition_by, f"{query[:8]}-{batch:08d}")
        if not is_part:
            reject_duplicates(staged.starts, state.ends, self.files.uri)
        change = Change(
            added=self._moved(staged),
            query=query,
            batch=batch,
            schema=schema.json(),
            partitions=list(partition_by),
            starts=staged.starts,
            ends=staged.ends,
            is_part=is_part,
        )
        self._log.append(change, number)
        self._log.write_checkpoint()

    def _stage(self, rows: DataFrame, partition_by: Sequence[str], prefix: str) -> "_Staged":
        staged = _Staged(f"{STAGING}/{uuid.uuid4().hex}")
        rows.write.partitionBy(*partition_by).parquet(self.files.uri_of(staged.aside))
        written = self.files.files_in(staged.aside, deep=True)
        parquet = sorted(one for one in written if one.name.endswith(".parquet"))
        for rank, entry in enumerate(parquet):
            directory = entry.name[len(staged.aside) + 1 :].rpartition("/")[0]
            count = self._read_spans(entry.name, directory, staged.starts, staged.ends)
            name = f"{directory}/{prefix}-{rank}.parquet".lstrip("/")
            if count:
                staged.files[entry.name] = DataFile(name, count, entry.size)
        return staged

    def _moved(self, staged: "_Staged") -> list[DataFile]:
        for name, file in staged.files.items():
            self.files.move(name, file.name)
        self.files.remove_all(staged.aside)
        return list(staged.files.values())

    def _read_spans(
        self, name: str, directory: str, starts: QueueOffsets, ends: QueueOffsets
    ) -> int:
        """Return the row count of a file and merge the offsets of its queues into both tables."""
        topics = [unquote(part[6:]) for part in directory.split("/") if part.startswith("topic=")]
        with self.files.open(name) as opened:
            file = _parquet.ParquetFile(opened)
            names = {column.name for column in file.schema_arrow}
            if topics and names.issuperset(_PLACE):
                found = file.read(columns=list(_PLACE)).group_by(["brokerName", "queueId"])
                spans = found.aggregate([("queueOffset", "min"), ("queueOffset", "max")])
                for row in spans.to_pylist():
                    broker, queue = row["brokerName"], str(row["queueId"])
                    fold(starts, {topics[0]: {broker: {queue: row["queueOffset_min"]}}}, min)
                    fold(ends, {topics[0]: {broker: {queue: row["queueOffset_max"] + 1}}}, max)
            return file.metadata.num_rows

    # Maintenance

    def repair(self) -> None:
        """Delete files left by killed writers. The writer calls this when it starts."""
        state = self.state()
        self.files.remove_all(STAGING)
        for entry in self.files.files_in("", deep=True):
            is_data = entry.name.endswith(".parquet") and not entry.name.startswith("_")
            if is_data and entry.name not in state.files:
                self.files.remove(entry.name)

    def compact(self, spark: SparkSession, *, files: int, below: int) -> int:
        """Merge small files of a directory if there are many; return how many were merged."""
        state, number = self._log.read()
        by_directory: dict[str, list[DataFile]] = {}
        for file in state.files.values():
            if file.size < below:
                by_directory.setdefault(file.directory, []).append(file)
        gone = 0
        for small in by_directory.values():
            if len(small) >= files:
                self._join(spark, state, small, number)
                gone += len(small)
                number += 1
        return gone

    def _join(self, spark: SparkSession, state: State, small: list[DataFile], number: int) -> None:
        schema = StructType.fromJson(_json(state.schema))
        names = [file.name for file in small]
        rows = self._frame(spark, schema, names).coalesce(1)
        prefix = f"compact-{number:08d}"
        staged = self._stage(rows, state.partitions, prefix)
        self._replace(Change(added=self._moved(staged), removed=names), number)

    def expire(self, first_day: str) -> int:
        """Delete the rows of days before this one; return how many."""
        state, number = self._log.read()
        old = [file for file in state.files.values() if _day_of(file.name) < first_day]
        gone: QueueOffsets = {}
        for file in old:
            self._read_spans(file.name, file.directory, {}, gone)
        if old:
            self._replace(Change(removed=[file.name for file in old], gone=gone), number)
        return sum(file.rows for file in old)

    def _replace(self, change: Change, number: int) -> None:
        self._log.append(change, number)
        for name in change.removed:
            self.files.remove(name)


@dataclass(slots=True)
class _Staged:
    """Rows in the staging directory, and the offsets of their queues."""

    aside: str
    files: dict[str, DataFile] = field(default_factory=dict[str, DataFile])
    """Staged file to its final name and size."""
    starts: QueueOffsets = field(default_factory=QueueOffsets)
    ends: QueueOffsets = field(default_factory=QueueOffsets)


def _day_of(name: str) -> str:
    """Return the day in a file's path; files without one never expire."""
    days = [part[5:] for part in name.split("/") if part.startswith("date=")]
    return days[0] if days else "~"


def _json(text: str) -> dict[str, Any]:
    return json.loads(text)
