"""The archive pipeline on a standalone cluster: a master and two workers, under spark-submit."""

from pathlib import Path

import pytest

import tianzhou.spark
from pipelines.conftest import Place
from spark.processes import BIN, environment, run
from spark.test_cluster import cluster

__all__ = ["cluster"]  # a fixture

SUBMIT = Path(__file__).parents[2] / "examples" / "submit.py"


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_the_archive_runs_on_a_cluster(
    cluster: str,
    place: Place,
) -> None:
    """Each message is there once, written by executors that got the package with the job."""
    topic = place.topic("orders")
    count = place.send(topic, [b"%d" % n for n in range(500)])
    shipped = tianzhou.spark.package(place.directory)
    command = [
        str(BIN / "spark-submit"), "--master", cluster, "--py-files", shipped,
        "--conf", "spark.executor.memory=512m", "--conf", "spark.ui.enabled=false",
        "--conf", "spark.driver.host=127.0.0.1", str(SUBMIT),
        "pipeline", "run", "archive", "--once", "-n", place.nameserver, "--topic", topic,
    ]  # fmt: skip
    for _ in range(2):
        run(command, place.directory, environment())
    rows = place.rows("archive", "queueId", "queueOffset", "body")
    assert len({(row.queueId, row.queueOffset) for row in rows}) == len(rows) == count
    assert {bytes(row.body) for row in rows} == {b"%d" % n for n in range(count)}
