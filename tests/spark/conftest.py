"""One Spark session and one server for each test process: starting either takes seconds."""

import itertools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, DataFrameReader, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamReader

from clients import server_process
from clients.server_process import ServerProcess
from spark import processes
from spark.filling import Filling

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
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """The shared server. Every test uses its own topics and groups."""
    running = server_process.up(tmp_path_factory.mktemp("up"), "--ephemeral")
    yield running
    running.end()


@pytest.fixture
def topic() -> str:
    return f"topic-{os.getpid()}-{next(_NUMBERS)}"


@pytest.fixture
def filling(server: ServerProcess) -> Iterator[Filling]:
    with Filling(server.nameserver) as made:
        yield made


class Tables:
    """Open the tables of the shared server."""

    def __init__(self, spark: SparkSession, nameserver: str) -> None:
        self.spark = spark
        self.nameserver = nameserver

    def reader(self, topic: str, **options: object) -> DataFrameReader:
        reader = self.spark.read.format("rocketmq").option("nameserver", self.nameserver)
        return reader.option("topic", topic).options(**{k: str(v) for k, v in options.items()})

    def read(self, topic: str, **options: object) -> DataFrame:
        return self.reader(topic, **options).load()

    def stream(self, topic: str, **options: object) -> DataStreamReader:
        reader = self.spark.readStream.format("rocketmq").option("nameserver", self.nameserver)
        return reader.option("topic", topic).options(**{k: str(v) for k, v in options.items()})

    def of(self, rows: list[tuple[object, ...]], schema: str) -> DataFrame:
        """Return a table of these rows. The annotations of Spark do not cover this call."""
        make: Any = getattr(self.spark, "createDataFrame")  # noqa: B009
        return make(rows, schema)

    def bodies(self, topic: str, **options: object) -> list[str]:
        """Return bodies as text, sorted."""
        rows = self.read(topic, columns="body", **options).collect()
        return sorted(bytes(row.body).decode() for row in rows)


@pytest.fixture
def tables(spark: SparkSession, server: ServerProcess) -> Tables:
    return Tables(spark, server.nameserver)
