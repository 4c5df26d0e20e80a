"""Testing the tests: each planted bug must be caught by the checks that guard the store.

A bug that is not caught fails the run. In that case strengthen the checks, not the list.
"""

import errno

import pytest
from bugs import BUGS
from hostile import attack
from planting import Bug, planted

from tianzhou.store.config import FlushMode
from tianzhou.store.errors import DiskFull
from tianzhou.testing.sim.disk import SimDisk
from tianzhou.testing.sim.disk_crashes import Explorer
from tianzhou.testing.sim.disk_faults import Fault, Run, lost
from tianzhou.testing.sim.disk_losses import Losses

PLANTED_BADLY = (NameError, TypeError, AttributeError, SyntaxError, ImportError)
SEEDS = 12
STEPS = 40
IMAGES = 120


def crash_images(first: int, *, light: bool = False) -> None:
    for seed in range(first, first + SEEDS):
        explorer = Explorer(seed, steps=STEPS, light=light)
        explorer.check_halves()
        explorer.check_stale_units()
        explorer.explore(IMAGES)
        explorer.crash_rebuild(cuts=40)
        explorer.check_foreign_record()
        explorer.check_lock()


def faults(*, error: int = errno.EIO, drops: bool = False) -> None:
    for mode in FlushMode:
        number = 0
        while True:
            number += 1
            run = Run(mode, Fault(number, error, onward=False), drops=drops)
            run.work()
            if not run.disk.failures:
                break  # the workload has fewer calls than that
            run.check_power_loss()
            run.check_restart()
            check_outcome(run, number, error)


def check_outcome(run: Run, number: int, error: int) -> None:
    """Failures of the log itself allow only one outcome."""
    call = run.disk.calls[number - 1]
    if "/commitlog/" not in call.path:
        return
    if call.kind in ("pwrite", "sync") and error == errno.EIO:
        assert run.fenced is not None, "a failure of the log was ignored"
    if call.kind in ("reserve", "create") and error == errno.ENOSPC:
        assert [type(one) for one in run.errors] == [DiskFull], (
            "a full disk must not fence the store"
        )


def losses(first: int) -> None:
    for seed in range(first, first + SEEDS):
        Losses(seed).check()


def shortages() -> None:
    """Each time a call opens a file, opening fails once, in a store with its own flush thread."""
    for mode in FlushMode:
        number = 0
        while True:
            number += 1
            run = Run(mode, Fault(number, errno.EMFILE, onward=False))
            run.work()
            if not run.disk.failures:
                break
            call = run.disk.calls[number - 1]
            if call.kind not in ("create", "sync_dir"):
                continue
            if run.fenced is not None:
                # Removing several files syncs their directory in between, which uses the reserve.
                assert "removing" in str(run.fenced), f"{call} fenced the store: {run.fenced}"
                continue
            again = run.open(SimDisk(lost(run.disk)))
            assert not again.recovered.rebuilt, f"{call} was not compensated by the checkpoint"
            run.check_power_loss()
            run.check_restart()


def no_memory() -> None:
    """An allocation fails when a file is created: the store rejects it and leaves no file."""
    for mode in FlushMode:
        undisturbed = Run(mode)
        undisturbed.work()
        for number, call in enumerate(undisturbed.disk.calls, 1):
            if call.kind not in ("create", "reserve"):
                continue
            run = Run(mode, Fault(number, MemoryError, onward=False))
            run.work()
            assert {type(error) for error in run.errors} <= {DiskFull}, f"{call}: {run.errors}"
            run.check_restart()


def try_suite(bug: Bug) -> None:
    match bug.suite:
        case "no memory":
            no_memory()
        case "losses":
            losses(bug.seed)
        case "shortages":
            shortages()
        case "images":
            crash_images(bug.seed)
        case "light images":
            crash_images(bug.seed, light=True)
        case "faults":
            faults()
            faults(error=errno.ENOSPC)
        case "hostile":
            attack()
        case _:
            faults(drops=True)


def outcome_of(bug: Bug) -> Exception | None:
    with planted(bug):
        try:
            try_suite(bug)
        except Exception as caught:
            return caught
    return None


@pytest.mark.slow
@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name.replace(" ", "-"))
def test_planted_store_bug_is_caught(bug: Bug) -> None:
    caught = outcome_of(bug)
    assert caught is not None, f"no check caught: {bug.name}"
    assert not isinstance(caught.__cause__ or caught, PLANTED_BADLY), caught


def test_fault_checks_pass_without_a_planted_bug() -> None:
    """tests/crash is the control for the crash images."""
    faults(drops=True)
    shortages()
    no_memory()


def test_attack_checks_pass_without_a_planted_bug() -> None:
    attack()


def test_planted_store_bugs_are_many_and_distinct() -> None:
    assert len(BUGS) >= 40
    assert len({bug.name for bug in BUGS}) == len(BUGS)
    assert len({bug.edits for bug in BUGS}) == len(BUGS)


def test_planted_store_bugs_are_removed_afterwards() -> None:
    for bug in BUGS:
        with planted(bug):
            pass
    Explorer(0).explore(20)
