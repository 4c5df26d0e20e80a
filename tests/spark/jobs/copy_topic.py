"""A topic into another one, idempotently, in small micro-batches, until everything is through."""

import json
import sys

import tianzhou.spark


def main() -> None:
    nameserver, topic, place, until = sys.argv[1:5]
    spark = tianzhou.spark.session(master="local[2,8]")
    rows = (
        spark.readStream.format("rocketmq").option("nameserver", nameserver).option("topic", topic)
        .option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", 500)
        .option("minPartitions", 2).load().select("body", "tags", "keys")
    )  # fmt: skip
    query = (
        rows.writeStream.format("rocketmq").option("nameserver", nameserver)
        .option("topic", f"{topic}-copy").option("idempotent", "true")
        .option("group", f"{topic}-copier").option("checkpointLocation", f"{place}/checkpoint")
        .start()
    )  # fmt: skip
    while not query.awaitTermination(1):
        progress = query.lastProgress
        if progress is None:
            continue
        ends = json.loads(progress["sources"][0]["endOffset"])[topic]
        if sum(end for queues in ends.values() for end in queues.values()) >= int(until):
            query.stop()
    sys.stdout.write("done\n")


if __name__ == "__main__":
    main()
