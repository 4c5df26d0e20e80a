"""kill -9 in the middle of a micro-batch: the table and the copied topic have every message exactly
once.

An ordinary run has a few kills of each kind, a run with TIANZHOU_TORTURE ten of each.
"""

import json
import os
import random
import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from clients.server_process import Lives
from clients.waiting import wait_until
from spark.filling import Filling
from spark.jobs.two_ways import ROWS_PER_BATCH
from spark.processes import PYTHON, Program, environment

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

JOB = Path(__file__).parent / "jobs" / "two_ways.py"
KINDS = ("worker", "broker", "driver")
CASES = [(kind,) * 10 for kind in KINDS] if "TIANZHOU_TORTURE" in os.environ else [(*KINDS, *KINDS)]
SENT_FOR_EACH = ROWS_PER_BATCH * 3
WORK_S = 180.0
"""A program starts its own Spark in ten seconds on an idle machine, and in minutes on a busy
one."""
TOO_LATE = "Python worker failed to connect back"
OF_OURS = re.compile(r"ROCKETMQ|tianzhou/\w+/\w+\.py")
"""Our error conditions, and our lines in the stack trace of a worker."""


class Job:
    """The job, restarted on its checkpoints, beside a server that is restarted too."""

    def __init__(self, lives: Lives, topic: str, place: Path) -> None:
        self.lives = lives
        self.nameserver = lives.start().nameserver
        self._topic = topic
        self._place = place
        self._count = 0
        self._dice = random.Random(topic)
        self.bodies: list[str] = []
        self._send(SENT_FOR_EACH)
        self._start()

    def _start(self) -> None:
        self._count += 1
        self._has_lost_worker = False
        command = [PYTHON, str(JOB), self.nameserver, self._topic, str(self._place)]
        self.program = Program(command, self._place / f"life-{self._count}", environment())

    def _send(self, count: int) -> None:
        with Filling(self.nameserver) as filling:
            self.bodies += filling.many(self._topic, count, first=len(self.bodies))

    def kill(self, kind: str) -> None:
        """Kill while both queries have started a micro-batch in this life, and one is in the middle
        of it."""
        self._send(SENT_FOR_EACH)
        before = self._begun()
        self._wait(lambda: self._begun() > before and self._is_at_work(), "a micro-batch at work")
        getattr(self, f"_kill_{kind}")()

    def _kill_driver(self) -> None:
        self.program.kill()
        self._start()

    def _kill_worker(self) -> None:
        alive = wait_until(lambda: workers_of(self.program.pid), within_s=30, what="workers")
        os.kill(self._dice.choice(alive), signal.SIGKILL)
        self._has_lost_worker = True

    def _kill_broker(self) -> None:
        self.lives.last.kill()
        self.lives.start()

    def finish(self) -> None:
        """Run until both queries have recorded that everything is done, then kill once more."""
        names = ("to-table", "to-topic")
        self._wait(lambda: all(self._done(name) == len(self.bodies) for name in names), "the end")
        self.program.kill()

    def _wait(self, look: Callable[[], bool], what: str) -> None:
        def seen() -> bool:
            if not self.program.is_running:
                self._check_death()
                self._start()
            return look()

        wait_until(seen, within_s=WORK_S, what=what, progress=self._progress)

    def _progress(self) -> list[int]:
        return [self._begun(), *(self._done(name) for name in ("to-table", "to-topic"))]

    def _check_death(self) -> None:
        """Allow errors of killed workers. Tasks are retried, but a killed worker that was planning
        a micro-batch fails its query, with any message of Spark, unless the message is ours. Spark
        also gives a worker ten seconds to start, which may be too short on a busy machine."""
        text = self.program.output.read_text("utf-8", "replace")
        _, ended, reason = text.rpartition("terminated with exception: ")
        assert ended, text[-6000:]
        assert self._has_lost_worker or reason.startswith(TOO_LATE), text[-6000:]
        assert not OF_OURS.search(reason), text[-6000:]

    # The checkpoints

    def _begun(self) -> int:
        """Return how many micro-batches were started by the query that is further behind."""
        return min(last(self._place / name / "offsets") for name in ("to-table", "to-topic"))

    def _is_at_work(self) -> bool:
        return any(
            last(self._place / name / "offsets") > last(self._place / name / "commits")
            for name in ("to-table", "to-topic")
        )

    def _done(self, name: str) -> int:
        """Return how many messages precede the end of the last finished micro-batch."""
        done = last(self._place / name / "commits")
        if done < 0:
            return 0
        offsets = (self._place / name / "offsets" / str(done)).read_text().splitlines()[-1]
        queues = json.loads(offsets)[self._topic]["broker-a"]
        return sum(queues.values())

    # The results

    def check(self, spark: SparkSession) -> None:
        rows = spark.read.parquet(str(self._place / "table"))
        found = rows.select("queueId", "queueOffset", "body").collect()
        assert sorted(bytes(row.body).decode() for row in found) == self.bodies
        assert len({(row.queueId, row.queueOffset) for row in found}) == len(self.bodies)
        reader = spark.read.format("rocketmq").option("nameserver", self.nameserver)
        copied = reader.load(f"{self._topic}-copy").select("body").collect()
        assert sorted(bytes(row.body).decode() for row in copied) == self.bodies


def last(directory: Path) -> int:
    """Return the number of the last file of a checkpoint's log."""
    if not directory.exists():
        return -1
    return max((int(p.name) for p in directory.iterdir() if p.name.isdecimal()), default=-1)


def workers_of(pid: int) -> list[int]:
    """Return the Python workers below a process: children of the daemons that Spark forks them
    from."""
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
        if int(fields[3]) != pid:  # of another session
            continue
        children.setdefault(int(fields[1]), []).append(int(entry.name))
        if b"pyspark.daemon" in command:
            daemons.add(int(entry.name))
    return [child for daemon in daemons for child in children.get(daemon, []) if child in daemons]


@pytest.fixture
def job(topic: str, tmp_path: Path) -> Iterator[Job]:
    lives = Lives(tmp_path / "up")
    try:
        made = Job(lives, topic, tmp_path / "job")
        try:
            yield made
        finally:
            made.program.kill()
    finally:
        lives.end()


@pytest.mark.parametrize("kinds", CASES, ids=lambda kinds: f"{len(kinds)}-{kinds[0]}")
def test_stream_killed_within_a_micro_batch_loses_and_repeats_nothing(
    job: Job, spark: SparkSession, kinds: tuple[str, ...]
) -> None:
    for kind in kinds:
        job.kill(kind)
    job.finish()
    job.check(spark)
