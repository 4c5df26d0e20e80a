"""`format("rocketmq-store")`: a store directory as a table, with no broker.

For audits, repairs and migration: every record of the commit log is a row, including those of the
broker's internal topics. Executors must see the directory under the same path.
"""

import re
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from tianzhou.base.errors import TianzhouError
from tianzhou.client.bulk.reader import unwrapped
from tianzhou.filter.tags import parse_tags
from tianzhou.record import flags, names
from tianzhou.spark.arrow import Array, Batch, pa, pc
from tianzhou.spark.columns import Chunk, to_batch
from tianzhou.spark.errors import DataLoss, SourceError
from tianzhou.spark.options import StoreOptions, store_options_of
from tianzhou.spark.schema import STORE, arrow_schema, table_schema
from tianzhou.spark.store_log import (
    LogDamaged,
    LogSlice,
    LogSpan,
    StoreNotFound,
    log_spans,
    read_span,
)


class RocketMQStore(DataSource):
    """The data source `rocketmq-store`: a store directory as a table.

        spark.read.format("rocketmq-store").load("tianzhou-data")

    Spark calls the methods. They raise SourceError for invalid options.
    """

    @classmethod
    def name(cls) -> str:
        return "rocketmq-store"

    def schema(self) -> StructType:
        return table_schema(STORE, store_options_of(self.options).columns)

    def reader(self, schema: StructType) -> "StoreReader":
        return StoreReader(store_options_of(self.options), schema)


@dataclass(frozen=True, repr=False)
class LogPartition(InputPartition):
    """The work of one task: a span of the log."""

    piece: LogSpan


class StoreReader(DataSourceReader):
    """Reads a store directory. Planned on the driver, read by tasks."""

    def __init__(self, options: StoreOptions, schema: StructType) -> None:
        self._options = options
        self._schema = arrow_schema(STORE, schema)

    def partitions(self) -> list[InputPartition]:
        with _translated_errors():
            pieces = log_spans(self._options.path, self._options.partition_bytes_max)
        return [LogPartition(piece) for piece in pieces]

    def read(self, partition: InputPartition) -> Iterator[Batch]:
        if not isinstance(partition, LogPartition):
            return
        options = self._options
        slices = read_span(
            partition.piece, verify=options.verify, skip_damage=not options.fail_on_data_loss
        )
        with _translated_errors():
            for piece in slices:
                chunk = self._wanted(_chunk_of(piece))
                if len(chunk):
                    yield to_batch(chunk, self._schema)

    def _wanted(self, chunk: Chunk) -> Chunk:
        """Return the records that match the options."""
        options, keep = self._options, np.ones(len(chunk), bool)
        if options.starting_ms is not None:
            keep &= chunk.store_times_ms >= options.starting_ms
        if options.ending_ms is not None:
            keep &= chunk.store_times_ms < options.ending_ms
        if options.topics is not None:
            keep &= _matches(chunk.topics(), options.topics)
        tags = parse_tags(options.tags)
        if not tags.is_all:
            found = pc.is_in(chunk.entries.text(names.TAGS), pa.array(sorted(tags.tags)))
            keep &= found.to_numpy(zero_copy_only=False)
        return chunk if keep.all() else chunk.chosen(np.flatnonzero(keep))


def _matches(texts: Array, wanted: tuple[str, ...] | re.Pattern[str]) -> np.ndarray:
    """Return which texts match. A chunk has few distinct topics; each is matched once."""
    few = texts.dictionary_encode()
    accepted = [
        bool(wanted.fullmatch(topic)) if isinstance(wanted, re.Pattern) else topic in wanted
        for topic in few.dictionary.to_pylist()
    ]
    return np.array(accepted, bool)[few.indices.to_numpy()]


def _chunk_of(piece: LogSlice) -> Chunk:
    chunk = Chunk(piece.data, piece.starts, piece.end)
    if not (chunk.sys_flags & flags.INNER_BATCH).any():
        return chunk
    data, starts = unwrapped(bytes(piece.data[: piece.end]), piece.starts)
    return Chunk(data, starts, len(data))


@contextmanager
def _translated_errors() -> Generator[None]:
    try:
        yield
    except StoreNotFound as error:
        raise SourceError("NO_STORE", str(error)) from None
    except LogDamaged as error:
        raise DataLoss(str(error)) from None
    except FileNotFoundError as error:
        raise DataLoss(
            f"{error.filename} no longer exists: did retention delete it during the read?"
        ) from None
    except (TianzhouError, OSError) as error:
        raise SourceError("READ_FAILED", str(error)) from error
