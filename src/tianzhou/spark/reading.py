"""Reading in a task: ranges of queues in, Arrow batches out. Tasks keep no state."""

import logging
from collections.abc import Iterator
from typing import Final

import numpy as np
from pyspark.sql.datasource import InputPartition

from tianzhou.client.bulk.reader import (
    OffsetGone,
    QueueRange,
    QueueReader,
    RecordRun,
    unwrapped,
)
from tianzhou.client.core.pulling import untrusted
from tianzhou.filter.tags import parse_tags
from tianzhou.record import flags, names
from tianzhou.spark.arrow import Batch, Schema, pa, pc
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
                    chunk = _chunk_of(run, this)
                    batch = to_batch(chunk, schema, broker_name=this.queue.broker_name)
                if not wanted.is_all:
                    # The broker compares hash codes, which other tags may share.
                    allowed = pa.array(sorted(wanted.tags))
                    batch = batch.filter(pc.is_in(chunk.entries.text(names.TAGS), allowed))
                yield batch


def _chunk_of(run: RecordRun, wanted: QueueRange) -> Chunk:
    chunk = Chunk(run.data, run.starts, run.end)
    if not (chunk.sys_flags & flags.INNER_BATCH).any():
        return chunk
    data, starts = unwrapped(bytes(run.data[: run.end]), run.starts)
    chunk = Chunk(data, starts, len(data))
    inside = (chunk.queue_offsets >= wanted.start) & (chunk.queue_offsets < wanted.end)
    return chunk.chosen(np.flatnonzero(inside))


def _warn(gone: OffsetGone) -> None:
    _LOG.warning("%s; failOnDataLoss is false, so the query continues without them", gone)
