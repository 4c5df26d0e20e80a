"""Queries that resume from their checkpoints after the cluster has changed."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from clients import server_process
from clients.server_process import ServerProcess, spare_port
from clients.waiting import wait_until
from spark.filling import Filling

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

SMALL_FILES = "mappedFileSizeCommitLog=262144\n"
KEEP_NOTHING = "fileReservedTime=0\ncleanResourceInterval=100\ndeleteWhen=" + ";".join(
    f"{hour:02d}" for hour in range(24)
)

Start = Callable[..., ServerProcess]


@pytest.fixture
def nameserver(tmp_path: Path) -> Iterator[str]:
    running = server_process.run(["nameserver", "-p", "0"], tmp_path / "nameserver")
    yield running.nameserver
    running.end()


@pytest.fixture
def start(nameserver: str, tmp_path: Path) -> Iterator[Start]:
    """A broker that can be restarted on the same port and data."""
    ports: dict[str, int] = {}
    lives: list[ServerProcess] = []

    def run(name: str, settings: str = "") -> ServerProcess:
        place = tmp_path / name
        place.mkdir(exist_ok=True)
        (place / "broker.conf").write_text(f"brokerName={name}\n{SMALL_FILES}{settings}\n")
        port = ports.setdefault(name, spare_port())
        lives.append(
            server_process.run(
                [
                    "broker",
                    "-n",
                    nameserver,
                    "-p",
                    str(port),
                    "-c",
                    str(place / "broker.conf"),
                    "--data",
                    str(place / "data"),
                ],
                place,
            )
        )
        return lives[-1]

    yield run
    for life in lives:
        life.end()


class Archive:
    """A query that copies a topic to a Parquet directory."""

    def __init__(self, spark: SparkSession, nameserver: str, topic: str, place: Path) -> None:
        self._spark = spark
        self._nameserver = nameserver
        self._topic = topic
        self._place = place

    def start(self, *, once: bool = True, **options: str) -> StreamingQuery:
        reader = self._spark.readStream.format("rocketmq").option("nameserver", self._nameserver)
        reader = reader.option("topic", self._topic).option("startingOffsets", "earliest")
        rows = reader.options(**options).load()
        writer = rows.writeStream.option("checkpointLocation", str(self._place / "checkpoint"))
        writer = writer.format("parquet").option("path", str(self._place / "table"))
        return (writer.trigger(availableNow=True) if once else writer).start()

    def run(self, **options: str) -> None:
        query = self.start(once=True, **options)
        query.awaitTermination(90)
        assert query.exception() is None

    def table(self) -> DataFrame:
        reader = self._spark.read.schema("brokerName string, body binary")
        return reader.parquet(str(self._place / "table"))

    def bodies(self) -> list[str]:
        return sorted(bytes(row.body).decode() for row in self.table().collect())


def kept_from(filling: Filling, topic: str) -> dict[int, int]:
    """Return the first offset that the broker still has by queue id. The broker may have been
    reset."""
    filling.brokers.forget()
    filling.brokers.close()
    found = filling.brokers.min_offsets(filling.queues(topic))
    return {queue.queue_id: offset for queue, offset in found.items()}


def test_stream_resumed_after_retention_reports_the_loss(
    start: Start, nameserver: str, spark: SparkSession, topic: str, tmp_path: Path
) -> None:
    broker = start("broker-a")
    with Filling(nameserver) as filling:
        bodies = filling.many(topic, 400, size=500)
        archive = Archive(spark, nameserver, topic, tmp_path / "archive")
        archive.run()
        bodies += filling.many(topic, 3_000, first=400, size=500)
        assert broker.stop() == 0
        start("broker-a", KEEP_NOTHING)

        wait_until(
            lambda: min(kept_from(filling, topic).values()) > 100,
            within_s=30,
            what="the first files are gone",
        )
        with pytest.raises(StreamingQueryException) as caught:
            archive.run()
        said = re.search(
            r"\[ROCKETMQ.DATA_LOSS\] queue (\d) of topic \S+ on broker broker-a: (\d+) messages "
            r"with offsets (\d+) to (\d+) are gone, the broker has the queue from (\d+) on",
            str(caught.value),
        )
        assert said is not None, str(caught.value)
        queue, count, first, last, kept = map(int, said.groups())
        assert kept == kept_from(filling, topic)[queue] == last + 1 == first + count
        assert first == 100
        assert archive.bodies() == bodies[:400]

        archive.run(failOnDataLoss="false")
        reader = spark.read.format("rocketmq").option("nameserver", nameserver)
        left = [bytes(row.body).decode() for row in reader.load(topic).select("body").collect()]
    assert archive.bodies() == sorted([*bodies[:400], *left])
    assert 0 < len(left) < 3_000


def test_stream_continues_while_one_of_two_brokers_is_down(
    start: Start, nameserver: str, spark: SparkSession, topic: str, tmp_path: Path
) -> None:
    start("broker-a")
    second = start("broker-b")
    with Filling(nameserver) as filling:
        wait_until(
            lambda: len(filling.brokers.publish_route(topic).brokers) == 2,
            within_s=10,
            what="both brokers are registered",
        )
        filling.create(topic, 2)
        assert {queue.broker_name for queue in filling.queues(topic)} == {"broker-a", "broker-b"}
        bodies = filling.many(topic, 200)
        archive = Archive(spark, nameserver, topic, tmp_path / "archive")
        archive.run()
        assert archive.bodies() == bodies
        query = archive.start(once=False)
        try:
            second.kill()
            for number in range(50):
                filling.send(topic, b"meanwhile-%02d" % number, queue=0)
            bodies += [f"meanwhile-{number:02d}" for number in range(50)]
            wait_until(
                lambda: archive.table().count() == 250 or query.exception(),
                within_s=60,
                what="the other broker is read all the same",
            )
            assert query.exception() is None
            # The checkpoint has queues of a broker that is down.
            query.stop()
            query = archive.start(once=False)
            filling.send(topic, b"meanwhile-50", queue=0)
            bodies.append("meanwhile-50")
            wait_until(
                lambda: archive.table().count() == 251 or query.exception(),
                within_s=60,
                what="it goes on with the broker that is there",
            )
            assert query.exception() is None
            start("broker-b")
            more = Filling(nameserver)
            with more:
                bodies += more.many(topic, 100, first=200)
            wait_until(
                lambda: archive.table().count() == 351 or query.exception(),
                within_s=60,
                what="both are read again",
            )
            assert query.exception() is None
        finally:
            query.stop()
    assert archive.bodies() == sorted(bodies)
