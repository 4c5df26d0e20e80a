"""Each call to the disk fails once, for every call of a short workload, as SQLite tests it."""

import errno

import pytest

from tianzhou.store.config import FlushMode
from tianzhou.store.errors import DiskFull
from tianzhou.testing.sim.disk import Call
from tianzhou.testing.sim.disk_faults import Fault, Run


def calls_of(mode: FlushMode) -> list[Call]:
    run = Run(mode)
    run.work()
    assert not run.errors
    assert run.acked == run.flushed == len(run.sent)
    run.check_restart()
    return run.disk.calls


CALLS = {mode: calls_of(mode) for mode in FlushMode}
MODES = [pytest.param(mode, id=mode.name.lower()) for mode in FlushMode]
ONWARD = [pytest.param(False, id="once"), pytest.param(True, id="from-then-on")]


def run_with_failure(
    mode: FlushMode, number: int, error: int, *, onward: bool, drops: bool = False
) -> Run:
    """A run in which this call failed; the error was noticed unless its result was not needed."""
    run = Run(mode, Fault(number, error, onward), drops=drops)
    try:
        run.work()
    except Exception as unexpected:
        call = CALLS[mode][number - 1]
        raise AssertionError(f"call {number}, {call}: {unexpected!r}") from unexpected
    assert run.disk.failures or number > len(run.disk.calls)
    return run


def test_io_error_workload_covers_every_disk_call() -> None:
    for calls in CALLS.values():
        assert len(calls) >= 200
        kinds = {call.kind for call in calls}
        assert kinds >= {"create", "pwrite", "reserve", "sync", "sync_dir", "rename", "remove"}


@pytest.mark.slow
@pytest.mark.parametrize("onward", ONWARD)
@pytest.mark.parametrize("mode", MODES)
def test_io_error_loses_nothing_acknowledged(mode: FlushMode, onward: bool) -> None:
    for number in range(1, len(CALLS[mode]) + 1):
        run = run_with_failure(mode, number, errno.EIO, onward=onward)
        run.check_power_loss()
        run.check_restart()


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
def test_pages_of_a_failed_sync_are_not_trusted_after_a_restart(mode: FlushMode) -> None:
    """The kernel may mark the pages clean and never write them again."""
    for number, call in enumerate(CALLS[mode], 1):
        if call.kind == "sync":
            run = run_with_failure(mode, number, errno.EIO, onward=False, drops=True)
            run.check_power_loss()
            run.check_restart()


@pytest.mark.slow
@pytest.mark.parametrize("onward", ONWARD)
@pytest.mark.parametrize("mode", MODES)
def test_disk_full_error_loses_nothing_acknowledged(mode: FlushMode, onward: bool) -> None:
    for number in range(1, len(CALLS[mode]) + 1):
        run = run_with_failure(mode, number, errno.ENOSPC, onward=onward)
        run.check_power_loss()
        run.check_restart()


@pytest.mark.parametrize("mode", MODES)
def test_disk_full_for_the_log_rejects_writes_until_there_is_room(mode: FlushMode) -> None:
    """Blocks and files are reserved before anything is written, so a full disk is harmless."""
    for number, call in enumerate(CALLS[mode], 1):
        if call.kind not in ("reserve", "create") or "/commitlog/" not in call.path:
            continue
        run = run_with_failure(mode, number, errno.ENOSPC, onward=False)
        assert run.fenced is None, f"call {number}, {call}: {run.fenced}"
        assert [type(error) for error in run.errors] == [DiskFull]
        assert run.acked == len(run.sent), "the store did not recover"
        run.check_restart()


@pytest.mark.parametrize("mode", MODES)
def test_failed_write_or_sync_of_the_log_fences_the_store(mode: FlushMode) -> None:
    for number, call in enumerate(CALLS[mode], 1):
        if call.kind in ("pwrite", "sync") and "/commitlog/" in call.path:
            run = run_with_failure(mode, number, errno.EIO, onward=False)
            assert run.fenced is not None, f"call {number}, {call} was ignored"
