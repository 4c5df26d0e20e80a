"""Starting the queries of a pipeline, with a Spark whose Python processes are late."""

from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException

from tianzhou.spark.pipelines.pipeline_file import load
from tianzhou.spark.pipelines.running import STARTS_MAX, TOO_LATE, PipelineRun

FILE = """
name: copy
source: {nameserver: '127.0.0.1:9876', topic: orders}
decode: {format: json, schema: n INT}
transform: {sql: 'SELECT topic, storeTimestamp, body.n FROM messages'}
sinks: [{type: parquet, path: lake}]
"""


class Writer:
    """A stream writer whose start fails with these reasons, then succeeds."""

    def __init__(self, *reasons: str) -> None:
        self._reasons = list(reasons)
        self.starts = 0

    def start(self) -> str:
        self.starts += 1
        if self._reasons:
            raise PySparkException(self._reasons.pop(0))
        return "query"


def started(directory: Path, writer: Writer) -> dict[str, Any]:
    file = directory / "copy.yml"
    file.write_text(FILE)
    nothing: Any = None
    run: Any = PipelineRun(nothing, load(file), directory)
    run._writers["sink-0"] = writer
    run._start("sink-0")
    return run._queries


def test_pipeline_start_is_retried_while_the_python_process_is_late(tmp_path: Path) -> None:
    writer = Writer(*[f"{TOO_LATE}."] * (STARTS_MAX - 1))
    assert started(tmp_path, writer) == {"sink-0": "query"}
    assert writer.starts == STARTS_MAX


@pytest.mark.parametrize(
    ("reasons", "starts"), [([f"{TOO_LATE}."] * STARTS_MAX, STARTS_MAX), (["no such table"], 1)]
)
def test_pipeline_start_that_fails_permanently_raises(
    tmp_path: Path, reasons: list[str], starts: int
) -> None:
    writer = Writer(*reasons)
    with pytest.raises(PySparkException, match=reasons[0]):
        started(tmp_path, writer)
    assert writer.starts == starts
