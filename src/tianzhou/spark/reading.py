"""Reading in a task: ranges of queues in, Arrow batches out. Tasks keep no state.

Tasks that read a store directory (`store_source.py`) unpack and filter records in the same way.
"""

import logging
from collections.abc import Iterator
from typing import Final

import numpy as np
from pyspark.sql.datasource import InputPartition

from tianzhou.base.kinds import Bytes
from tianzhou.client.bulk.reader import (
    OffsetGone,
    QueueRange,
    QueueReader,
    unwrapped,
)
from tianzhou.client.core.pulling import untrusted
from tianzhou.filter.tags import TagFilter, parse_tags
from tianzhou.record import flags, names
from tianzhou.spark.arrow import Array, Batch, Schema, pa, pc
from tianzhou.spark.columns import Chunk, to_batch
from tianzhou.spark.options import GROUP_DEFAULT, ReadOptions
from tianzhou.spark.plan import Ranges
from tianzhou.spark.topics import translated_errors

_LOG: Final = logging.getLogger("tianzhou.spark")


def read_ranges(
    options: ReadOptions, schema: Schema, tags: str, partition: InputPartition
) -> Iterator[Batch]:
    """Yield the rows of a partition.

    `tags` is the filter of the options, or the tags that the query's own filter allows.
    """
    if not isinstance(partition, Ranges):
        return  # Spark passes another type if there is nothing to read
    wanted = parse_tags(tags)
    with translated_errors(options), options.cluster.connect() as brokers:
        reader = QueueReader(
            brokers,
            options.group or GROUP_DEFAULT,
            tags=tags,
            sql92=options.filter.sql92,
            on_gone=None if options.fail_on_data_loss else _warn,
            **({"pull_count": options.pull_count} if options.pull_count else {}),
        )
        for this in partition.ranges:
            for run in reader.read(this):
                with untrusted(this.queue, this.start):
                    chunk = chunk_of(run.data, run.starts, run.end, this)
                    batch = to_batch(chunk, schema, broker_name=this.queue.broker_name)
                if not wanted.is_all:
                    # The broker compares hash codes, which other tags may share.
                    batch = batch.filter(has_tag(chunk, wanted))
                yield batch


def chunk_of(data: Bytes, starts: list[int], end: int, wanted: QueueRange | None = None) -> Chunk:
    """Return the records as a chunk. A batch that is stored as one record becomes its messages, of
    which those outside the range `wanted` are left out."""
    chunk = Chunk(data, starts, end)
    if not (chunk.sys_flags & flags.INNER_BATCH).any():
        return chunk
    data, starts = unwrapped(bytes(data[:end]), starts)
    chunk = Chunk(data, starts, len(data))
    if wanted is None:
        return chunk
    inside = (chunk.queue_offsets >= wanted.start) & (chunk.queue_offsets < wanted.end)
    return chunk.chosen(np.flatnonzero(inside))


def has_tag(chunk: Chunk, wanted: TagFilter) -> Array:
    """Return which messages have one of the tags."""
    return pc.is_in(chunk.entries.text(names.TAGS), pa.array(sorted(wanted.tags)))


def _warn(gone: OffsetGone) -> None:
    _LOG.warning("%s; failOnDataLoss is false, so the query continues without them", gone)
