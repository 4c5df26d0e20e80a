"""A stopwatch measures the code under test without the delays of a busy machine."""

import time
from pathlib import Path

import pytest

from tianzhou.testing.kit.stopwatch import Stopwatch, scheduled_s


class Machine:
    """A clock and thread waits that the test sets."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 50.0
        self.waited_s = 7.0
        monkeypatch.setattr("tianzhou.testing.kit.stopwatch.time.monotonic", lambda: self.now_s)

        def waits(_: Stopwatch) -> float:
            return self.waited_s

        monkeypatch.setattr(Stopwatch, "_waits", waits)


def test_stopwatch_on_an_idle_machine_shows_the_wall_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(monkeypatch)
    watch = Stopwatch()
    machine.now_s += 2.5
    assert watch.seconds() == 2.5


def test_stopwatch_subtracts_waits_for_a_core(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(monkeypatch)
    watch = Stopwatch()
    machine.now_s += 2.5
    machine.waited_s += 2.0
    assert watch.seconds() == 0.5


@pytest.mark.parametrize(("waited", "shown"), [(-3.0, 2.5), (9.0, 0.0)])
def test_stopwatch_of_several_threads_stays_within_the_wall_clock(
    monkeypatch: pytest.MonkeyPatch, waited: float, shown: float
) -> None:
    machine = Machine(monkeypatch)
    watch = Stopwatch()
    machine.now_s += 2.5
    machine.waited_s += waited
    assert watch.seconds() == shown


def test_stopwatch_counts_sleep() -> None:
    """A sleeping thread does not wait for a core, except when it wakes up."""
    before_s = own_waits_s()
    watch = Stopwatch()
    time.sleep(0.1)
    shown_s = watch.seconds()
    assert shown_s >= 0.1 - (own_waits_s() - before_s)


def own_waits_s() -> float:
    return sum(scheduled_s(path)[1] for path in Path("/proc/self/task").glob("*/schedstat"))


def test_scheduled_s_of_a_thread_that_ended_is_zero() -> None:
    assert scheduled_s(Path("/proc/1/task/999999999/schedstat")) == (0.0, 0.0)
