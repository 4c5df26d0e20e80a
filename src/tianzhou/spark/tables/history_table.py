"""A topic and its archive as one table, without duplicate or missing rows.

For every queue there are two offsets between which the archive has every row. Rows between them
come from the archive, which never changes, even if the broker still has them; all other rows come
from the broker if it has them. Rows of the archive before the two offsets are used where the broker
has none. If the broker has already deleted rows after the end of the archive, reading fails, and
the error names the missing offsets. A table that has only some messages of its topics, or has
transformed them, is not an archive and is rejected.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tianzhou.client.bulk.brokers import Brokers
from tianzhou.client.bulk.reader import QueueRange
from tianzhou.client.errors import TopicNotFound
from tianzhou.spark import plan
from tianzhou.spark.options import ReadOptions, read_options_of
from tianzhou.spark.pushdown import CLOCK_MARGIN_MS
from tianzhou.spark.schema import TOPIC
from tianzhou.spark.tables.errors import TableError
from tianzhou.spark.tables.log import State
from tianzhou.spark.tables.table import Table
from tianzhou.spark.topics import Topics, translated_errors
from tianzhou.wire.names import DEFAULT_TOPIC
from tianzhou.wire.queues import MessageQueue


@dataclass(frozen=True, slots=True)
class Range:
    """The selected rows. None means all."""

    as_of_ms: int | None = None
    """Only rows stored at this time or before."""
    first_offset: int | None = None
    last_offset: int | None = None

    def chosen(self, rows: DataFrame) -> DataFrame:
        """Return the rows in this range."""
        if self.as_of_ms is not None:
            rows = rows.where(F.col("storeTimestamp") <= F.timestamp_millis(F.lit(self.as_of_ms)))
        if self.first_offset is not None:
            rows = rows.where(F.col("queueOffset") >= self.first_offset)
        if self.last_offset is not None:
            rows = rows.where(F.col("queueOffset") <= self.last_offset)
        return rows


ALL = Range()


@dataclass(frozen=True, slots=True)
class Cluster:
    """Where to find topics and their archive. Either may be missing."""

    options: Mapping[str, str]
    """Options of the connector without topics, such as nameserver and credentials."""
    archive: str | None = None


def topics_of(cluster: Cluster) -> set[str]:
    """Return the topics that can be queried."""
    found: set[str] = set()
    found |= set(_archive_of(cluster).ends)
    if cluster.options.get("nameserver"):
        options = _read_options(cluster, DEFAULT_TOPIC)
        with translated_errors(options), options.cluster.connect() as brokers:
            found |= set(brokers.topics())
    return found


def _archive_of(cluster: Cluster) -> State:
    """Return the archive's state. Raises TableError if it does not exist: with a mistyped name
    rows would be missing silently."""
    if cluster.archive is None:
        return State()
    state = Table(cluster.archive).state()
    if not state.batches:
        raise TableError(
            f"there is no archive at {cluster.archive}, or it is still empty: name the table that "
            "`tianzhou pipeline run archive` writes, or omit --archive"
        )
    return state


def history(spark: SparkSession, topic: str, cluster: Cluster, wanted: Range = ALL) -> DataFrame:
    """Return all rows of a topic, with the columns of `format("rocketmq")`.

    Raises TableError if rows are missing, and SourceError if the topic does not exist.
    """
    state = _archive_of(cluster)
    archived = _Archived(
        starts=plan.from_json({topic: state.starts.get(topic, {})}),
        ends=plan.from_json({topic: state.ends.get(topic, {})}),
    )
    if archived.ends and state.is_part:
        raise TableError(
            f"{cluster.archive} does not have all messages of {topic} unchanged: its pipeline has "
            "a filter, a decoder or a step. Omit --archive, or create an archive without them"
        )
    live = _Live()
    if cluster.options.get("nameserver"):
        live = _live(topic, cluster, archived, wanted)
    found = [_between(spark, topic, cluster, offsets) for offsets in live.ranges]
    if archived.ends:
        assert cluster.archive is not None
        rows = Table(cluster.archive).read(spark, state).where(F.col("topic") == topic)
        found.append(_without(rows, live.before).select(*TOPIC))
    if not found:
        raise TableError(f"topic {topic!r} exists neither on a broker nor in an archive")
    return wanted.chosen(reduce(DataFrame.unionByName, found))


@dataclass(frozen=True, slots=True)
class _Archived:
    """The offsets between which an archive has every row, by queue."""

    starts: plan.Offsets
    ends: plan.Offsets


@dataclass(frozen=True, slots=True)
class _Live:
    """What is read from the broker."""

    ranges: Sequence[tuple[plan.Offsets, plan.Offsets]] = ()
    before: Sequence[QueueRange] = ()
    """Ranges on the broker before the archive's start. The archive may have some of these rows."""


def _live(topic: str, cluster: Cluster, archived: _Archived, wanted: Range) -> _Live:
    """Return what to read from the broker: wanted rows before and after those of the archive.
    Nothing is read if only the archive has the topic."""
    options = _read_options(cluster, topic)
    with translated_errors(options), options.cluster.connect() as brokers:
        topics = Topics(brokers, options)
        try:
            queues = topics.queues()
        except TopicNotFound:
            if archived.ends:
                return _Live()
            raise
        earliest, latest = topics.earliest(queues), topics.latest(queues)
        behind = {queue: archived.ends.get(queue, earliest[queue]) for queue in queues}
        begun = {queue: archived.starts.get(queue, first) for queue, first in earliest.items()}
        before = plan.clamped(begun, earliest, latest)
        found = [_narrowed(brokers, behind, latest, wanted)]
        if plan.row_count(earliest, before):
            found.append(_narrowed(brokers, earliest, before, wanted))
    _check(behind, earliest, latest)
    return _Live(found, plan.ranges_of(earliest, before))


def _without(rows: DataFrame, ranges: Sequence[QueueRange]) -> DataFrame:
    for one in ranges:
        is_of_queue = (F.col("brokerName") == one.queue.broker_name) & (
            F.col("queueId") == one.queue.queue_id
        )
        rows = rows.where(~(is_of_queue & F.col("queueOffset").between(one.start, one.end - 1)))
    return rows


def _between(
    spark: SparkSession, topic: str, cluster: Cluster, offsets: tuple[plan.Offsets, plan.Offsets]
) -> DataFrame:
    first, last = offsets
    reader = spark.read.format("rocketmq").options(**cluster.options).option("topic", topic)
    reader = reader.option("startingOffsets", json.dumps(plan.to_json(first)))
    return reader.option("endingOffsets", json.dumps(plan.to_json(last))).load()


def _narrowed(
    brokers: Brokers, starts: plan.Offsets, ends: plan.Offsets, wanted: Range
) -> tuple[plan.Offsets, plan.Offsets]:
    """Narrow offsets to those that can contain wanted rows."""
    first, last = starts, ends
    if wanted.first_offset is not None:
        first = plan.clamped(dict.fromkeys(starts, wanted.first_offset), starts, ends)
    if wanted.last_offset is not None:
        last = plan.clamped(dict.fromkeys(ends, wanted.last_offset + 1), starts, ends)
    if wanted.as_of_ms is not None:
        behind_ms = wanted.as_of_ms + CLOCK_MARGIN_MS + 1
        last = plan.clamped(brokers.offsets_at(last, behind_ms), starts, last)
    return {queue: min(offset, last[queue]) for queue, offset in first.items()}, last


def _check(
    starts: Mapping[MessageQueue, int],
    earliest: Mapping[MessageQueue, int],
    latest: Mapping[MessageQueue, int],
) -> None:
    for queue, start in starts.items():
        where = f"queue {queue.queue_id} of {queue.topic} on {queue.broker_name}"
        if start < earliest[queue]:
            raise TableError(
                f"{where}: offsets {start} to {earliest[queue] - 1} are neither in the archive, "
                f"which ends at {start}, nor on the broker, which starts at {earliest[queue]}; "
                "omit --archive to read only what the broker has"
            )
        if start > latest[queue]:
            raise TableError(
                f"{where}: the archive ends at {start}, the broker at {latest[queue]}: the topic "
                "was deleted and created again, so the archive belongs to the old one"
            )


def _read_options(cluster: Cluster, topic: str) -> ReadOptions:
    return read_options_of({**cluster.options, "topic": topic}, is_stream=False)
