"""An allocation fails at every step of a short workload: the store rejects the call, never fences,
leaves no file behind, and recovers by itself."""

from collections.abc import Iterator

import pytest

from tianzhou.store import failpoint
from tianzhou.store.config import FlushMode
from tianzhou.store.errors import DiskFull
from tianzhou.testing.sim.disk_faults import Fault, Run

MODES = [pytest.param(mode, id=mode.name.lower()) for mode in FlushMode]
ONWARD = [pytest.param(False, id="once"), pytest.param(True, id="from-then-on")]


def undisturbed(mode: FlushMode) -> Run:
    run = Run(mode)
    run.work()
    assert not run.errors
    return run


@pytest.fixture(autouse=True)
def disarmed() -> Iterator[None]:
    yield
    failpoint.disarm()


def check(run: Run, what: str) -> None:
    for error in run.errors:
        # The outcome of a write is unknown if memory runs out between it and its bookkeeping,
        # and so is what is left if that happens while files are removed.
        assert isinstance(error, DiskFull) or "between" in str(error), f"{what}: {error!r}"
    run.check_power_loss()
    run.check_restart()


@pytest.mark.slow
@pytest.mark.parametrize("onward", ONWARD)
@pytest.mark.parametrize("mode", MODES)
def test_store_without_memory_for_a_disk_call_rejects_it_and_recovers(
    mode: FlushMode, onward: bool
) -> None:
    for number, call in enumerate(undisturbed(mode).disk.calls, 1):
        run = Run(mode, Fault(number, MemoryError, onward))
        run.work()
        check(run, f"call {number}, {call}")


@pytest.mark.slow
@pytest.mark.parametrize("point", failpoint.POINTS)
@pytest.mark.parametrize("mode", MODES)
def test_store_without_memory_at_a_fail_point_rejects_the_call_and_recovers(
    mode: FlushMode, point: str
) -> None:
    """Fail once at each passage of the point."""
    for fail_at in range(1, 1000):
        passed = 0

        def pass_by(fail_at: int = fail_at) -> None:
            nonlocal passed
            passed += 1
            if passed == fail_at:
                raise MemoryError(point)

        run = Run(mode)
        failpoint.arm(point, pass_by)
        run.work()
        failpoint.disarm()
        if passed < fail_at:
            break
        check(run, f"{point}, passage {fail_at}")
