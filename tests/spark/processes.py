"""Programs with a Spark of their own, as a user would start them."""

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from clients.waiting import wait_until

PYTHON: Final = sys.executable
BIN: Final = Path(sys.executable).parent
RUN_S: Final = 110.0


def environment(**more: str) -> dict[str, str]:
    foreign = ("SPARK_", "PYTEST_")
    kept = {key: value for key, value in os.environ.items() if not key.startswith(foreign)}
    return kept | {"PYSPARK_PYTHON": PYTHON, "SPARK_LOCAL_IP": "127.0.0.1"} | more


def run(command: Sequence[str], place: Path, env: Mapping[str, str]) -> str:
    """What a program printed; it must end well."""
    done = subprocess.run(
        command, cwd=place, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True,
        timeout=RUN_S,
    )  # fmt: skip
    assert done.returncode == 0, f"{command}: {done.stdout[-2000:]}\n{done.stderr[-6000:]}"
    return done.stdout


class Program:
    """A program that goes on until it is killed, with all that it started."""

    def __init__(self, command: Sequence[str], place: Path, env: Mapping[str, str]) -> None:
        place.mkdir(parents=True, exist_ok=True)
        self.output = place / "output.txt"
        with self.output.open("ab") as output:
            self._process = subprocess.Popen(
                command, cwd=place, env=env, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                start_new_session=True,
            )  # fmt: skip

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

    def wait(self, within_s: float = RUN_S) -> int:
        return self._process.wait(within_s)

    def kill(self) -> None:
        """The whole session of processes, at once, as a machine that loses its power."""
        if self.is_running:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
