"""Timeouts for tests, in seconds of an idle machine without progress.

A limit in plain seconds fails on a slow machine, where everything takes ten times as long, and a
limit that is long enough for that makes every failure slow. So a second counts for less the more
processes compete for a core, and the time restarts whenever there was progress.
"""

import os
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

STRETCH_MAX: Final = 30
"""The upper limit for something that never stops changing, as a multiple of the time."""
_CHECK_S: Final = 0.1
_LOADAVG: Final = Path("/proc/loadavg")


def crowding() -> float:
    """How many processes currently compete for each core; 1 if all of them can run."""
    cores = os.cpu_count() or 1
    try:
        running = int(_LOADAVG.read_text().split()[3].partition("/")[0])
    except OSError:  # not Linux: use the average of the last minute
        return max(1.0, os.getloadavg()[0] / cores)
    return max(1.0, running / cores)


def recent_crowding() -> float:
    """The same for the last minute: by how much a duration that has just been measured may exceed
    that of an idle machine."""
    return max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


class Patience:
    """Call `is_over` once per check. Owner: the waiting test.

    `progress` returns a value that changes while there is progress, such as a number of messages.
    It is called only when the time is up.
    """

    def __init__(
        self,
        within_s: float,
        *,
        progress: Callable[[], object] = lambda: None,
        now_s: Callable[[], float] = time.monotonic,
        crowding: Callable[[], float] = crowding,
    ) -> None:
        self._within_s = self._left_s = within_s
        self._now_s = now_s
        self._crowding = crowding
        self._last_s = now_s()
        self._end_s = self._last_s + within_s * STRETCH_MAX
        self._progress = progress
        self._seen = repr(progress())

    def is_over(self) -> bool:
        """Whether the time is up without progress."""
        now_s = self._now_s()
        self._left_s -= (now_s - self._last_s) / self._crowding()
        self._last_s = now_s
        if now_s >= self._end_s:
            return True
        if self._left_s > 0:
            return False
        before, self._seen = self._seen, repr(self._progress())
        if self._seen == before:
            return True
        self._left_s = self._within_s
        return False


def run_patiently(command: Sequence[str], patience: Patience) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, with its output and errors as one text and nothing to read.
    TimeoutExpired: the time is up, and the command was killed."""
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    ) as process:
        while True:
            try:
                said, _ = process.communicate(timeout=_CHECK_S)
            except subprocess.TimeoutExpired:
                if patience.is_over():
                    process.kill()
                    raise
            else:
                return subprocess.CompletedProcess(list(command), process.returncode, said)
