"""Topics as a bounded table: planned once on the driver, read by tasks."""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType

from tianzhou.client.bulk.brokers import Brokers
from tianzhou.spark import plan
from tianzhou.spark.option_values import EARLIEST, LATEST
from tianzhou.spark.options import ReadOptions
from tianzhou.spark.plan import Offsets, Ranges
from tianzhou.spark.pushdown import Narrowed, narrow
from tianzhou.spark.schema import TOPIC, arrow_schema
from tianzhou.spark.topics import Topics, translated_errors
from tianzhou.wire.queues import MessageQueue

if TYPE_CHECKING:
    from tianzhou.spark.arrow import Batch


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
