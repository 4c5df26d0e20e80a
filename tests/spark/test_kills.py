"""kill -9 in the middle of a micro-batch: the table has every message exactly once.

Twice each in an ordinary run, ten times with TIANZHOU_TORTURE.
"""

import os
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from clients.server_process import Lives
from clients.waiting import wait_until
from spark.filling import Filling
from spark.processes import PYTHON, Program, environment

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

KILLS = 10 if os.environ.get("TIANZHOU_TORTURE") else 2
BATCH_ROWS = 500
COUNT = BATCH_ROWS * (KILLS * 4 + 6)
JOBS = Path(__file__).parent / "jobs"
START_S = 90.0


class Archive:
    """The job, over and over on one checkpoint, and what is in its table."""

    def __init__(
        self, nameserver: str, topic: str, place: Path, job: str = "archive_topic.py"
    ) -> None:
        self._command = [PYTHON, str(JOBS / job), nameserver, topic, str(place), str(COUNT)]
        self._place = place
        self._lives = 0
        self.program = self.start()

    def start(self) -> Program:
        self._lives += 1
        self.program = Program(self._command, self._place / f"life-{self._lives}", environment())
        return self.program

    def wait_at_work(self, dice: random.Random, batches: int) -> None:
        """Until so many micro-batches were begun in this life, and a moment more."""
        offsets = self._place / "checkpoint" / "offsets"
        before = self._last(offsets)

        def begun() -> bool:
            assert self.program.is_running, self.program.output.read_text()[-6000:]
            return self._last(offsets) >= before + batches

        wait_until(begun, within_s=START_S, what="the job is at work")
        # Somewhere in the batch: it takes at least 0.2 s.
        moment = time.monotonic() + dice.uniform(0, 0.3)
        wait_until(lambda: time.monotonic() > moment, within_s=5, what="a moment has passed")

    def _last(self, directory: Path) -> int:
        if not directory.exists():
            return -1
        return max((int(p.name) for p in directory.iterdir() if p.name.isdecimal()), default=-1)

    def finish(self) -> None:
        self.program.wait_for("done", 300)
        assert self.program.wait() == 0

    def check(self, spark: SparkSession, bodies: list[str]) -> None:
        rows = spark.read.parquet(str(self._place / "table"))
        found = sorted(bytes(row.body).decode() for row in rows.select("body").collect())
        assert found == bodies
        assert rows.select("queueId", "queueOffset").distinct().count() == len(bodies)


@pytest.fixture
def lives(tmp_path: Path) -> Iterator[Lives]:
    made = Lives(tmp_path / "up")
    yield made
    made.end()


@pytest.fixture
def dice(topic: str) -> random.Random:
    """The moments of the kills; when they meet a micro-batch is up to the machine anyway."""
    return random.Random(topic)


def test_the_driver(
    lives: Lives, spark: SparkSession, topic: str, tmp_path: Path, dice: random.Random
) -> None:
    server = lives.start()
    with Filling(server.nameserver) as filling:
        bodies = filling.many(topic, COUNT)
    archive = Archive(server.nameserver, topic, tmp_path / "archive")
    try:
        for _ in range(KILLS):
            archive.wait_at_work(dice, 2)
            archive.program.kill()
            archive.start()
        archive.finish()
    finally:
        archive.program.kill()
    archive.check(spark, bodies)


def workers_of(pid: int) -> list[int]:
    """Python workers below a process: children of the daemons that Spark forks them from."""
    children: dict[int, list[int]] = {}
    daemons: set[int] = set()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
            command = (entry / "cmdline").read_bytes()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(fields[3]) != pid:  # another session
            continue
        children.setdefault(int(fields[1]), []).append(int(entry.name))
        if b"pyspark.daemon" in command:
            daemons.add(int(entry.name))
    return [child for daemon in daemons for child in children.get(daemon, []) if child in daemons]


def test_a_python_worker(
    lives: Lives, spark: SparkSession, topic: str, tmp_path: Path, dice: random.Random
) -> None:
    server = lives.start()
    with Filling(server.nameserver) as filling:
        bodies = filling.many(topic, COUNT)
    archive = Archive(server.nameserver, topic, tmp_path / "archive")
    try:
        for _ in range(KILLS):
            archive.wait_at_work(dice, 2)
            alive = wait_until(
                lambda: workers_of(archive.program.pid), within_s=30, what="workers are there"
            )
            os.kill(dice.choice(alive), signal.SIGKILL)
        archive.finish()
    finally:
        archive.program.kill()
    archive.check(spark, bodies)


def test_the_broker(
    lives: Lives, spark: SparkSession, topic: str, tmp_path: Path, dice: random.Random
) -> None:
    server = lives.start()
    with Filling(server.nameserver) as filling:
        bodies = filling.many(topic, COUNT)
    archive = Archive(server.nameserver, topic, tmp_path / "archive")
    try:
        for _ in range(KILLS):
            archive.wait_at_work(dice, 2)
            lives.last.kill()
            lives.start()
        archive.finish()
    finally:
        archive.program.kill()
    archive.check(spark, bodies)


def test_the_driver_of_an_idempotent_copy(
    lives: Lives, spark: SparkSession, topic: str, tmp_path: Path, dice: random.Random
) -> None:
    """Into another topic, where no file sink keeps count of what was written."""
    server = lives.start()
    with Filling(server.nameserver) as filling:
        bodies = filling.many(topic, COUNT)
    copy = Archive(server.nameserver, topic, tmp_path / "copy", "copy_topic.py")
    try:
        for _ in range(KILLS):
            copy.wait_at_work(dice, 2)
            copy.program.kill()
            copy.start()
        copy.finish()
    finally:
        copy.program.kill()
    reader = spark.read.format("rocketmq").option("nameserver", server.nameserver)
    rows = reader.load(f"{topic}-copy").select("body").collect()
    assert sorted(bytes(row.body).decode() for row in rows) == bodies
