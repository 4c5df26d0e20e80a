"""docs/spark.md: its examples run, its tables match the code, and both languages agree."""

import contextlib
import re
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import tianzhou.spark
from clients import server_process
from docs.pages import NAMESERVER, Page
from tianzhou.spark.option_values import Option
from tianzhou.spark.options import READ, STORE, WRITE
from tianzhou.spark.schema import TOPIC
from tianzhou.spark.writer import COLUMNS

PAGE = Page("docs/spark.md")
ENGLISH = PAGE.text


def rows(text: str) -> list[tuple[str, str]]:
    """Return the first and the last cell of every row of every table."""
    lines = [line for line in text.splitlines() if line.startswith("| `")]
    cells = [re.split(r"(?<!\\)\|", line) for line in lines]
    return [(row[1].strip(), row[-2].strip().replace("\\|", "|")) for row in cells]


@pytest.mark.slow
def test_spark_page_examples_work(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = server_process.up(tmp_path / "up")
    monkeypatch.setattr(tianzhou.spark, "session", lambda: spark, raising=False)
    (tmp_path / "tianzhou-data").symlink_to(tmp_path / "up" / "data")
    (tmp_path / "build").mkdir()
    # Paths in Spark are relative to its own process, not to the test's directory.
    names = "archive|checkpoint|tianzhou-data"
    known: dict[str, object] = {}
    try:
        with contextlib.chdir(tmp_path):
            for code in PAGE.blocks("python"):
                here = code.replace(NAMESERVER, server.nameserver)
                here = re.sub(f'"({names})"', rf'"{tmp_path}/\1"', here)
                exec(compile(here, "spark.md", "exec"), known)
        assert spark.read.parquet(str(tmp_path / "archive")).count() == 2
        reader = spark.read.format("rocketmq").option("nameserver", server.nameserver)
        assert reader.load("payments").count() == 100
        assert (tmp_path / "build" / "tianzhou.zip").exists()
    finally:
        spark.catalog.dropTempView("orders")
        server.end()


@pytest.mark.parametrize("options", [READ, WRITE, STORE])
def test_spark_page_explains_every_option(options: dict[str, Option]) -> None:
    told = rows(ENGLISH)
    for name, option in options.items():
        also = ", ".join(f"`{alias}`" for alias in option.aliases)
        sentence = option.help + (f" Also {also}." if also else "")
        assert (f"`{name}`", sentence) in told, name


def test_spark_page_explains_every_column() -> None:
    told = "\n".join(ENGLISH.splitlines())
    for name, kind in TOPIC.items():
        assert f"| `{name}` | {kind.simpleString()} |" in told
    for name in COLUMNS:
        assert f"`{name}`" in told


def test_spark_page_explains_every_error_condition() -> None:
    sources = Path(tianzhou.spark.__file__).parent.rglob("*.py")
    text = "\n".join(path.read_text("utf-8") for path in sources)
    used = set(re.findall(r'SourceError\(\s*"([A-Z_]+)"', text))
    used |= set(re.findall(r"\[ROCKETMQ\.([A-Z_]+)\]", text))
    assert used == set(re.findall(r"`ROCKETMQ\.([A-Z_]+)`", ENGLISH))
