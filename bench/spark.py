"""Spark's tables: the same million rows from a broker, from its store, as ready Arrow batches, from
Parquet; into nothing, into Parquet, into a topic.

    python -m bench.spark [DIRECTORY] [ROWS]

Everything runs in one session on two cores, the broker beside it, and takes turns; of each the
best round counts, from the action to its end: every table is loaded before its clock starts. The
yardstick of reading is a source that has its Arrow batches ready in a file:
what the way from Python into Spark can carry.
"""

import asyncio
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import datetime
from importlib import import_module
from pathlib import Path
from time import perf_counter
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

import tianzhou.spark
from bench.broker import TICK, served
from bench.measure import Row
from tianzhou.client.bulk.brokers import Brokers
from tianzhou.client.bulk.sender import BatchSender, Entry
from tianzhou.spark.options import read_options_of
from tianzhou.spark.schema import TOPIC, table_schema
from tianzhou.spark.source import TopicReader

ROWS = 1_000_000
BODY_BYTES = 1024
ROUNDS = 3
RATE_FOR_LATENCY = 1_000
BATCHES_FOR_LATENCY, WARM_UP = 40, 10
LATENCY_S_MAX = 120.0
MICRO_BATCHES = "the same without the query's start"

ipc: Any = import_module("pyarrow.ipc")
pa: Any = import_module("pyarrow")


# The yardstick


class ReadyArrow(DataSource):
    """Batches that are ready in files, one for each task."""

    @classmethod
    def name(cls) -> str:
        return "ready-arrow"

    def schema(self) -> StructType:
        return table_schema(TOPIC, [])

    def reader(self, schema: StructType) -> "ReadyReader":
        return ReadyReader(self.options["path"])


class ReadyReader(DataSourceReader):
    def __init__(self, place: str) -> None:
        self._place = place

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(str(path)) for path in sorted(Path(self._place).iterdir())]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        opened = ipc.open_file(pa.memory_map(partition.value))
        return (opened.get_batch(n) for n in range(opened.num_record_batches))


# Filling


def fill(nameserver: str, topic: str, rows: int) -> None:
    """Return messages like those of producers: a unique id, a tag, a key."""
    with Brokers(nameserver) as brokers:
        sender = BatchSender(brokers, "bench")
        # Text that does not repeat within a Parquet page.
        pool = os.urandom(1 << 20).hex().encode()
        for n in range(rows):
            at = n * 997 % (len(pool) - BODY_BYTES)
            text = b"UNIQ_KEY\x017F000001%024X\x02TAGS\x01tag-%d\x02KEYS\x01T%07d\x02" % (
                n,
                n % 10,
                n,
            )
            sender.add(topic, Entry(pool[at : at + BODY_BYTES], text))
        sender.flush()


def make_ready(nameserver: str, topic: str, place: Path) -> None:
    """Write the rows of the reader to files, once."""
    place.mkdir()
    options = read_options_of({"nameserver": nameserver, "topic": topic}, is_stream=False)
    reader = TopicReader(options, table_schema(TOPIC, []))
    for number, partition in enumerate(reader.partitions()):
        batches = reader.read(partition)
        first = next(batches)
        with ipc.new_file(str(place / f"{number}.arrow"), first.schema) as file:
            file.write_batch(first)
            for batch in batches:
                file.write_batch(batch)


# Measuring


def tree_cpu_s(root: int) -> float:
    """Return the CPU seconds of a process and its descendants."""
    parents: dict[int, int] = {}
    used: dict[int, float] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with suppress(FileNotFoundError, ProcessLookupError):
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                parents[int(entry.name)] = int(fields[1])
                used[int(entry.name)] = (int(fields[11]) + int(fields[12])) / TICK
    below = {root}
    while grown := {pid for pid, parent in parents.items() if parent in below} - below:
        below |= grown
    return sum(used[pid] for pid in below if pid in used)


class Best:
    """The best round of each name: seconds, and CPU seconds."""

    def __init__(self) -> None:
        self.found: dict[str, tuple[float, float]] = {}

    def run(self, name: str, act: Callable[[], object]) -> None:
        cpu, begun = tree_cpu_s(os.getpid()), perf_counter()
        act()
        seconds = perf_counter() - begun
        used = tree_cpu_s(os.getpid()) - cpu
        self.note(name, seconds, used)

    def note(self, name: str, seconds: float, used: float) -> None:
        print(f"{name}: {seconds:.2f} s", file=sys.stderr, flush=True)
        if name not in self.found or seconds < self.found[name][0]:
            self.found[name] = (seconds, used)

    def row(self, name: str, rows: int, yardstick: str = "", floor: float | None = None) -> Row:
        seconds, used = self.found[name]
        ratio = self.found[yardstick][0] / seconds if yardstick else None
        return Row(
            "spark",
            name,
            rows / seconds,
            rows * BODY_BYTES / seconds,
            used / rows * 1e6,
            yardstick,
            ratio,
            floor,
        )


class Bench:
    def __init__(self, spark: SparkSession, server: dict[str, str], place: Path, rows: int) -> None:
        self.spark = spark
        self.nameserver = server["nameserver"]
        self.data = server["data"]
        self.place = place
        self.rows = rows
        self.best = Best()
        self._runs = 0

    def prepare(self) -> None:
        fill(self.nameserver, "bench", self.rows)
        # A copy, because other rows add messages of their own to the broker's log.
        self.data = str(shutil.copytree(self.data, self.place / "copy"))
        make_ready(self.nameserver, "bench", self.place / "ready")
        self.spark.dataSource.register(ReadyArrow)
        self.ready().write.parquet(str(self.place / "parquet"))

    def ready(self) -> DataFrame:
        return self.spark.read.format("ready-arrow").load(str(self.place / "ready"))

    def parquet(self) -> DataFrame:
        return self.spark.read.parquet(str(self.place / "parquet"))

    def broker(self, **options: str) -> DataFrame:
        reader = self.spark.read.format("rocketmq").option("nameserver", self.nameserver)
        return reader.option("topic", "bench").options(**options).load()

    def store(self, **options: str) -> DataFrame:
        reader = self.spark.read.format("rocketmq-store").option("topic", "bench")
        columns = options.pop("columns", ",".join(TOPIC))
        return reader.option("columns", columns).options(**options).load(self.data)

    def to_nothing(self, rows: DataFrame) -> Callable[[], None]:
        return rows.write.format("noop").mode("overwrite").save

    def to_parquet(self, rows: DataFrame) -> Callable[[], None]:
        def save() -> None:
            target = self.place / "written"
            rows.write.mode("overwrite").parquet(str(target))

        return save

    def stream(self) -> DataFrame:
        reader = self.spark.readStream.format("rocketmq").option("nameserver", self.nameserver)
        return reader.option("topic", "bench").option("startingOffsets", "earliest").load()

    def drained(self, rows: DataFrame) -> Callable[[], None]:
        self._runs += 1
        writer = rows.writeStream.format("noop").trigger(availableNow=True)
        writer = writer.option("checkpointLocation", str(self.place / f"checkpoint-{self._runs}"))

        def drain() -> None:
            query = writer.start()
            query.awaitTermination()
            exception = query.exception()
            assert exception is None, exception
            assert sum(p["numInputRows"] for p in query.recentProgress) == self.rows
            millis = sum(p["durationMs"]["triggerExecution"] for p in query.recentProgress)
            self.best.note(MICRO_BATCHES, millis / 1000, 0.0)

        return drain

    def write(self) -> None:
        self._runs += 1
        rows = self.parquet().select("body", "tags", "keys")
        writer = rows.write.format("rocketmq").option("nameserver", self.nameserver)
        writer.mode("append").save(f"written-{self._runs}")

    def produce(self) -> None:
        self._runs += 1
        asyncio.run(produce(self.nameserver, f"produced-{self._runs}", self.rows // 10))

    def measure(self) -> None:
        best = self.best
        for _ in range(ROUNDS):
            best.run("ready Arrow to noop", self.to_nothing(self.ready()))
            best.run("store directory to noop", self.to_nothing(self.store()))
            best.run("broker to noop", self.to_nothing(self.broker()))
            best.run("stream, AvailableNow, to noop", self.drained(self.stream()))
            best.run("Parquet to noop", self.to_nothing(self.parquet()))
            meta = "topic,queueId,queueOffset,storeTimestamp"
            best.run("store directory to count, metadata", self.store(columns=meta).count)
            best.run("broker to count, metadata", self.broker(columns=meta).count)
            best.run("Parquet to Parquet", self.to_parquet(self.parquet()))
            best.run("store directory to Parquet", self.to_parquet(self.store()))
            best.run("broker to Parquet", self.to_parquet(self.broker()))
            best.run("plain producer, gathered", self.produce)
            best.run("Parquet to a topic", self.write)

    def table(self) -> Iterator[Row]:
        row, rows = self.best.row, self.rows
        yield row("ready Arrow to noop", rows)
        yield row("store directory to noop", rows, "ready Arrow to noop", 0.5)
        yield row("broker to noop", rows, "ready Arrow to noop", 0.35)
        yield row("stream, AvailableNow, to noop", rows, "broker to noop", 0.8)
        # A query starts a Python process for its source, whatever it has to read.
        yield row(MICRO_BATCHES, rows, "broker to noop")
        yield row("Parquet to noop", rows)
        yield row("store directory to count, metadata", rows)
        yield row("broker to count, metadata", rows)
        yield row("Parquet to Parquet", rows)
        yield row("store directory to Parquet", rows, "Parquet to Parquet", 0.6)
        yield row("broker to Parquet", rows, "Parquet to Parquet", 0.6)
        seconds, used = self.best.found["plain producer, gathered"]
        # A tenth of the rows, for a tenth of the time.
        self.best.found["plain producer, gathered"] = (seconds * 10, used * 10)
        yield row("plain producer, gathered", rows)
        yield row("Parquet to a topic", rows, "plain producer, gathered", 0.5)


async def produce(nameserver: str, topic: str, count: int) -> None:
    """A program without Spark: 512 senders whose messages are batched."""
    from tianzhou.client import Batching, Message, Producer, ProducerOptions

    body = bytes(BODY_BYTES)
    options = ProducerOptions(batching=Batching())
    async with Producer("bench", nameserver=nameserver, options=options) as producer:

        async def work() -> None:
            for n in range(count // 512):
                await producer.send(Message(topic, body, tags="tag", keys=f"T{n}"))

        await asyncio.gather(*(work() for _ in range(512)))


# Latency


def latency(bench: Bench) -> Row:
    """Measure from sending a message to the end of its micro-batch."""
    topic = "paced"
    fill(bench.nameserver, topic, 1)
    reader = bench.spark.readStream.format("rocketmq").option("nameserver", bench.nameserver)
    rows = reader.option("topic", topic).load()
    checkpoint = str(bench.place / "checkpoint-latency")
    query = rows.writeStream.format("noop").option("checkpointLocation", checkpoint).start()
    try:
        begun_s = pace(bench.nameserver, topic, until=lambda: done(query) >= BATCHES_FOR_LATENCY)
    finally:
        query.stop()
    assert query.exception() is None
    # The first samples are from a query that is still warming up.
    batches = [p for p in query.recentProgress if p["numInputRows"]][WARM_UP:]
    times: list[float] = []
    for progress in batches:
        start = datetime.fromisoformat(progress["timestamp"]).timestamp()
        end = start + progress["durationMs"]["triggerExecution"] / 1000
        (source,) = progress["sources"]
        first, last = (place(source[name], topic) - 1 for name in ("startOffset", "endOffset"))
        times += [end - begun_s - n / RATE_FOR_LATENCY for n in range(first, last)]
    times.sort()
    p50, p99 = times[len(times) // 2], times[len(times) * 99 // 100]
    parts = ("triggerExecution", "addBatch", "walCommit", "commitOffsets", "latestOffset")
    told = ", ".join(
        f"{name} {sum(p['durationMs'].get(name, 0) for p in batches) / len(batches):.0f}"
        for name in parts
    )
    name = f"latency at {RATE_FOR_LATENCY}/s: p50 {p50 * 1e3:.0f} ms, p99 {p99 * 1e3:.0f} ms"
    return Row("spark", f"{name} (ms a batch: {told})", RATE_FOR_LATENCY, 0.0, 0.0)


def done(query: Any) -> int:
    """Micro-batches that had rows."""
    return sum(p["numInputRows"] > 0 for p in query.recentProgress)


def place(offsets: str, topic: str) -> int:
    """Return how many messages are before these offsets."""
    queues = json.loads(offsets)[topic].values()
    return sum(offset for queue in queues for offset in queue.values())


def pace(nameserver: str, topic: str, until: Callable[[], bool]) -> float:
    """Send messages at a given rate, a few at a time; return when the first one was sent."""
    with Brokers(nameserver) as brokers:
        sender = BatchSender(brokers, "bench")
        begun_s, begun, sent, rounds = time.time(), perf_counter(), 0, 0
        # Polling the query costs CPU time too.
        while rounds % 100 or not until():
            now = perf_counter() - begun
            assert now < LATENCY_S_MAX, "the query does not get on"
            while sent < now * RATE_FOR_LATENCY:
                sender.add(topic, Entry(bytes(BODY_BYTES), b""))
                sent += 1
            sender.flush()
            rounds += 1
            time.sleep(0.005)
    return begun_s


def rows(directory: str, count: int = ROWS) -> Iterator[Row]:
    place = Path(tempfile.mkdtemp(prefix="tianzhou-bench-spark-", dir=directory))
    tianzhou_command = str(Path(sys.executable).with_name("tianzhou"))
    command = [
        tianzhou_command,
        "up",
        "--data",
        str(place / "data"),
        "--nameserver-port",
        "0",
        "--broker-port",
        "0",
        "--ready-file",
    ]
    spark = tianzhou.spark.session(master="local[2]", config={"spark.driver.memory": "4g"})
    spark.sparkContext.setLogLevel("OFF")
    try:
        with served(command) as server:
            bench = Bench(spark, {**server, "data": str(place / "data")}, place, count)
            bench.prepare()
            bench.measure()
            yield from bench.table()
            yield latency(bench)
    finally:
        spark.stop()
        shutil.rmtree(place)


if __name__ == "__main__":
    from bench.measure import show

    found = list(
        rows(
            sys.argv[1] if len(sys.argv) > 1 else tempfile.gettempdir(),
            int(sys.argv[2]) if len(sys.argv) > 2 else ROWS,
        )
    )
    show(found, [], Path("build/bench-spark.jsonl"))
    missed = [item.name for item in found if not item.holds]
    print(json.dumps({"below the floor": missed}))
    sys.exit(bool(missed))
