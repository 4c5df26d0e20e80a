"""The Spark program behind `trace_micro_batch` of paths.py: a stream whose fourth batch is traced.

Prints its process id and the times between which the traced batch ran.
"""

import os
import sys
import time
from typing import Final

import tianzhou.spark
from tianzhou.client.sync import Message, Producer

WARM_UP: Final = 3


def main(nameserver: str, folder: str) -> None:
    spark = tianzhou.spark.session(master="local[1]", config={"spark.local.dir": f"{folder}/tmp"})
    spark.sparkContext.setLogLevel("OFF")
    with Producer("paths", nameserver=nameserver) as producer:
        producer.send(Message("orders", b"the topic exists"))
        reader = spark.readStream.format("rocketmq").option("nameserver", nameserver)
        stream = reader.option("topic", "orders").load()
        query = stream.writeStream.format("noop").option(
            "checkpointLocation", f"{folder}/checkpoint"
        )
        running = query.trigger(processingTime="1 second").start()
        for _ in range(WARM_UP):
            producer.send(Message("orders", b"two apples"))
            running.processAllAvailable()
        start_ns = time.monotonic_ns()
        producer.send(Message("orders", b"two pears"))
        running.processAllAvailable()
        print(os.getpid(), start_ns, time.monotonic_ns())
        running.stop()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
