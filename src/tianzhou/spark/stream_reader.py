"""A topic as a table without end.

The checkpoint is the truth: it holds an offset for every queue, and a micro-batch is the range
between two of them, read again exactly when it is repeated. Every range has a beginning that is
written down. Spark does not write down where a query begins, and asks for it again when it repeats
the first micro-batch, when `latest` is somewhere else; so the first one reads nothing, and its end
is the beginning, which the mark `$begun` says. `earliest` needs no such micro-batch: it is a name,
and means at every repetition what each queue still has. A queue that appears later comes into the
offsets with the number of its first message, and is read from there by the next micro-batch.
"""

import logging
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from tianzhou.client.errors import ClientError
from tianzhou.spark import plan
from tianzhou.spark.errors import SourceError
from tianzhou.spark.option_values import EARLIEST, LATEST
from tianzhou.spark.options import ReadOptions
from tianzhou.spark.plan import Offsets, Ranges
from tianzhou.spark.schema import TOPIC, arrow_schema
from tianzhou.spark.topics import Topics, translated_errors

if TYPE_CHECKING:
    from tianzhou.spark.arrow import Batch

_LOG: Final = logging.getLogger("tianzhou.spark")


class RejectedStream(DataSourceStreamReader):
    """Says at Spark's first question why there is no stream. What is raised before that comes to
    the user behind a mistake of Spark's own: it stops the reader that it did not get."""

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
        """It has nothing."""


class TopicStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Owner: on the driver, one process for the life of a query; on executors, one task.

    What it remembers between calls decides only when to read, never what.
    """

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._schema = arrow_schema(TOPIC, schema)
        self._brokers = options.cluster.connect()
        self._topics = Topics(self._brokers, options)
        self._has_end = False
        """Whether it is an AvailableNow query."""
        self._target: Offsets | None = None
        """Where such a query ends."""
        self._initial: plan.OffsetJson | None = None
        self._latest: Offsets = {}
        self._held_since_s: float | None = None
        self._committed: Offsets = {}
        """What the brokers know of the group."""

    def __getstate__(self) -> dict[str, Any]:
        """Tasks get the options and the schema; connections stay on the driver."""
        return {"options": self._options, "schema": self._schema}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._options, self._schema = state["options"], state["schema"]

    # Where it begins and how far it may go

    def initialOffset(self) -> plan.OffsetJson:
        """Spark asks twice, and must hear the same."""
        if self._initial is None:
            self._initial = self._find_initial()
        return self._initial

    def _find_initial(self) -> plan.OffsetJson:
        options = self._options
        with translated_errors(options):
            queues = self._topics.queues()
            if options.starting == EARLIEST and options.starting_ms is None:
                return {plan.FROM_EARLIEST: {}}
            earliest, latest = self._topics.earliest(queues), self._topics.latest(queues)
            if options.starting_ms is not None:
                found = self._brokers.offsets_at(queues, options.starting_ms)
            else:
                found = plan.resolve(
                    options.starting, earliest=earliest, latest=latest, default=LATEST,
                    option="startingOffsets",
                )  # fmt: skip
                if options.fail_on_data_loss:
                    plan.check_inside(found, earliest, latest, "startingOffsets")
        return plan.to_json(plan.clamped(found, earliest, latest))

    def getDefaultReadLimit(self) -> ReadLimit:
        most = self._options.offsets_per_trigger_max
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def prepareForTriggerAvailableNow(self) -> None:
        """Where it ends is asked with the first micro-batch. A query that is new has by then heard
        at once of topics that are not there; one that goes on waits for them."""
        self._has_end = True

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> plan.OffsetJson:
        is_named = plan.FROM_EARLIEST in start
        before = self._beginning() if is_named else plan.from_json(start)
        # Spark asks for the next micro-batch when the last one is done, and reports that only
        # with the next one: the last of a query would be missing.
        self._commit_group(before)
        self._latest = self._ends(before)
        if not is_named and plan.BEGUN not in start:
            return {**start, plan.BEGUN: {}}
        if self._waits(before, limit):
            return start
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        known = {queue: self._latest[queue] for queue in before if queue in self._latest}
        end = known if most is None else plan.limited(before, known, most)
        # Queues of brokers that are away stay where they are; new ones begin with their first.
        found = plan.to_json({**before, **end, **self._first_of_new(before)})
        return {**found, plan.BEGUN: {}}

    def _beginning(self) -> Offsets:
        """Where the queues begin that can be asked; others come later, as new ones do."""
        return self._ask(lambda: self._topics.earliest_of_reachable(self._topics.queues()))

    def _ends(self, before: Offsets) -> Offsets:
        """The ends of all queues that can be asked, or what was the end when the query began."""
        if self._has_end:
            if self._target is None:
                self._target = self._ask(lambda: self._topics.latest(self._topics.queues()))
            ends = {queue: max(end, before.get(queue, 0)) for queue, end in self._target.items()}
        else:
            ends = self._ask(lambda: self._topics.latest_of_reachable(self._topics.queues()))
        return self._repaired(before, ends)

    def _repaired(self, before: Offsets, ends: Offsets) -> Offsets:
        """A queue that ends before the query's place has lost messages."""
        if self._options.fail_on_data_loss:
            both = {queue: end for queue, end in ends.items() if queue in before}
            plan.check_kept(before, both, earliest={})
        return ends

    def _first_of_new(self, before: Offsets) -> Offsets:
        new = [queue for queue in self._latest if queue not in before]
        return self._ask(lambda: self._topics.earliest(new)) if new else {}

    def _ask(self, question: Callable[[], Offsets]) -> Offsets:
        """A query that runs lives through the restart of a broker or name server."""
        with translated_errors(self._options):
            return self._brokers.persist(question, on_failure=self._brokers.forget)

    def _waits(self, before: Offsets, limit: ReadLimit) -> bool:
        """Whether there is too little for a micro-batch, and still time."""
        least = self._options.offsets_per_trigger_min
        if isinstance(limit, ReadMinRows):
            least = max(least, limit.min_rows)
        ready = plan.row_count(before, self._latest)
        if self._has_end or ready == 0 or ready >= least:
            self._held_since_s = None
            return False
        now_s = time.monotonic()
        if self._held_since_s is None:
            self._held_since_s = now_s
        if (now_s - self._held_since_s) * 1000 < self._options.trigger_delay_ms:
            return True
        self._held_since_s = None
        return False

    def reportLatestOffset(self) -> plan.OffsetJson | None:
        """What there is, whatever the limits: progress shows how far behind the query is."""
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
            # A queue that is new in `end` has its first offset there: nothing to read yet.
            known = plan.from_json(start)
            first = {queue: known.get(queue, offset) for queue, offset in last.items()}
            moved = {queue: offset for queue, offset in last.items() if offset != first[queue]}
            earliest = self._ask(lambda: self._topics.earliest(moved))
        if options.fail_on_data_loss:
            plan.check_kept(first, moved, earliest)
        divided = plan.divided(
            plan.ranges_of(plan.kept(first, moved, earliest), moved),
            rows_max=options.rows_per_partition_max,
            partitions_min=options.partitions_min,
        )
        return [Ranges(ranges) for ranges in divided]

    def read(self, partition: InputPartition) -> "Iterator[Batch]":
        # The driver, which only plans, begins sooner without what a task decodes with.
        from tianzhou.spark.reading import read_ranges

        return read_ranges(self._options, self._schema, self._options.tags, partition)

    # Afterwards

    def commit(self, end: dict[str, Any]) -> None:
        self._commit_group(plan.from_json(end))

    def _commit_group(self, finished: Offsets) -> None:
        """Everything before these offsets is in the sink for good: tell the brokers, so that the
        lag of this query stands beside that of every other group."""
        group = self._options.group
        moved = {queue: at for queue, at in finished.items() if self._committed.get(queue) != at}
        if group is None or not moved:
            return
        try:
            self._brokers.commit(group, moved)
        except ClientError as error:
            # The checkpoint is the truth; the group's lag is right again after the next one.
            _LOG.warning("offsets of group %s were not told to the broker: %s", group, error)
        else:
            self._committed |= moved

    def stop(self) -> None:
        self._brokers.close()
