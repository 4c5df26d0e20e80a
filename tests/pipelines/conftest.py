"""One Spark session and one broker per test process; everything else belongs to a test."""

import itertools
import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from spark import processes
from tianzhou.client.sync import Message, Producer
from tianzhou.spark.pipelines.history import Sample
from tianzhou.spark.pipelines.model import Pipeline
from tianzhou.spark.pipelines.pipeline_file import parse
from tianzhou.spark.pipelines.running import run_to_end
from tianzhou.spark.tables.history_table import Cluster
from tianzhou.spark.tables.table import Table
from tianzhou.testing import RunningBroker, running_broker

_NUMBERS = itertools.count()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    processes.give_time(items, Path(__file__).parent)


@pytest.fixture(scope="session", autouse=True)
def _prepared() -> None:
    processes.prepare()


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    made = processes.shared_session(tmp_path_factory.mktemp("spark"))
    yield made
    made.stop()


@pytest.fixture(scope="session")
def shared_broker() -> Iterator[RunningBroker]:
    with running_broker() as running:
        yield running


class Place:
    """A directory and topics of one test."""

    def __init__(self, spark: SparkSession, broker: RunningBroker, directory: Path) -> None:
        self.spark = spark
        self.broker = broker
        self.directory = directory
        self.nameserver = broker.nameserver

    def topic(self, name: str = "topic", *, queues: int = 4) -> str:
        made = f"{name}-{os.getpid()}-{next(_NUMBERS)}"
        self.broker.create_topic(made, queues=queues)
        return made

    def send(self, topic: str, bodies: Iterable[bytes | str | dict[str, Any]], **more: Any) -> int:
        count = 0
        with Producer("tests", nameserver=self.nameserver) as producer:
            for body in bodies:
                data = json.dumps(body) if isinstance(body, dict) else body
                producer.send(
                    Message(topic, data.encode() if isinstance(data, str) else data, **more)
                )
                count += 1
        return count

    def pipeline(self, text: str, topic: str) -> Pipeline:
        """Parse a pipeline over a topic; the text has everything but the source."""
        source = f'source: {{nameserver: "{self.nameserver}", topic: {topic}}}\n'
        head = "" if text.lstrip().startswith("name:") else f"name: p{next(_NUMBERS)}\n"
        return parse(head + source + text, "pipeline.yml")

    def run(self, pipeline: Pipeline) -> list[Sample]:
        return run_to_end(self.spark, pipeline, self.directory)

    def table(self, name: str) -> Table:
        return Table(str(self.directory / name))

    def rows(self, name: str, *columns: str) -> list[Any]:
        return self.table(name).read(self.spark).select(*columns or ("*",)).collect()

    def cluster(self, archive: str | None = None) -> Cluster:
        options = {"nameserver": self.nameserver}
        return Cluster(options, None if archive is None else str(self.directory / archive))


@pytest.fixture
def place(spark: SparkSession, shared_broker: RunningBroker, tmp_path: Path) -> Place:
    return Place(spark, shared_broker, tmp_path)
