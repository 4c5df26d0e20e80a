"""`format("rocketmq")`: topics as tables, for reading and writing, in batches and streams.

A batch is planned once on the driver: a range of each queue, divided among tasks.

For a stream the checkpoint is authoritative: it holds an offset for every queue, and a micro-batch
is the range between two checkpoints, so a retry reads exactly the same messages. The start of every
range must be recorded. Spark does not record where a query starts, and asks again when it retries
the first micro-batch; by then `latest` has moved. The first micro-batch therefore reads nothing,
and its end is the recorded start, marked with `$begun`. `earliest` needs no such micro-batch: it is
recorded as a name, and always means the earliest message each queue still has. A queue that appears
later enters the offsets with the offset of its first message; the next micro-batch reads from
there.

Spark starts a Python process for every stream, and one to plan every batch. What only tasks or only
writers need is therefore imported where it is used.
"""

import logging
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    Filter,
    InputPartition,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from tianzhou.client.bulk.brokers import Brokers
from tianzhou.client.errors import ClientError
from tianzhou.spark import plan
from tianzhou.spark.errors import SourceError
from tianzhou.spark.option_values import EARLIEST, LATEST
from tianzhou.spark.options import (
    ReadOptions,
    check_read_options,
    read_options_of,
    write_options_of,
)
from tianzhou.spark.plan import Offsets, Ranges
from tianzhou.spark.pushdown import Narrowed, narrow
from tianzhou.spark.schema import TOPIC, arrow_schema, table_schema
from tianzhou.spark.topics import Topics, translated_errors
from tianzhou.wire.queues import MessageQueue

if TYPE_CHECKING:
    from tianzhou.spark.arrow import Batch
    from tianzhou.spark.writer import TopicStreamWriter, TopicWriter

_LOG: Final = logging.getLogger("tianzhou.spark")


class RocketMQ(DataSource):
    """The data source `rocketmq`: topics as tables.

        spark.read.format("rocketmq").option("nameserver", "127.0.0.1:9876").load("orders")

    Spark calls the methods. They raise SourceError for invalid options.
    """

    @classmethod
    def name(cls) -> str:
        return "rocketmq"

    def schema(self) -> StructType:
        # Invalid options are reported here, when the table is loaded. Whether Spark reads a batch
        # or a stream is not known yet.
        return table_schema(TOPIC, check_read_options(self.options).get("columns", ()))

    def reader(self, schema: StructType) -> "TopicReader":
        options = read_options_of(self.options, is_stream=False)
        return (NarrowedReader if options.pushdown else TopicReader)(options, schema)

    def streamReader(self, schema: StructType) -> "TopicStreamReader | RejectedStream":
        try:
            return TopicStreamReader(read_options_of(self.options, is_stream=True), schema)
        except SourceError as error:
            return RejectedStream(error)

    def writer(self, schema: StructType, overwrite: bool) -> "TopicWriter":
        from tianzhou.spark.writer import TopicWriter

        if overwrite:
            raise SourceError(
                "APPEND_ONLY", 'messages of a topic cannot be replaced; use mode("append")'
            )
        return TopicWriter(write_options_of(self.options, is_stream=False), schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> "TopicStreamWriter":
        from tianzhou.spark.writer import TopicStreamWriter

        if overwrite:
            raise SourceError(
                "APPEND_ONLY", 'messages of a topic cannot be replaced; use outputMode("append")'
            )
        return TopicStreamWriter(write_options_of(self.options, is_stream=True), schema)


# Batches


class TopicReader(DataSourceReader):
    """Reads a bounded range of each queue. Planned on the driver, read by tasks."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._schema = arrow_schema(TOPIC, schema)
        self._narrowed = Narrowed()

    def partitions(self) -> list[InputPartition]:
        options = self._options
        with translated_errors(options), options.cluster.connect() as brokers:
            start, end = self._bounds(Topics(brokers, options), brokers)
        divided = plan.divided(
            plan.ranges_of(start, end),
            rows_max=options.partitioning.rows_max,
            partitions_min=options.partitioning.partitions_min,
        )
        return [Ranges(ranges) for ranges in divided]

    def read(self, partition: InputPartition) -> "Iterator[Batch]":
        # Imported here because the driver only plans and starts faster without the decoders.
        from tianzhou.spark.reading import read_ranges

        return read_ranges(self._options, self._schema, self._tags(), partition)

    def _tags(self) -> str:
        """Return the option `tags`, or without one the tags that the query's filter allows."""
        options, tags = self._options, self._narrowed.tags
        return (
            options.filter.tags
            if tags is None or options.filter.sql92 or options.filter.tags != "*"
            else (" || ".join(sorted(tags)))
        )

    def _bounds(self, topics: Topics, brokers: Brokers) -> tuple[Offsets, Offsets]:
        queues = topics.queues()
        earliest, latest = topics.earliest(queues), topics.latest(queues)
        start = self._side("starting", brokers, earliest, latest)
        end = self._side("ending", brokers, earliest, latest)
        if not any(
            isinstance(one, int) for one in (self._options.start.offsets, self._options.end.offsets)
        ):
            plan.check_forward(start, end)
        if self._narrowed.tags == set():
            return {}, {}
        chosen = [q for q in queues if self._narrowed.includes_queue(q.topic, q.queue_id)]
        self._narrow_times(brokers, chosen, start, end)
        low, high = self._narrowed.offset.start, self._narrowed.offset.end
        return (
            {queue: max(start[queue], low) for queue in chosen},
            {queue: min(end[queue], high) for queue in chosen},
        )

    def _side(self, side: str, brokers: Brokers, earliest: Offsets, latest: Offsets) -> Offsets:
        options = self._options
        is_start = side == "starting"
        time_ms = options.start.time_ms if is_start else options.end.time_ms
        if time_ms is not None:
            return plan.clamped(brokers.offsets_at(latest, time_ms), earliest, latest)
        found = plan.resolve(
            options.start.offsets if is_start else options.end.offsets,
            earliest=earliest,
            latest=latest,
            default=EARLIEST if is_start else LATEST,
            option=f"{side}Offsets",
        )
        if options.fail_on_data_loss:
            plan.check_inside(found, earliest, latest, f"{side}Offsets")
        return plan.clamped(found, earliest, latest)

    def _narrow_times(
        self, brokers: Brokers, queues: list[MessageQueue], start: Offsets, end: Offsets
    ) -> None:
        first_ms, end_ms = self._narrowed.starting_ms, self._narrowed.ending_ms
        if first_ms is not None:
            for queue, offset in brokers.offsets_at(queues, first_ms).items():
                start[queue] = max(start[queue], offset)
        if end_ms is not None:
            for queue, offset in brokers.offsets_at(queues, end_ms).items():
                end[queue] = min(end[queue], offset)


class NarrowedReader(TopicReader):
    """A reader for the option `pushdown`: the query's filter limits what is planned.

    Spark 4.3 caches the plan with the table and plans again only for a query that has a filter; a
    query without one gets the plan of the last filter. Use it only for tables of one query.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Return all filters, so that Spark applies them too: they only reduce what is read."""
        self._narrowed = narrow(filters)
        return filters


# Streams


class RejectedStream(DataSourceStreamReader):
    """A reader for invalid options: raises the error in Spark's first call.

    If the constructor raised, Spark would try to stop the reader that it did not get, and that
    error would hide the real one.
    """

    def __init__(self, error: SourceError) -> None:
        self._error = error

    def getDefaultReadLimit(self) -> ReadLimit:
        raise self._error

    def initialOffset(self) -> plan.OffsetJson:
        raise self._error

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        raise self._error

    def read(self, partition: InputPartition) -> "Iterator[Batch]":
        raise self._error

    def stop(self) -> None:
        """Do nothing: there is no connection to close."""


class TopicStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans and reads the micro-batches of a stream.

    The state it keeps between calls only affects when to read, never what.

    Owner: on the driver, one process for the life of a query; on executors, one task.
    """

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._schema = arrow_schema(TOPIC, schema)
        self._brokers = options.cluster.connect()
        self._topics = Topics(self._brokers, options)
        self._has_end = False
        """Whether this is an AvailableNow query."""
        self._target: Offsets | None = None
        """Where an AvailableNow query ends."""
        self._initial: plan.OffsetJson | None = None
        self._latest: Offsets = {}
        self._held_since_s: float | None = None
        self._committed: Offsets = {}
        """Offsets that the group has committed to the brokers."""

    def __getstate__(self) -> dict[str, Any]:
        """Send only options and schema to tasks; connections stay on the driver."""
        return {"options": self._options, "schema": self._schema}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._options, self._schema = state["options"], state["schema"]

    # Start and limits

    def initialOffset(self) -> plan.OffsetJson:
        """Return where the stream starts. Spark asks twice and must get the same result."""
        if self._initial is None:
            self._initial = self._find_initial()
        return self._initial

    def _find_initial(self) -> plan.OffsetJson:
        options = self._options
        with translated_errors(options):
            queues = self._topics.queues()
            if options.start.offsets == EARLIEST and options.start.time_ms is None:
                return {plan.FROM_EARLIEST: {}}
            earliest, latest = self._topics.earliest(queues), self._topics.latest(queues)
            if options.start.time_ms is not None:
                found = self._brokers.offsets_at(queues, options.start.time_ms)
            else:
                found = plan.resolve(
                    options.start.offsets,
                    earliest=earliest,
                    latest=latest,
                    default=LATEST,
                    option="startingOffsets",
                )
                if options.fail_on_data_loss:
                    plan.check_inside(found, earliest, latest, "startingOffsets")
        return plan.to_json(plan.clamped(found, earliest, latest))

    def getDefaultReadLimit(self) -> ReadLimit:
        most = self._options.trigger.rows_max
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def prepareForTriggerAvailableNow(self) -> None:
        """Note that the query has an end. The end is resolved with the first micro-batch.

        By then a new query has already failed for missing topics; a resumed query waits for them.
        """
        self._has_end = True

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> plan.OffsetJson:
        is_named = plan.FROM_EARLIEST in start
        before = self._beginning() if is_named else plan.from_json(start)
        # Spark asks for the next micro-batch after the last one has finished, but calls `commit`
        # only with the next one: without this, the last micro-batch would never be committed.
        self._commit_group(before)
        self._latest = self._ends(before)
        if not is_named and plan.BEGUN not in start:
            return {**start, plan.BEGUN: {}}
        if self._waits(before, limit):
            return start
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        known = {queue: self._latest[queue] for queue in before if queue in self._latest}
        end = known if most is None else plan.limited(before, known, most)
        # Queues of unreachable brokers keep their offsets; new queues start at their first.
        found = plan.to_json({**before, **end, **self._first_of_new(before)})
        return {**found, plan.BEGUN: {}}

    def _beginning(self) -> Offsets:
        """Return the first offsets of reachable queues; other queues join later, like new ones."""
        return self._ask(lambda: self._topics.earliest_of_reachable(self._topics.queues()))

    def _ends(self, before: Offsets) -> Offsets:
        """Return the ends of reachable queues, or the recorded ends of an AvailableNow query."""
        if self._has_end:
            if self._target is None:
                self._target = self._ask(lambda: self._topics.latest(self._topics.queues()))
            ends = {queue: max(end, before.get(queue, 0)) for queue, end in self._target.items()}
        else:
            ends = self._ask(lambda: self._topics.latest_of_reachable(self._topics.queues()))
        return self._repaired(before, ends)

    def _repaired(self, before: Offsets, ends: Offsets) -> Offsets:
        """Check that no queue ends before the query's position: it would have lost messages."""
        if self._options.fail_on_data_loss:
            both = {queue: end for queue, end in ends.items() if queue in before}
            plan.check_kept(before, both, earliest={})
        return ends

    def _first_of_new(self, before: Offsets) -> Offsets:
        new = [queue for queue in self._latest if queue not in before]
        return self._ask(lambda: self._topics.earliest(new)) if new else {}

    def _ask(self, question: Callable[[], Offsets]) -> Offsets:
        """Retry, so that a running query survives the restart of a broker or NameServer."""
        with translated_errors(self._options):
            return self._brokers.persist(question, on_failure=self._brokers.forget)

    def _waits(self, before: Offsets, limit: ReadLimit) -> bool:
        """Return whether to wait for more messages before the next micro-batch."""
        least = self._options.trigger.rows_min
        if isinstance(limit, ReadMinRows):
            least = max(least, limit.min_rows)
        ready = plan.row_count(before, self._latest)
        if self._has_end or ready == 0 or ready >= least:
            self._held_since_s = None
            return False
        now_s = time.monotonic()
        if self._held_since_s is None:
            self._held_since_s = now_s
        if (now_s - self._held_since_s) * 1000 < self._options.trigger.delay_ms:
            return True
        self._held_since_s = None
        return False

    def reportLatestOffset(self) -> plan.OffsetJson | None:
        """Return the latest offsets regardless of limits; Spark computes the lag from them."""
        return plan.to_json(self._latest) if self._latest else None

    # Reading

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        is_named = plan.FROM_EARLIEST in start
        if not is_named and plan.BEGUN not in start:
            return []
        options, last = self._options, plan.from_json(end)
        if is_named:
            earliest = self._ask(lambda: self._topics.earliest(last))
            first = {queue: min(earliest[queue], offset) for queue, offset in last.items()}
            moved = last
        else:
            # A queue that is new in `end` starts at that offset: there is nothing to read yet.
            known = plan.from_json(start)
            first = {queue: known.get(queue, offset) for queue, offset in last.items()}
            moved = {queue: offset for queue, offset in last.items() if offset != first[queue]}
            earliest = self._ask(lambda: self._topics.earliest(moved))
        if options.fail_on_data_loss:
            plan.check_kept(first, moved, earliest)
        divided = plan.divided(
            plan.ranges_of(plan.kept(first, moved, earliest), moved),
            rows_max=options.partitioning.rows_max,
            partitions_min=options.partitioning.partitions_min,
        )
        return [Ranges(ranges) for ranges in divided]

    def read(self, partition: InputPartition) -> "Iterator[Batch]":
        # Imported here because the driver only plans and starts faster without the decoders.
        from tianzhou.spark.reading import read_ranges

        return read_ranges(self._options, self._schema, self._options.filter.tags, partition)

    # Committing

    def commit(self, end: dict[str, Any]) -> None:
        self._commit_group(plan.from_json(end))

    def _commit_group(self, finished: Offsets) -> None:
        """Commit offsets to the brokers, so that they report the lag of this query like that of any
        other group. All messages before these offsets are in the sink."""
        group = self._options.group
        moved = {queue: at for queue, at in finished.items() if self._committed.get(queue) != at}
        if group is None or not moved:
            return
        try:
            self._brokers.commit(group, moved)
        except ClientError as error:
            # The checkpoint is authoritative; the next commit corrects the reported lag.
            _LOG.warning("cannot commit offsets of group %s to the broker: %s", group, error)
        else:
            self._committed |= moved

    def stop(self) -> None:
        self._brokers.close()
