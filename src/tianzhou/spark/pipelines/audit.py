"""Compare produced, stored and consumed messages: which are lost, duplicated or late.

Producers and consumers report in their traces; the stored messages are in the topic and its
archive. The three are joined by the unique id of a message.
"""

from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

LATE_MS: Final = 5_000
"""A message is late if it was stored this long after its creation."""
UNKNOWN: Final = "(not traced)"


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


def report(made: DataFrame, there: DataFrame, done: DataFrame) -> DataFrame:
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
