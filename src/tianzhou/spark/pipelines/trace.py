"""What traces tell: how long messages take from the producer to the store and to the consumer.

A trace message holds several records. A `Pub` says when a message was sent, how long the broker
took to store it, and whether that worked. A `SubAfter` says how long consuming took, and whether
it worked; the `SubBefore` with the same request id says when it began. Records of one message come
in any order and at any time, so they are joined by its id within an hour.
"""

from collections.abc import Iterator
from typing import Any, Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from tianzhou.client.core.trace import (
    ConsumeBegun,
    ConsumeEnded,
    Published,
    TraceError,
    TraceRecord,
    decode_trace,
)
from tianzhou.spark.arrow import Batch, pa

RECORDS: Final = (
    "kind string, at timestamp, groupName string, topicName string, msgId string,"
    " requestId string, costMs bigint, success boolean, reason string"
)
WITHIN: Final = "1 hour"
"""How long the consuming of a message may lag behind its sending to be brought together."""
_NAMES: Final = (
    "kind", "at", "groupName", "topicName", "msgId", "requestId", "costMs", "success", "reason",
)  # fmt: skip


def records(messages: DataFrame) -> DataFrame:
    """One row for each record; a body that is no trace is a row of kind `broken`."""
    frame: Any = messages.select("body", "storeTimestamp")  # `mapInArrow` has no annotations
    return frame.mapInArrow(_decoded, RECORDS)


def _decoded(batches: Iterator[Batch]) -> Iterator[Batch]:
    kinds = [
        pa.string(), pa.timestamp("us", "UTC"), pa.string(), pa.string(), pa.string(),
        pa.string(), pa.int64(), pa.bool_(), pa.string(),
    ]  # fmt: skip
    for batch in batches:
        stored = batch.column("storeTimestamp").cast(pa.int64()).to_pylist()
        rows = [
            row
            for body, stored_us in zip(batch.column("body").to_pylist(), stored, strict=True)
            for row in _rows(body, stored_us)
        ]
        columns: list[Any] = list(zip(*rows, strict=True)) if rows else [()] * len(kinds)
        arrays = [pa.array(column, kind) for column, kind in zip(columns, kinds, strict=True)]
        yield pa.RecordBatch.from_arrays(arrays, list(_NAMES))


def _rows(body: bytes, stored_us: int) -> Iterator[tuple[Any, ...]]:
    try:
        found = decode_trace(body)
    except TraceError as error:
        yield ("broken", stored_us, None, None, None, None, None, None, str(error)[:300])
        return
    for record in found:
        row = _row(record)
        if row is not None:
            yield row


def _row(record: TraceRecord) -> tuple[Any, ...] | None:
    match record:
        case Published():
            return ("pub", record.timestamp_ms * 1000, record.group, record.topic,
                    record.message_id, None, record.cost_ms, record.is_success, None)  # fmt: skip
        case ConsumeBegun():
            return ("begin", record.timestamp_ms * 1000, record.group, None, record.message_id,
                    record.request_id, None, None, None)  # fmt: skip
        case ConsumeEnded():
            # The end has no time in older traces; then the beginning alone is known.
            at = record.timestamp_ms * 1000 or None
            return ("end", at, record.group or None, None, record.message_id, record.request_id,
                    record.cost_ms, record.is_success, None)  # fmt: skip
        case _:
            return None


def journeys(rows: DataFrame) -> DataFrame:
    """One row for each time that a message was consumed: when it was sent, begun and done."""
    published = rows.where("kind = 'pub'").select(
        "msgId", F.col("topicName").alias("topic"), F.col("at").alias("sentAt"),
        F.col("costMs").alias("storeMs"), F.col("groupName").alias("producer"),
    )  # fmt: skip
    begun = rows.where("kind = 'begin'").select(
        F.col("msgId").alias("id"), F.col("at").alias("begunAt"),
        F.col("groupName").alias("consumer"), F.col("requestId"),
    )  # fmt: skip
    near = (
        (F.col("msgId") == F.col("id"))
        & (F.col("begunAt") >= F.col("sentAt") - F.expr(f"INTERVAL {WITHIN}"))
        & (F.col("begunAt") <= F.col("sentAt") + F.expr(f"INTERVAL {WITHIN}"))
    )
    return published.join(begun, near)


def latencies(messages: DataFrame) -> DataFrame:
    """Per minute, topic and group: how many, percentiles of the time that each took, failures.

    `side` is `produce` (costs of sends) or `consume` (costs of listeners).
    """
    rows = records(messages).where("kind IN ('pub', 'end', 'broken')")
    timed = rows.withColumn("at", F.coalesce("at", F.current_timestamp()))
    window = F.window("at", "1 minute")
    side = F.when(F.col("kind") == "pub", "produce").when(F.col("kind") == "end", "consume")
    marks = F.percentile_approx("costMs", [0.5, 0.95, 0.99])
    found = timed.withWatermark("at", "10 minutes").groupBy(
        window, F.coalesce(side, F.lit("broken")).alias("side"),
        F.col("groupName").alias("groupName"), F.col("topicName").alias("topic"),
    ).agg(
        F.count(F.lit(1)).alias("messages"),
        F.count_if(~F.col("success")).alias("failures"),
        F.max("costMs").alias("maxMs"), marks.alias("marks"),
    )  # fmt: skip
    return found.select(
        "window", "side", "topic", "groupName", "messages", "failures",
        F.col("marks")[0].alias("p50Ms"), F.col("marks")[1].alias("p95Ms"),
        F.col("marks")[2].alias("p99Ms"), "maxMs",
    )  # fmt: skip
