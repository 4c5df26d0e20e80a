"""How long a broker's event loop kept a client waiting, however busy the machine is.

The wall clock blames the broker for a busy machine, and a bound that grows with the load hides
stalls, because the attack of a test is load too. The kernel makes the difference: for every thread
it counts the time on a core, and the time in which the thread was able to run and did not get a
core (`/proc/PID/task/TID/schedstat`). Only the second is caused by the machine. A stall is

    the wall clock
    - the time that the thread of the event loop waited for a core
    - the time that the client waited for a core
    - the time that other threads of the broker waited for a core, as far as the loop slept then

The last line accounts for Python's global lock: a thread that has the lock but no core stops the
loop, which then sleeps. It never reduces the time that the loop computed, so a loop that computes
for other clients counts in full, and so does one that blocks in a system call or on a disk. While a
core is free no thread waits for one, and the stall equals the wall-clock time; so it does on
systems without these counters (not Linux).
"""

import time
from pathlib import Path
from typing import NamedTuple

from tianzhou.testing.kit.stopwatch import scheduled_s


class Sample(NamedTuple):
    """The wall clock, and the counters of the kernel at that time. All in seconds."""

    wall_s: float
    loop_ran_s: float = 0.0
    loop_waited_s: float = 0.0
    others_waited_s: float = 0.0
    client_waited_s: float = 0.0


def take_sample(broker_pid: int) -> Sample:
    """Read the clock and the counters. Must be called in the client's thread."""
    ran_s = waited_s = others_waited_s = 0.0
    for thread in Path(f"/proc/{broker_pid}/task").glob("*/schedstat"):
        # `tianzhou up` runs its event loop in the main thread, which has the id of the process.
        if thread.parent.name == str(broker_pid):
            ran_s, waited_s = scheduled_s(thread)
        else:
            others_waited_s += scheduled_s(thread)[1]
    client = scheduled_s(Path("/proc/thread-self/schedstat"))
    return Sample(time.monotonic(), ran_s, waited_s, others_waited_s, client[1])


def stall_s(start: Sample, end: Sample) -> float:
    passed = Sample(*(after - before for before, after in zip(start, end, strict=True)))
    slept_s = passed.wall_s - passed.loop_ran_s - passed.loop_waited_s
    # The counters of a thread disappear when it ends, so the sum can decrease.
    locked_s = max(0.0, min(slept_s, passed.others_waited_s))
    return passed.wall_s - passed.loop_waited_s - passed.client_waited_s - locked_s
