"""Elapsed time, without the time in which no core was free for the process.

For tests that bound how long something takes. A bound on the wall clock fails on a busy machine,
and one that is long enough for that proves little on an idle one. The kernel counts how long each
thread was able to run and did not get a core; a stopwatch subtracts that. While a core is free it
shows the wall clock, and also where the system does not count (not Linux).

On a busy machine it may show too little, because waits of several threads add up: it never blames
the code under test for the load, and is exact where there is none.
"""

import os
import time
from pathlib import Path


class Stopwatch:
    """Starts when created. Subtracts the waits of this process and of `pids`, if they are alive."""

    def __init__(self, *pids: int) -> None:
        self._pids = (os.getpid(), *pids)
        self._waited_s = self._waits()
        self._began_s = time.monotonic()

    def seconds(self) -> float:
        passed_s = time.monotonic() - self._began_s
        # The counts of a thread disappear when it ends, so the sum can decrease.
        return max(0.0, passed_s - max(0.0, self._waits() - self._waited_s))

    def _waits(self) -> float:
        return sum(
            scheduled_s(thread)[1]
            for pid in self._pids
            for thread in Path(f"/proc/{pid}/task").glob("*/schedstat")
        )


def scheduled_s(schedstat: Path) -> tuple[float, float]:
    """How long a thread was on a core, and how long it waited for one."""
    try:
        ran_ns, waited_ns, _slices = schedstat.read_text().split()
    except (FileNotFoundError, ProcessLookupError):  # the thread ended, or this is not Linux
        return 0.0, 0.0
    return int(ran_ns) / 1e9, int(waited_ns) / 1e9
