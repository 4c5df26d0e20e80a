"""Analysis of traces: how long messages take from producer to store to consumer, and an audit.

A trace message holds several records. A `Pub` has the time a message was sent, how long the broker
took to store it, and whether that succeeded. A `SubBefore` has the time consuming started, and a
`SubAfter` with the same request id its duration and whether it succeeded.

The audit compares what producers and consumers report in their traces with the messages that the
topic and its archive have: which are lost, duplicated or late.
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
_NAMES: Final = (
    "kind",
    "at",
    "groupName",
    "topicName",
    "msgId",
    "requestId",
    "costMs",
    "success",
    "reason",
)
_MARKS: Final = (0.5, 0.95, 0.99)
LATE_MS: Final = 5_000
"""A message is late if it was stored this long after its creation."""
UNKNOWN: Final = "(not traced)"


def records(messages: DataFrame) -> DataFrame:
    """Return a row per record: `pub`, `begin` or `end`; for an invalid body, `broken`."""
    frame: Any = messages.select("body", "storeTimestamp")  # `mapInArrow` has no annotations
    return frame.mapInArrow(_decoded, RECORDS)


def _decoded(batches: Iterator[Batch]) -> Iterator[Batch]:
    kinds = [
        pa.string(),
        pa.timestamp("us", "UTC"),
        pa.string(),
        pa.string(),
        pa.string(),
        pa.string(),
        pa.int64(),
        pa.bool_(),
        pa.string(),
    ]
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
        yield from _row(record, stored_us)


def _row(record: TraceRecord, stored_us: int) -> Iterator[tuple[Any, ...]]:
    match record:
        case Published():
            at_us = record.timestamp_ms * 1000
            # A batch is one record with the ids of all its messages.
            for message_id in record.message_id.split(","):
                yield (
                    "pub",
                    at_us,
                    record.group,
                    record.topic,
                    message_id,
                    None,
                    record.cost_ms,
                    record.is_success,
                    None,
                )
        case ConsumeBegun():
            yield (
                "begin",
                record.timestamp_ms * 1000,
                record.group,
                None,
                record.message_id,
                record.request_id,
                None,
                None,
                None,
            )
        case ConsumeEnded():
            # Older traces have no end time; the trace itself was stored shortly after.
            at_us = record.timestamp_ms * 1000 or stored_us
            yield (
                "end",
                at_us,
                record.group or None,
                None,
                record.message_id,
                record.request_id,
                record.cost_ms,
                record.is_success,
                None,
            )
        case _:
            return


def latencies(messages: DataFrame) -> DataFrame:
    """The pipeline `trace`: per minute and group, how long sends and listeners took, and how many
    failed. `side` is `produce`, `consume` or `broken`."""
    rows = records(messages).where("kind <> 'begin'").withWatermark("at", "10 minutes")
    side = F.when(F.col("kind") == "pub", "produce").when(F.col("kind") == "end", "consume")
    found = rows.groupBy(
        F.window("at", "1 minute"),
        F.coalesce(side, F.lit("broken")).alias("side"),
        F.col("topicName").alias("topic"),
        "groupName",
    ).agg(
        F.count(F.lit(1)).alias("messages"),
        F.count_if(~F.col("success")).alias("failures"),
        F.percentile_approx("costMs", list(_MARKS)).alias("marks"),
        F.max("costMs").alias("maxMs"),
    )
    marks = F.col("marks")
    return found.select(
        "window",
        "side",
        "topic",
        "groupName",
        "messages",
        "failures",
        marks[0].alias("p50Ms"),
        marks[1].alias("p95Ms"),
        marks[2].alias("p99Ms"),
        "maxMs",
    )


def journeys(rows: DataFrame) -> DataFrame:
    """Return a row per delivery, from the records: milliseconds from sending to storing, from
    storing to the listener, in the listener, and in total."""
    sent = rows.where("kind = 'pub' AND success").select(
        "msgId",
        F.col("topicName").alias("topic"),
        F.col("at").alias("sentAt"),
        F.col("costMs").alias("storeMs"),
    )
    begun = rows.where("kind = 'begin'").select(
        "msgId", "requestId", F.col("at").alias("begunAt"), "groupName"
    )
    ended = rows.where("kind = 'end'").select(
        "msgId", "requestId", F.col("costMs").alias("consumeMs"), "success"
    )
    joined = sent.join(begun, "msgId").join(ended, ["msgId", "requestId"], "left")
    to_listener = F.unix_millis("begunAt") - F.unix_millis("sentAt")
    return joined.withColumn(
        "waitMs", F.greatest(to_listener - F.col("storeMs"), F.lit(0))
    ).withColumn("totalMs", to_listener + F.coalesce("consumeMs", F.lit(0)))


def latency_report(rows: DataFrame) -> DataFrame:
    """Count messages and failures per topic and group, with percentiles of each stage."""
    stretches = ("storeMs", "waitMs", "consumeMs", "totalMs")
    values = [
        F.percentile_approx(name, mark).alias(f"{name[:-2]}P{round(mark * 100)}Ms")
        for name in stretches
        for mark in (0.5, 0.99)
    ]
    return (
        journeys(rows)
        .groupBy("topic", "groupName")
        .agg(
            F.count(F.lit(1)).alias("messages"),
            F.count_if(~F.col("success")).alias("failures"),
            *values,
        )
        .orderBy("topic", "groupName")
    )


# Audit: produced, stored and consumed messages, joined by their unique ids


def produced(records: DataFrame, topic: str) -> DataFrame:
    """Return the messages that producers report as sent."""
    return (
        records.where((F.col("kind") == "pub") & (F.col("topicName") == topic))
        .groupBy("msgId")
        .agg(
            F.first("groupName").alias("producer"),
            F.min("at").alias("sentAt"),
            F.max("success").alias("acknowledged"),
        )
    )


def stored(messages: DataFrame, late_ms: int = LATE_MS) -> DataFrame:
    """Return the stored messages, with the number of their copies."""
    late = F.unix_millis("storeTimestamp") - F.unix_millis("bornTimestamp") > late_ms
    return messages.groupBy("msgId").agg(
        F.count(F.lit(1)).alias("copies"),
        F.min("bornTimestamp").alias("bornAt"),
        F.max(late).alias("late"),
    )


def consumed(records: DataFrame) -> DataFrame:
    """Return the messages that at least one group has consumed successfully."""
    done = records.where((F.col("kind") == "end") & F.col("success"))
    return done.groupBy("msgId").agg(F.count_distinct("groupName").alias("groups"))


def audit_report(made: DataFrame, there: DataFrame, done: DataFrame) -> DataFrame:
    """Count messages per producer and hour.

    `lost`: acknowledged but not stored. `doubled`: copies beyond the first. `unsure`: stored
    without acknowledgement. `unconsumed`: stored, but no group reported consuming it.
    """
    rows = made.join(there, "msgId", "full").join(done, "msgId", "left")
    is_there = F.col("copies").isNotNull()
    acknowledged = F.coalesce("acknowledged", F.lit(False))
    hour = F.date_trunc("hour", F.coalesce("sentAt", "bornAt"))
    return (
        rows.groupBy(F.coalesce("producer", F.lit(UNKNOWN)).alias("producer"), hour.alias("hour"))
        .agg(
            F.count_if(acknowledged).alias("produced"),
            F.count_if(is_there).alias("stored"),
            F.count_if(is_there & F.col("groups").isNotNull()).alias("consumed"),
            F.count_if(acknowledged & ~is_there).alias("lost"),
            F.sum(F.coalesce(F.col("copies") - 1, F.lit(0))).alias("doubled"),
            F.count_if(~acknowledged & is_there & F.col("sentAt").isNotNull()).alias("unsure"),
            F.count_if(F.coalesce("late", F.lit(False))).alias("late"),
            F.count_if(is_there & F.col("groups").isNull()).alias("unconsumed"),
        )
        .orderBy("hour", "producer")
    )
