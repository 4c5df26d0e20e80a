"""A standalone cluster with a master and two workers: jobs with and without spark-submit."""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest

import tianzhou.spark
from clients.server_process import spare_port
from pipelines.conftest import Place
from spark.processes import BIN, Program, environment, run

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

COUNTING = Path(__file__).parents[1] / "spark" / "jobs" / "count_topic.py"
SUBMIT = Path(__file__).parents[2] / "examples" / "submit.py"
START_S = 120.0


def spark_class(name: str, *arguments: str) -> list[str]:
    home = Path(next(iter(pyspark.__path__)))
    return [str(home / "bin" / "spark-class"), f"org.apache.spark.deploy.{name}", *arguments]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Return the address of a master with two workers, whose Python does not find this package."""
    place = tmp_path_factory.mktemp("cluster")
    port = spare_port()
    host = ["--host", "127.0.0.1"]
    env = environment(SPARK_DAEMON_MEMORY="256m", PYTHONPATH="")
    command = spark_class("master.Master", *host, "--port", str(port), "--webui-port", "0")
    programs = [Program(command, place / "master", env)]
    try:
        programs[0].wait_for("New state: ALIVE", START_S)
        address = f"spark://127.0.0.1:{port}"
        for number in range(2):
            work = place / f"worker-{number}"
            command = spark_class(
                "worker.Worker",
                *host,
                "--cores",
                "1",
                "--memory",
                "1g",
                "--webui-port",
                "0",
                "--work-dir",
                str(work),
                address,
            )
            programs.append(Program(command, work, env))
        for program in programs[1:]:
            program.wait_for("Successfully registered with master", START_S)
        yield address
    finally:
        for program in reversed(programs):
            program.kill()


def submit(cluster: str, place: Place, *job: str) -> str:
    """Run a job with spark-submit on the cluster, with the package as a zip, and return its
    output."""
    command = [
        str(BIN / "spark-submit"),
        "--master",
        cluster,
        "--py-files",
        tianzhou.spark.package(place.directory),
        "--conf",
        "spark.executor.memory=512m",
        "--conf",
        "spark.ui.enabled=false",
        "--conf",
        "spark.driver.host=127.0.0.1",
        *job,
    ]
    return run(command, place.directory, environment())


def test_job_with_the_package_runs_on_two_workers(cluster: str, place: Place) -> None:
    topic = place.topic("orders")
    place.send(topic, [b"%d" % n for n in range(400)])
    printed = submit(cluster, place, str(COUNTING), place.nameserver, topic)
    (line,) = [line for line in printed.splitlines() if line.startswith("told ")]
    told = json.loads(line.removeprefix("told "))
    assert (told["count"], told["distinct"]) == (400, 400)
    assert told["executors"] == 2
    assert told["code"], "no task ran"
    assert all(f"tianzhou.zip{os.sep}" in code for code in told["code"]), told["code"]


def test_archive_started_with_spark_submit_resumes_without_it(cluster: str, place: Place) -> None:
    """Each message is stored once, by executors that got the package with the job."""
    topic = place.topic("orders")
    count = place.send(topic, [b"%d" % n for n in range(300)])
    pipeline = ["pipeline", "run", "archive", "--once", "-n", place.nameserver, "--topic", topic]
    submit(cluster, place, str(SUBMIT), *pipeline)
    assert place.table("archive").state().rows == count
    count += place.send(topic, [b"%d" % n for n in range(300, 500)])
    run([str(BIN / "tianzhou"), *pipeline, "--master", cluster], place.directory, environment())
    rows = place.rows("archive", "queueId", "queueOffset", "body")
    assert len({(row.queueId, row.queueOffset) for row in rows}) == len(rows) == count
    assert {bytes(row.body) for row in rows} == {b"%d" % n for n in range(count)}
