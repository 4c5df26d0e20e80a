"""Running a pipeline: its queries, from start to stop."""

import json
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import msgspec
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from tianzhou.spark import plan
from tianzhou.spark.errors import sentence_of
from tianzhou.spark.options import read_options_of
from tianzhou.spark.pipelines import decode, history, reading
from tianzhou.spark.pipelines.errors import PipelineError
from tianzhou.spark.pipelines.history import Sample, sample_of
from tianzhou.spark.pipelines.model import ParquetSink, Pipeline, Transform, Trigger
from tianzhou.spark.pipelines.pipeline_directory import PipelineDirectory, absolute
from tianzhou.spark.pipelines.sinks import writer_of
from tianzhou.spark.pipelines.units import read_interval
from tianzhou.spark.tables.table import Table
from tianzhou.spark.topics import Topics, translated_errors

STOP_S: Final = 20.0
"""How long a stop waits for running micro-batches; interrupted ones are retried next time."""
SAVE_S: Final = 2.0
TOO_LATE: Final = "Python worker failed to connect back"
STARTS_MAX: Final = 12
"""Spark fails a query whose Python process has not started in ten seconds. A busy machine may need
more time; the query has lost nothing, so it is started again."""
QUARANTINE: Final = "quarantine"


class PipelineRun:
    """Starts, monitors and stops the queries of a pipeline.

    Owner: one thread, which holds the lock of the pipeline's directory meanwhile.
    """

    def __init__(self, spark: SparkSession, pipeline: Pipeline, directory: Path) -> None:
        self.pipeline = pipeline
        self.place = PipelineDirectory(pipeline, directory)
        self._spark = spark
        self._writers: dict[str, DataStreamWriter] = {}
        self._queries: dict[str, StreamingQuery] = {}
        self._starts: Counter[str] = Counter()
        self._is_stopping = False
        self._seen: dict[str, int] = {}
        self.samples: list[Sample] = history.load(self.place)
        self.kept = len(self.samples)
        """How many of the samples are from earlier runs."""
        self._saved_s = 0.0

    # Starting and stopping

    def start(self) -> None:
        """Plan all queries, then start them. Raises PipelineError before data is read."""
        for name, writer in self.plan().items():
            started = writer.option("checkpointLocation", self.place.query_path(name))
            started = triggered(started, self.pipeline.trigger)
            self._writers[name] = started.queryName(f"{self.pipeline.name}-{name}")
        for name in self._writers:
            self._start(name)

    def _start(self, name: str) -> None:
        """Start a query. Through Connect the Python process of its sink starts here, so the start
        itself may fail because that process is late; no query runs then."""
        while True:
            self._starts[name] += 1
            try:
                self._queries[name] = self._writers[name].start()
            except PySparkException as error:
                if not self._may_start_again(name, error):
                    raise
            else:
                return

    def plan(self) -> dict[str, DataStreamWriter]:
        """Return the queries by name, without starting them. Raises PipelineError."""
        pipeline, place = self.pipeline, self.place
        reading.check_source(reading.checked_options(pipeline))
        options = self._options()
        messages = counted_in(reading.stream(self._spark, options))
        found = reading.decoder(self._spark, pipeline, place)
        watermark = pipeline.transform.watermark
        marked = reading.check_event_times(found.mark(messages), watermark)
        rows = reading.transformed(decode.good(marked), pipeline.transform, place.directory)
        writers: dict[str, DataStreamWriter] = {}
        for rank, sink in enumerate(pipeline.sinks):
            name = f"sink-{rank}"
            if isinstance(sink, ParquetSink):
                Table(absolute(sink.path, place.directory)).repair()
            writers[name] = writer_of(
                counted_out(rows), sink, place, name=name, is_part=is_part(pipeline)
            )
        if found.can_fail or (watermark is not None and watermark.max_future is not None):
            bad = ParquetSink(path=self.quarantine_path)
            Table(self.quarantine_path).repair()
            writers[QUARANTINE] = writer_of(
                counted_out(decode.bad(marked)), bad, place, name=QUARANTINE
            )
        return writers

    @property
    def quarantine_path(self) -> str:
        named = self.pipeline.decode.quarantine
        return absolute(named or f"{self.place.path}/quarantine", self.place.directory)

    def _options(self) -> dict[str, str]:
        """Return the source's options; an archive whose checkpoint is lost resumes after its
        last row."""
        options = reading.checked_options(self.pipeline)
        first = self.pipeline.sinks[0]
        if self.pipeline.transform != Transform() or not isinstance(first, ParquetSink):
            return options
        if self.place.has_begun("sink-0") or "startingOffsets" in options:
            return options
        ends = Table(absolute(first.path, self.place.directory)).state().ends
        return {**options, **plan_from(ends, options)} if ends else options

    def stop(self) -> None:
        """Wait for running micro-batches, then stop; interrupted ones are retried next time."""
        self._is_stopping = True
        until = time.monotonic() + STOP_S
        for query in self._queries.values():
            while query.isActive and query.status["isTriggerActive"]:
                if time.monotonic() > until:
                    break
                time.sleep(0.05)
            query.stop()
        self.poll()
        history.save(self.place, self.samples)

    # Monitoring

    @property
    def is_active(self) -> bool:
        return any(query.isActive for query in self._queries.values())

    def poll(self) -> list[Sample]:
        """Return the metrics of micro-batches since the last poll. Raises PipelineError if a query
        failed."""
        fresh: list[Sample] = []
        for name, query in self._queries.items():
            for progress in query.recentProgress:
                sample = sample_of(name, _as_dict(progress))
                # Spark also reports triggers that had nothing to do.
                if sample.batch > self._seen.get(name, -1) and (sample.rows_in or sample.rows_out):
                    self._seen[name] = sample.batch
                    fresh.append(sample)
        self.samples = [*self.samples, *fresh][-history.SAMPLES_KEPT :]
        if fresh and time.monotonic() - self._saved_s > SAVE_S:
            self._saved_s = time.monotonic()
            history.save(self.place, self.samples)
        for name, query in self._queries.items():
            error = None if query.isActive else query.exception()
            if error is not None and self._may_start_again(name, error):
                self._start(name)
            elif error is not None:
                raise PipelineError(
                    f"{self.pipeline.name}/{name} failed: {sentence_of(error)}"
                ) from error
        return fresh

    def _may_start_again(self, name: str, error: BaseException) -> bool:
        is_late = TOO_LATE in str(error) and self._starts[name] < STARTS_MAX
        return is_late and not self._is_stopping

    def watch(self, show: Callable[[], None], *, until: Callable[[], bool]) -> None:
        """Poll and call `show` until every query has ended or `until` returns true."""
        while True:
            was_active = self.is_active
            self.poll()  # may restart a query
            show()
            if until() or not (was_active or self.is_active):
                return
            time.sleep(0.2)


def run_to_end(spark: SparkSession, pipeline: Pipeline, directory: Path) -> list[Sample]:
    """Process all messages that exist now, then return the metrics. Raises PipelineError."""
    once = _with(pipeline, Trigger(available_now=True))
    run = PipelineRun(spark, once, directory)
    with run.place.locked():
        run.start()
        try:
            run.watch(lambda: None, until=lambda: False)
        finally:
            run.stop()
    return run.samples[run.kept :]


def is_part(pipeline: Pipeline) -> bool:
    """Return whether messages are filtered or transformed between topic and sink."""
    options = read_options_of(reading.checked_options(pipeline), is_stream=True)
    filtered = options.filter.tags != "*" or options.filter.sql92 or options.columns
    return bool(filtered or pipeline.decode.format != "raw" or pipeline.transform != Transform())


def _with(pipeline: Pipeline, trigger: Trigger) -> Pipeline:
    return msgspec.structs.replace(pipeline, trigger=trigger)


def counted_in(messages: DataFrame) -> DataFrame:
    oldest = F.unix_millis(F.min("storeTimestamp")).alias("oldest_ms")
    values = [oldest] if "storeTimestamp" in messages.columns else [F.lit(None).alias("oldest_ms")]
    return messages.observe(history.IN, *values)


def counted_out(rows: DataFrame) -> DataFrame:
    return rows.observe(history.OUT, F.count(F.lit(1)).alias("rows"))


def triggered(writer: DataStreamWriter, trigger: Trigger) -> DataStreamWriter:
    if trigger.available_now:
        return writer.trigger(availableNow=True)
    if trigger.interval is not None:
        return writer.trigger(processingTime=read_interval(trigger.interval))
    return writer


def plan_from(ends: Any, options: dict[str, str]) -> dict[str, str]:
    """Return options to start a source after rows that are already archived up to `ends`."""
    read = read_options_of(options, is_stream=True)
    with translated_errors(read), read.cluster.connect() as brokers:
        topics = Topics(brokers, read)
        earliest = topics.earliest(topics.queues())
    kept = plan.from_json(ends)
    starts = {queue: kept.get(queue, first) for queue, first in earliest.items()}
    return {"startingOffsets": json.dumps(plan.to_json(starts))}


def _as_dict(progress: Any) -> dict[str, Any]:
    return json.loads(progress.json) if hasattr(progress, "json") else dict(progress)
