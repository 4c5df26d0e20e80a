"""Spark sessions of tests: one per test process, and programs with their own sessions."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

import pytest
from pyspark.sql import SparkSession

import tianzhou.spark
from clients.waiting import wait_until
from pipelines.databases import class_path
from tianzhou.admin.commands.spark_session import SETTINGS
from tianzhou.testing.kit.patience import Patience

PYTHON: Final = sys.executable
BIN: Final = Path(sys.executable).parent
TEST_S: Final = 1500.0
RUN_S: Final = 240.0
"""On an idle machine, where a program starts its own Spark in ten seconds."""
CHECK_S: Final = 0.5


def give_time(items: Iterable[pytest.Item], directory: Path) -> None:
    """Allow more time: a session starts in ten seconds on an idle machine and in a minute on a busy
    one."""
    for item in items:
        if directory in item.path.parents and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(TEST_S))


def prepare() -> None:
    """Set up this process and its children: workers run the same Python, and Java does without its
    second compiler, which does not pay off in short processes."""
    os.environ["PYSPARK_PYTHON"] = PYTHON
    os.environ["JDK_JAVA_OPTIONS"] = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


def environment(**more: str) -> dict[str, str]:
    foreign = ("SPARK_", "PYTEST_")
    kept = {key: value for key, value in os.environ.items() if not key.startswith(foreign)}
    return kept | {"SPARK_LOCAL_IP": "127.0.0.1"} | more


def shared_session(scratch: Path) -> SparkSession:
    """Return the session of this test process; the first caller creates it."""
    # Blocks, artifacts and unpacked libraries go where pytest removes them, not into /tmp.
    temporary = scratch / "tmp"
    temporary.mkdir()
    home = f"-Dderby.system.home={scratch} -Djava.io.tmpdir={temporary}"
    config = {
        **SETTINGS,
        "spark.driver.extraJavaOptions": home,
        "spark.local.dir": str(temporary),
        "spark.sql.warehouse.dir": f"{scratch}/warehouse",
        "spark.sql.shuffle.partitions": "2",
        "spark.driver.extraClassPath": class_path(),
    }
    made = tianzhou.spark.session(master="local[2]", config=config)
    made.sparkContext.setLogLevel("OFF")
    return made


def run(command: Sequence[str], place: Path, env: Mapping[str, str]) -> str:
    """Run a program and return its output. Its exit code must be 0."""
    patience = Patience(RUN_S)
    with subprocess.Popen(
        command,
        cwd=place,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        while True:
            try:
                printed, errors = process.communicate(timeout=CHECK_S)
                break
            except subprocess.TimeoutExpired:
                if patience.is_over():
                    process.kill()
                    raise
    assert process.returncode == 0, f"{command}: {printed[-2000:]}\n{without_frames(errors)}"
    return printed


def without_frames(errors: str) -> str:
    """Return Spark's output without Java's stack frames, which hide the first cause."""
    lines = (line for line in errors.splitlines() if not line.startswith("\tat "))
    return "\n".join(lines)[-20_000:]


class Program:
    """A program that runs until it is killed, together with all processes that it started."""

    def __init__(self, command: Sequence[str], place: Path, env: Mapping[str, str]) -> None:
        place.mkdir(parents=True, exist_ok=True)
        self.output = place / "output.txt"
        with self.output.open("ab") as output:
            self._process = subprocess.Popen(
                command,
                cwd=place,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def wait_for(self, word: str, within_s: float) -> None:
        def seen() -> bool:
            text = self.output.read_text("utf-8", "replace")
            assert self.is_running or word in text, f"it ended: {text[-6000:]}"
            return word in text

        wait_until(seen, within_s=within_s, what=f"{word!r} in {self.output}")

    def wait_for_sight(self, look: Callable[[], object], within_s: float) -> None:
        """Wait until `look` returns true, while the program runs."""

        def seen() -> object:
            assert self.is_running, f"it ended: {self.output.read_text('utf-8', 'replace')[-6000:]}"
            return look()

        wait_until(seen, within_s=within_s, what="what the program does is seen")

    def wait(self, within_s: float = RUN_S) -> int:
        wait_until(lambda: not self.is_running, within_s=within_s, what="the program ends")
        return self._process.wait()

    def kill(self) -> None:
        """Kill the whole session of processes at once, like a power failure."""
        if self.is_running:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
