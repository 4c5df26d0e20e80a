"""How long tests wait on a slow machine, and for something that makes progress."""

import subprocess
import sys

import pytest

from tianzhou.testing.kit.patience import STRETCH_MAX, Patience, crowding, run_patiently


class Machine:
    """A clock, a load and progress that the test sets."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.crowding = 1.0
        self.done: list[int] = []

    def patience(self, within_s: float) -> Patience:
        return Patience(
            within_s,
            progress=lambda: self.done,
            now_s=lambda: self.now_s,
            crowding=lambda: self.crowding,
        )


def test_patience_on_an_idle_machine_ends_after_its_time() -> None:
    machine = Machine()
    patience = machine.patience(5)
    machine.now_s += 4.9
    assert not patience.is_over()
    machine.now_s += 0.2
    assert patience.is_over()


def test_patience_on_a_crowded_machine_lasts_longer_in_proportion() -> None:
    machine = Machine()
    machine.crowding = 10.0
    patience = machine.patience(5)
    machine.now_s += 49
    assert not patience.is_over()
    machine.now_s += 2
    assert patience.is_over()


def test_patience_restarts_after_progress() -> None:
    machine = Machine()
    patience = machine.patience(5)
    for count in (1, 2, 3):
        machine.now_s += 5.1
        machine.done.append(count)
        assert not patience.is_over()
    machine.now_s += 5.1
    assert patience.is_over()


def test_patience_with_endless_progress_ends_at_the_bound() -> None:
    machine = Machine()
    patience, seconds = machine.patience(5), 0
    while not patience.is_over():
        machine.now_s += 1
        machine.done.append(seconds)
        seconds += 1
    assert seconds == 5 * STRETCH_MAX


def test_crowding_of_this_machine_is_at_least_one() -> None:
    assert crowding() >= 1


def test_command_on_a_crowded_machine_may_take_longer() -> None:
    code = "import sys, time; time.sleep(0.3); sys.stderr.write('late'); sys.exit(3)"
    patience = Patience(0.05, crowding=lambda: 1_000.0)
    done = run_patiently([sys.executable, "-c", code], patience)
    assert (done.returncode, done.stdout) == (3, "late")


def test_command_on_an_idle_machine_is_killed_when_its_time_is_up() -> None:
    patience = Patience(0.05, crowding=lambda: 1.0)
    with pytest.raises(subprocess.TimeoutExpired):
        run_patiently([sys.executable, "-c", "import time; time.sleep(600)"], patience)
