"""Copies a topic to a Parquet directory and, idempotently, to another topic, until it is killed.

Micro-batches are small, and rows are delayed a little, so that a kill hits a running micro-batch.
"""

import sys
import time
from collections.abc import Iterator
from typing import Any

from pyspark.sql import DataFrame, SparkSession

import tianzhou.spark
from tianzhou.admin.commands.spark_session import SHORT

ROWS_PER_BATCH = 400
RETRY = "2m"
"""On a busy machine a killed broker is down for longer than half a minute."""


def slowly(batches: Iterator[Any]) -> Iterator[Any]:
    for batch in batches:
        time.sleep(0.1)
        yield batch


def rows_of(spark: SparkSession, nameserver: str, topic: str) -> DataFrame:
    rows = (
        spark.readStream.format("rocketmq")
        .option("nameserver", nameserver)
        .option("topic", topic)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", ROWS_PER_BATCH)
        .option("minPartitions", 2)
        .option("retryTimeout", RETRY)
        .load()
        .select("queueId", "queueOffset", "body")
    )
    through: Any = getattr(rows, "mapInArrow")  # noqa: B009 - it has no whole annotation
    return through(slowly, rows.schema)


def main() -> None:
    nameserver, topic, place = sys.argv[1:4]
    # Eight tries for each task; `local[2]` would end a query with the first lost worker.
    spark = tianzhou.spark.session(master="local[2,8]", config=SHORT)
    rows = rows_of(spark, nameserver, topic)
    (
        rows.writeStream.format("parquet")
        .option("path", f"{place}/table")
        .option("checkpointLocation", f"{place}/to-table")
        .start()
    )
    (
        rows.select("body")
        .writeStream.format("rocketmq")
        .option("nameserver", nameserver)
        .option("retryTimeout", RETRY)
        .option("topic", f"{topic}-copy")
        .option("idempotent", "true")
        .option("checkpointLocation", f"{place}/to-topic")
        .start()
    )
    spark.streams.awaitAnyTermination()


if __name__ == "__main__":
    main()
