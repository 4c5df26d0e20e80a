"""The content of a `pipeline.yml`. Every error names the file, the line and the key."""

import re
from pathlib import Path

import pytest

from tianzhou.spark.pipelines import builtin
from tianzhou.spark.pipelines.errors import PipelineError
from tianzhou.spark.pipelines.model import ConsoleSink, JdbcSink, ParquetSink, TopicSink
from tianzhou.spark.pipelines.pipeline_file import load, located, parse
from tianzhou.spark.pipelines.units import read_interval, read_size

GOOD = """name: cities
source:
  nameserver: 127.0.0.1:9876
  topic: payments
decode:
  format: json
  schema: city STRING, amount DOUBLE
sinks:
  - type: parquet
    path: lake
"""


def refused(text: str) -> str:
    with pytest.raises(PipelineError) as caught:
        parse(text, "p.yml")
    return str(caught.value)


def test_minimal_pipeline_file_is_parsed() -> None:
    found = parse("name: a\nsource: {topic: t}\nsinks: [{type: console}]\n", "p.yml")
    assert found.sinks == [ConsoleSink()]
    assert found.decode.format == "raw"


def test_pipeline_file_with_every_key_is_parsed() -> None:
    found = parse(
        GOOD.replace("sinks:\n", "trigger: {interval: 30s}\nsinks:\n")
        + "    retention: 30d\n    partitionBy: [date]\n"
        + "  - {type: topic, options: {nameserver: '127.0.0.1:9876', topic: out}, mode: update}\n"
        + "  - {type: jdbc, url: 'jdbc:derby:x', table: t, batchColumn: batch}\n"
        + "transform:\n"
        + "  watermark: {column: body.at, delay: 5 minutes}\n"
        + "  window: {size: 1 minute, groupBy: {city: body.city}, select: {n: count(*)}}\n"
        + "  sql: SELECT * FROM messages\n"
        + "checkpoint: s3a://bucket/checkpoints\n"
        + "spark: {spark.sql.shuffle.partitions: 4}\n",
        "p.yml",
    )
    kinds = [type(sink) for sink in found.sinks]
    assert kinds == [ParquetSink, TopicSink, JdbcSink]
    assert found.transform.window is not None
    assert found.transform.window.group_by == {"city": "body.city"}


@pytest.mark.parametrize(
    ("change", "line", "words"),
    [
        (("topic: payments", "topik: payments"), 4, "unknown option 'topik': did you mean topic"),
        (("nameserver: 127.0.0.1:9876", "nameserver: nowhere:port"), 3, "nameserver"),
        (("path: lake", "pfad: lake"), 10, "allowed are path, date, partitionBy"),
        (("    path: lake\n", ""), 9, "missing required field `path`"),
        (("type: parquet", "type: parkett"), 9, "types are parquet, topic, jdbc, console"),
        (("format: json", "format: json\n  charset: klingon"), 7, "is not a charset; use utf-8"),
        (("format: json", "format: xml"), 6, "allowed are avro, json, protobuf, raw, text"),
        (("decode:", "dekode:"), 5, "did you mean 'decode'"),
        (
            (
                "type: parquet\n    path: lake",
                "{type: jdbc, url: jdbc:db2:x, table: t, keys: [a]}",
            ),
            9,
            "keys are not supported for 'db2'; supported are postgresql",
        ),
        (("name: cities", "name: all cities"), 1, "name"),
        (("name: cities", "name: 7"), 1, "expected `str`, got `int`"),
        (("name: cities\n", ""), 1, "missing required field `name`"),
        (("format: json", "format: protobuf"), 5, "needs descriptor"),
        (("path: lake", "path: lake\n    retention: soon"), 11, "duration"),
        (("path: lake", "path: lake\n    compactBelow: small"), 11, "size such as 512k"),
        (("path: lake", "path: lake\n    compactFiles: 1"), 11, ">= 2"),
        (("topic: payments", "topic: payments\n  maxOffsetsPerTrigger: 0"), 5, "whole number"),
        (("topic: payments", "topic: payments\n  topic: again"), 5, "duplicate key"),
        (("topic: payments", "topic: payments\n  endingOffsets: latest"), 2, "no end"),
        (("topic: payments", "topic: ${NOT_SET_ANYWHERE}"), 4, "NOT_SET_ANYWHERE is not set"),
        (("decode:", "trigger: {interval: 1s, availableNow: true}\ndecode:"), 5, "either"),
        (("decode:", "trigger: {interval: often}\ndecode:"), 5, "duration"),
        (
            ("decode:", "transform: {window: {size: 1m, select: {n: count(*)}}}\ndecode:"),
            5,
            "needs transform.watermark",
        ),
    ],
)
def test_invalid_pipeline_file_is_reported_with_its_line(
    change: tuple[str, str], line: int, words: str
) -> None:
    text = GOOD.replace(*change)
    assert text != GOOD
    said = refused(text)
    assert said.startswith(f"p.yml:{line}: "), said
    assert words in said


@pytest.mark.parametrize(
    ("said", "line"),
    [
        ("decode.schema is 'x'", 7),
        ("transform.sql: nothing", 1),
        ("sinks.0.path: no", 10),
        ("sinks.0.columns: no", 9),
        ("source: [ROCKETMQ.UNKNOWN_TOPIC] no", 2),
    ],
)
def test_planning_errors_are_reported_with_their_line(said: str, line: int) -> None:
    assert str(located(GOOD, "p.yml", PipelineError(said))) == f"p.yml:{line}: {said}"


def test_located_leaves_other_errors_unchanged() -> None:
    error = PipelineError("the pipeline is already running in process 7")
    assert located(GOOD, "p.yml", error) is error


@pytest.mark.parametrize("text", ["", "- a\n- b\n", "name: [1", "a: b: c", "\tname: x"])
def test_text_that_is_not_a_pipeline_is_rejected(text: str) -> None:
    assert re.match(r"p\.yml:\d+: ", refused(text))


def test_environment_variables_are_expanded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOPIC_HERE", "orders")
    text = GOOD.replace("topic: payments", "topic: ${TOPIC_HERE}").replace(
        "path: lake", "path: ${LAKE:-somewhere}"
    )
    found = parse(text, "p.yml")
    assert found.source["topic"] == "orders"
    assert isinstance(found.sinks[0], ParquetSink)
    assert found.sinks[0].path == "somewhere"


def test_command_line_overrides_the_pipeline_file() -> None:
    given = {"source.topic": "orders", "sinks.0.path": "elsewhere", "decode.schema": "infer"}
    found = parse(GOOD, "p.yml", given=given)
    assert found.source["topic"] == "orders"
    assert found.decode.schema == "infer"
    with pytest.raises(PipelineError, match="unknown key 'sauce'"):
        parse(GOOD, "p.yml", given={"sauce": "hot"})


def test_missing_pipeline_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match=r"nothing\.yml cannot be read"):
        load(tmp_path / "nothing.yml")
    with pytest.raises(PipelineError, match="neither a file nor one of archive"):
        builtin.find("nothing")


@pytest.mark.parametrize("name", builtin.NAMES)
def test_builtin_pipelines_are_valid(name: str) -> None:
    found, _ = builtin.find(name)
    assert found.name == name
    assert found.description


def test_sizes_and_intervals_are_parsed() -> None:
    assert read_size("64m") == 64 << 20
    assert read_size("10 KiB") == 10 << 10
    assert read_interval("2 minutes") == "120000 milliseconds"
    with pytest.raises(ValueError, match="must be a size"):
        read_size("64 cats")
