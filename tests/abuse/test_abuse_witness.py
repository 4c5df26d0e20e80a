"""The witness itself: it notices a stall of the broker's event loop, but not a busy machine."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest
from live import NOTICED_S, Live, Witness, running
from stalls import Sample, stall_s

LOOPS_PER_CORE = 4
SHORT_S = 0.4 * NOTICED_S
"""CPU time that the witness tolerates; on busy cores it takes longer than `NOTICED_S`."""
LONG_S = 1.3 * NOTICED_S


@contextmanager
def busy_machine() -> Generator[None]:
    """Processes that compete for every core, four times over."""
    loops = [
        subprocess.Popen([sys.executable, "-c", "while True: pass"])
        for _ in range(LOOPS_PER_CORE * (os.cpu_count() or 1))
    ]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
        for loop in loops:
            loop.wait()


def stall(live: Live, witness: Witness) -> float:
    """Stall the event loop once; returns about how long the witness waited in wall-clock time."""
    start_s = time.monotonic()
    os.kill(live.pid, signal.SIGUSR1)
    witness.check()
    return time.monotonic() - start_s


@pytest.mark.parametrize(
    ("counted", "stall"),
    [
        (Sample(2.0), 2.0),
        (Sample(2.0, loop_ran_s=1.5, loop_waited_s=0.5), 1.5),
        (Sample(2.0, loop_ran_s=1.5, loop_waited_s=0.1, others_waited_s=9.0), 1.5),
        (Sample(2.0, loop_ran_s=0.1, loop_waited_s=0.4, others_waited_s=0.5), 1.1),
        (Sample(2.0, loop_ran_s=0.1, others_waited_s=-3.0), 2.0),
        (Sample(2.0, loop_ran_s=0.5, client_waited_s=1.2), 0.8),
    ],
    ids=["blocked", "preempted", "computing", "locked out", "thread ended", "client preempted"],
)
def test_witness_stall_excludes_only_waits_for_a_core(counted: Sample, stall: float) -> None:
    start = Sample(10.0, 20.0, 30.0, 40.0, 50.0)
    end = Sample(*(before + more for before, more in zip(start, counted, strict=True)))
    assert stall_s(start, end) == pytest.approx(stall)


@pytest.mark.parametrize("busy", [False, True], ids=["quiet", "busy"])
def test_witness_notices_a_loop_that_computes_too_long(tmp_path: Path, busy: bool) -> None:
    with running(tmp_path, stall_s=LONG_S) as live:
        witness = Witness(live)
        witness.check()
        if busy:
            with busy_machine(), pytest.raises(AssertionError, match="a response took"):
                stall(live, witness)
        else:
            with pytest.raises(AssertionError, match="a response took"):
                stall(live, witness)
        witness.check()
        witness.stop()


def test_witness_notices_a_blocked_loop_on_a_busy_machine(tmp_path: Path) -> None:
    """A thread that is stopped consumes no CPU time, and does not wait for a core either."""
    with running(tmp_path) as live:
        witness = Witness(live)
        witness.check()
        with busy_machine():
            os.kill(live.pid, signal.SIGSTOP)
            time.sleep(2 * NOTICED_S)
            os.kill(live.pid, signal.SIGCONT)
            with pytest.raises(AssertionError, match="a response took"):
                witness.check()
        witness.stop()


def test_witness_ignores_a_short_stall_on_a_busy_machine(tmp_path: Path) -> None:
    with running(tmp_path, stall_s=SHORT_S) as live, busy_machine():
        witness = Witness(live)
        witness.check()
        assert stall(live, witness) > NOTICED_S, "the machine was not busy enough to prove anything"
        witness.check()
        witness.stop()
