"""The Spark example of the README."""

import pytest
from pyspark.sql import SparkSession

import tianzhou.spark
from clients.server_process import ServerProcess
from docs.pages import NAMESERVER, Page
from spark.filling import Filling


def test_readme_spark_example_works(
    spark: SparkSession,
    server: ServerProcess,
    filling: Filling,
    topic: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Run it after the Python example has sent its message."""
    monkeypatch.setattr(tianzhou.spark, "session", lambda: spark, raising=False)
    filling.send(topic, b"two apples", TAGS="fruit")
    _, code = Page("README.md").blocks("python")
    here = code.replace(NAMESERVER, server.nameserver).replace('"orders"', f'"{topic}"')
    names: dict[str, object] = {}
    exec(compile(here, "README.md", "exec"), names)
    assert "|fruit|    2|" in capsys.readouterr().out
    query = names["query"]
    progress: list[dict[str, int]] = getattr(query, "recentProgress")  # noqa: B009
    assert sum(each["numInputRows"] for each in progress) == 2
