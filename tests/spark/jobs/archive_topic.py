"""A topic into a Parquet directory, from where its checkpoint says, in small micro-batches.

Each batch of rows waits a little on its way, so that a kill finds a micro-batch at work.
"""

import json
import sys
import time
from collections.abc import Iterator
from typing import Any

import tianzhou.spark


def slowly(batches: Iterator[Any]) -> Iterator[Any]:
    for batch in batches:
        time.sleep(0.1)
        yield batch


def main() -> None:
    nameserver, topic, place, until = sys.argv[1:5]
    # Eight tries for each task; `local[2]` would end the query with the first lost worker.
    spark = tianzhou.spark.session(master="local[2,8]")
    rows = (
        spark.readStream.format("rocketmq").option("nameserver", nameserver).option("topic", topic)
        .option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", 500)
        .option("minPartitions", 2).option("group", f"archive-{topic}").load()
        .select("queueId", "queueOffset", "body")
    )  # fmt: skip
    through: Any = getattr(rows, "mapInArrow")  # noqa: B009 - it has no whole annotation
    rows = through(slowly, rows.schema)
    query = (
        rows.writeStream.format("parquet").option("path", f"{place}/table")
        .option("checkpointLocation", f"{place}/checkpoint").start()
    )  # fmt: skip
    seen = -1
    while not query.awaitTermination(1):
        progress = query.lastProgress
        if progress is not None and progress["batchId"] > seen:
            seen = progress["batchId"]
            ends = json.loads(progress["sources"][0]["endOffset"])[topic]
            if sum(end for queues in ends.values() for end in queues.values()) >= int(until):
                query.stop()
    sys.stdout.write("done\n")


if __name__ == "__main__":
    main()
