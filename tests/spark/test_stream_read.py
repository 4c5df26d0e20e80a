"""Streams: offsets in the checkpoint, limits, new queues and topics, lag."""

import json
import shutil
import time
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest
from click.testing import CliRunner
from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from clients.waiting import wait_until
from spark.conftest import Tables
from spark.filling import Filling
from tianzhou.cmd.commands import cli

pytestmark = pytest.mark.slow
WITHIN_S = 150.0


class Sink:
    """A Parquet directory that a query writes, and its content."""

    def __init__(self, tables: Tables, place: Path) -> None:
        self._tables = tables
        self._place = place

    def start(self, rows: DataFrame, *, once: bool = True) -> StreamingQuery:
        writer = (
            rows.writeStream.format("parquet")
            .option("path", str(self._place / "out"))
            .option("checkpointLocation", str(self._place / "checkpoint"))
        )
        if once:
            return writer.trigger(availableNow=True).start()
        return writer.trigger(processingTime="0 seconds").start()

    def run(self, rows: DataFrame) -> list[dict[str, Any]]:
        """Read to the current end, and return the progress of each micro-batch that had rows."""
        query = self.start(rows)
        query.awaitTermination(int(WITHIN_S))
        assert query.exception() is None
        assert not query.isActive
        return [dict(p) for p in query.recentProgress if p["numInputRows"]]

    def bodies(self) -> list[str]:
        rows = self._tables.spark.read.parquet(str(self._place / "out")).select("body").collect()
        return sorted(bytes(row.body).decode() for row in rows)

    def count(self) -> int:
        if not (self._place / "out" / "_spark_metadata").exists():
            return 0
        reader = self._tables.spark.read.schema("queueOffset long")
        return reader.parquet(str(self._place / "out")).count()


@pytest.fixture
def sink(tables: Tables, tmp_path: Path) -> Sink:
    return Sink(tables, tmp_path)


def test_available_now_reads_everything_and_stops(
    tables: Tables, filling: Filling, sink: Sink, topic: str
) -> None:
    bodies = filling.many(topic, 1_000)
    rows = tables.stream(topic, startingOffsets="earliest").load()
    sink.run(rows)
    assert sink.bodies() == bodies
    bodies += filling.many(topic, 500, first=1_000)
    sink.run(rows)
    assert sink.bodies() == bodies
    assert sink.run(rows) == []


def test_stream_starts_at_the_offsets_of_the_option(
    tables: Tables, filling: Filling, sink: Sink, topic: str, tmp_path: Path
) -> None:
    bodies = filling.many(topic, 200)
    sink.run(tables.stream(topic, startingOffsets="earliest").load())
    offsets = tmp_path / "checkpoint" / "offsets"
    last = max(int(path.name) for path in offsets.iterdir() if path.name.isdecimal())
    written = (offsets / str(last)).read_text().splitlines()[-1]
    ends = {str(queue): end for queue, end in filling.ends(topic).items()}
    assert json.loads(written)[topic] == {"broker-a": ends}
    late = filling.many(topic, 50, first=200)
    assert tables.bodies(topic, startingOffsets=written) == late
    assert tables.bodies(topic, endingOffsets=written) == bodies


def test_stream_limits_rows_per_trigger(
    tables: Tables, filling: Filling, sink: Sink, topic: str
) -> None:
    bodies = filling.many(topic, 1_000)
    options = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": 300}
    progress = sink.run(tables.stream(topic, **options).load())
    assert [p["numInputRows"] for p in progress] == [300, 300, 300, 100]
    assert sink.bodies() == bodies
    # Spark's own progress report: where the batch ended, and what was available.
    source = progress[0]["sources"][0]
    latest = json.loads(source["latestOffset"])[topic]["broker-a"]
    assert sum(latest.values()) == 1_000
    assert sum(json.loads(source["endOffset"])[topic]["broker-a"].values()) == 300


def test_minimum_delays_a_micro_batch_until_the_delay_is_over(
    tables: Tables, filling: Filling, sink: Sink, topic: str
) -> None:
    filling.many(topic, 10)
    options = {"startingOffsets": "earliest", "minOffsetsPerTrigger": 100, "maxTriggerDelay": "4s"}
    begun_s = time.monotonic()
    query = sink.start(tables.stream(topic, **options).load(), once=False)
    try:
        wait_until(lambda: sizes(query) == [10], within_s=WITHIN_S, what="the delay is over")
        assert time.monotonic() - begun_s > 4
    finally:
        query.stop()


def test_micro_batches_are_between_a_minimum_and_a_maximum(
    tables: Tables, filling: Filling, sink: Sink, topic: str
) -> None:
    bodies = filling.many(topic, 340)
    options = {
        "startingOffsets": "earliest",
        "minOffsetsPerTrigger": 100,
        "maxOffsetsPerTrigger": 150,
        "maxTriggerDelay": "1h",
    }
    query = sink.start(tables.stream(topic, **options).load(), once=False)
    try:
        wait_until(lambda: sizes(query) == [150, 150], within_s=WITHIN_S, what="the first two")
        bodies += filling.many(topic, 60, first=340)  # with the 40 that had to wait
        wait_until(lambda: len(sizes(query)) == 3, within_s=WITHIN_S, what="the third")
        assert sizes(query) == [150, 150, 100]
    finally:
        query.stop()
    assert sink.bodies() == bodies


def test_available_now_divides_but_does_not_wait_for_a_minimum(
    tables: Tables, filling: Filling, sink: Sink, topic: str
) -> None:
    bodies = filling.many(topic, 340)
    options = {
        "startingOffsets": "earliest",
        "minOffsetsPerTrigger": 100,
        "maxOffsetsPerTrigger": 150,
        "maxTriggerDelay": "1h",
    }
    progress = sink.run(tables.stream(topic, **options).load())
    assert [p["numInputRows"] for p in progress] == [150, 150, 40]
    assert sink.bodies() == bodies


def sizes(query: StreamingQuery) -> list[int]:
    """Return the number of rows of each micro-batch that had any."""
    return [p["numInputRows"] for p in query.recentProgress if p["numInputRows"]]


def test_streams_start_at_the_end_by_default(
    tables: Tables, filling: Filling, sink: Sink, topic: str
) -> None:
    filling.many(topic, 100)
    rows = tables.stream(topic).load()
    sink.run(rows)
    late = filling.many(topic, 10, first=100)
    sink.run(rows)
    assert sink.bodies() == late


def test_stream_start_is_stored_in_the_checkpoint(
    tables: Tables, filling: Filling, sink: Sink, topic: str, tmp_path: Path
) -> None:
    """A query that fails in its first micro-batch starts at the same offsets again, not at the
    end."""
    filling.many(topic, 100)
    rows = tables.stream(topic).load()
    sink.run(rows)
    late = filling.many(topic, 50, first=100)
    # As if it had been killed before Spark recorded that the first micro-batch was done.
    for path in (tmp_path / "checkpoint" / "commits").iterdir():
        path.unlink()
    late += filling.many(topic, 50, first=150)
    sink.run(rows)
    assert sink.bodies() == late


def test_earliest_is_resolved_once_and_resumed(
    tables: Tables, filling: Filling, sink: Sink, topic: str, tmp_path: Path
) -> None:
    """There is no micro-batch before the data. The first one, retried after a crash, reads the same
    messages, although there are more by now, and a new queue."""
    filling.create(topic, 2)
    bodies = filling.many(topic, 100)
    rows = tables.stream(topic, startingOffsets="earliest").load()
    (progress,) = sink.run(rows)
    assert progress["batchId"] == 0
    for name in ("checkpoint/commits", "out"):
        shutil.rmtree(tmp_path / name)
    filling.create(topic, 3)
    bodies += filling.many(topic, 60, first=100)
    again = sink.run(rows)
    assert again[0]["numInputRows"] == 100
    assert sink.bodies() == bodies


def test_stream_starts_while_messages_arrive(
    tables: Tables, filling: Filling, sink: Sink, topic: str
) -> None:
    """The end moves between two requests for it."""
    filling.many(topic, 10)
    stop = Event()

    def send() -> None:
        with Filling(tables.nameserver) as busy:
            while not stop.is_set():
                busy.many(topic, 20)

    sending = Thread(target=send)
    sending.start()
    query = sink.start(tables.stream(topic, group=f"group-{topic}").load(), once=False)
    try:
        wait_until(
            lambda: sink.count() > 100 or query.exception(), within_s=WITHIN_S, what="rows come"
        )
        assert query.exception() is None
    finally:
        stop.set()
        sending.join()
        query.stop()


def test_stream_starts_at_a_time(tables: Tables, filling: Filling, sink: Sink, topic: str) -> None:
    bodies = filling.many(topic, 100)
    sink.run(tables.stream(topic, startingTimestamp="2020-01-01").load())
    assert sink.bodies() == bodies


def test_stream_reads_new_queues(tables: Tables, filling: Filling, sink: Sink, topic: str) -> None:
    filling.create(topic, 2)
    bodies = filling.many(topic, 100)
    rows = tables.stream(topic, startingOffsets="earliest").load()
    sink.run(rows)
    filling.create(topic, 6)
    bodies += filling.many(topic, 120, first=100)
    assert len(filling.ends(topic)) == 6
    sink.run(rows)
    assert sink.bodies() == bodies


def test_stream_reads_new_topics_of_its_pattern(
    tables: Tables, filling: Filling, sink: Sink, topic: str
) -> None:
    bodies = filling.many(f"{topic}-a", 50)
    rows = tables.stream(f"{topic}-.*", startingOffsets="earliest").load()
    query = sink.start(rows, once=False)
    try:
        wait_until(lambda: sink.count() == 50, within_s=WITHIN_S, what="the first topic is read")
        bodies += filling.many(f"{topic}-b", 50, first=50)
        wait_until(lambda: sink.count() == 100, within_s=WITHIN_S, what="the second one as well")
    finally:
        query.stop()
    assert sink.bodies() == bodies


def test_stream_filters_by_options(
    tables: Tables, filling: Filling, sink: Sink, topic: str
) -> None:
    bodies = filling.many(topic, 90)
    sink.run(tables.stream(topic, startingOffsets="earliest", tags="tag-1").load())
    assert sink.bodies() == [body for n, body in enumerate(bodies) if n % 3 == 1]


def test_stream_commits_offsets_for_its_group(
    tables: Tables, filling: Filling, sink: Sink, topic: str
) -> None:
    filling.many(topic, 100)
    options = {"startingOffsets": "earliest", "group": f"group-{topic}", "maxOffsetsPerTrigger": 60}
    sink.run(tables.stream(topic, **options).load())
    committed = filling.brokers.committed(f"group-{topic}", filling.queues(topic))
    assert {queue.queue_id: at for queue, at in committed.items()} == filling.ends(topic)
    filling.many(topic, 20, first=100)
    shown = CliRunner().invoke(
        cli, ["group", "show", f"group-{topic}", "-n", tables.nameserver, "--json"]
    )
    assert json.loads(shown.output)["lag"] == 20, shown.output


def test_stream_has_the_columns_of_a_batch(
    tables: Tables, filling: Filling, sink: Sink, topic: str
) -> None:
    filling.many(topic, 10)
    batch = tables.read(topic)
    rows = tables.stream(topic, startingOffsets="earliest").load()
    assert rows.schema == batch.schema
    sink.run(rows)
    written = tables.spark.read.parquet(str(sink._place / "out"))
    assert sorted(map(str, written.collect())) == sorted(map(str, batch.collect()))
