"""The same file runs through Spark Connect."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pipelines.conftest import Place
from spark.processes import without_frames
from tianzhou.spark.tables.table import Table
from tianzhou.testing import RunningBroker

SCRIPT = Path(__file__).with_name("connect_pipeline.py")


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_pipeline_file_runs_through_spark_connect(
    place: Place, shared_broker: RunningBroker
) -> None:
    topic = place.topic()
    place.send(topic, [{"n": n} for n in range(50)])
    place.send(topic, ["bad"])
    file = place.directory / "copy.yml"
    file.write_text(
        f"name: copy\nsource: {{nameserver: '{shared_broker.nameserver}', topic: {topic}}}\n"
        "decode: {format: json, schema: n INT}\n"
        "transform: {sql: 'SELECT topic, storeTimestamp, body.n FROM messages'}\n"
        "sinks: [{type: parquet, path: lake}]\n"
    )
    foreign = ("SPARK", "PYSPARK")
    environment = {key: value for key, value in os.environ.items() if not key.startswith(foreign)}
    done = subprocess.run(
        [sys.executable, SCRIPT, file],
        capture_output=True,
        text=True,
        cwd=place.directory,
        env=environment | {"PYSPARK_PYTHON": sys.executable},
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, without_frames(done.stderr)
    # Two queries read 51 messages each; the second run finds nothing new.
    assert done.stdout.split() == ["102", "0"]
    rows = Table(str(place.directory / "lake")).read(place.spark).collect()
    assert sorted(row.n for row in rows) == list(range(50))
    assert Table(str(place.directory / "checkpoints/copy/quarantine")).state().rows == 1
