"""Counts a topic through a source that was not registered, and prints where its code was loaded
from."""

import json
import sys
from typing import Any

from pyspark.sql import SparkSession


def main() -> None:
    nameserver, topic = sys.argv[1:3]
    spark = SparkSession.builder.getOrCreate()
    rows = spark.read.format("rocketmq").option("nameserver", nameserver)
    table = rows.option("minPartitions", 4).load(topic)

    def place(_: object) -> list[tuple[str, int]]:
        import os

        import tianzhou

        return [(tianzhou.__file__, os.getppid())]

    found = table.select("queueId").rdd.mapPartitions(place).collect()
    context: Any = spark.sparkContext
    told = {
        "count": table.count(),
        "distinct": table.select("msgId").distinct().count(),
        "code": sorted({code for code, _ in found}),
        # The driver is one of them.
        "executors": len(context._jsc.sc().statusTracker().getExecutorInfos()) - 1,
    }
    sys.stdout.write(f"told {json.dumps(told)}\n")


if __name__ == "__main__":
    main()
