"""A standalone cluster: a master and two workers, a job from spark-submit, the package in a zip."""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest

import tianzhou.spark
from clients.server_process import ServerProcess, spare_port
from spark.filling import Filling
from spark.processes import BIN, Program, environment, run

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

JOB = Path(__file__).parent / "jobs" / "count_topic.py"
START_S = 90.0


def spark_class(name: str, *arguments: str) -> list[str]:
    home = Path(next(iter(pyspark.__path__)))
    return [str(home / "bin" / "spark-class"), f"org.apache.spark.deploy.{name}", *arguments]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[str]:
    """The address of a master with two workers."""
    port = spare_port()
    host = ["--host", "127.0.0.1"]
    env = environment(SPARK_DAEMON_MEMORY="256m", PYTHONPATH="")
    command = spark_class("master.Master", *host, "--port", str(port), "--webui-port", "0")
    programs = [Program(command, tmp_path / "master", env)]
    try:
        programs[0].wait_for("New state: ALIVE", START_S)
        address = f"spark://127.0.0.1:{port}"
        for number in range(2):
            place = tmp_path / f"worker-{number}"
            command = spark_class(
                "worker.Worker", *host, "--cores", "1", "--memory", "1g", "--webui-port", "0",
                "--work-dir", str(place), address,
            )  # fmt: skip
            programs.append(Program(command, place, env))
        for program in programs[1:]:
            program.wait_for("Successfully registered with master", START_S)
        yield address
    finally:
        for program in reversed(programs):
            program.kill()


def test_a_job_runs_on_two_workers_with_the_package_shipped(
    cluster: str, server: ServerProcess, filling: Filling, topic: str, tmp_path: Path
) -> None:
    filling.many(topic, 5_000)
    shipped = tianzhou.spark.package(tmp_path)
    command = [
        str(BIN / "spark-submit"), "--master", cluster, "--py-files", shipped,
        "--conf", "spark.executor.memory=512m", "--conf", "spark.ui.enabled=false",
        "--conf", "spark.driver.host=127.0.0.1", str(JOB), server.nameserver, topic,
    ]  # fmt: skip
    printed = run(command, tmp_path, environment())
    (line,) = [line for line in printed.splitlines() if line.startswith("told ")]
    told = json.loads(line.removeprefix("told "))
    assert (told["count"], told["distinct"]) == (5_000, 5_000)
    assert told["executors"] == 2
    assert told["code"], "no task ran"
    assert all(f"tianzhou.zip{os.sep}" in code for code in told["code"]), told["code"]
