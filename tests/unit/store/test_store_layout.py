import os

import pytest

from tianzhou.store import layout
from tianzhou.store.errors import StoreLocked
from tianzhou.testing.sim.disk import SimDisk
from tianzhou.testing.sim.disk_faults import lost


@pytest.fixture
def disk() -> SimDisk:
    made = SimDisk()
    made.make_dirs("store")
    made.sync_dir("")
    return made


def test_a_directory_has_one_owner_at_a_time(disk: SimDisk) -> None:
    lock = layout.take_lock(disk, "store")
    with pytest.raises(StoreLocked):
        layout.take_lock(disk, "store")
    lock.close()
    layout.take_lock(disk, "store").close()
    assert disk.list("store") == ["lock"], "the name that Java locks"


def test_the_name_in_the_lock_tells_who_was_here_last(disk: SimDisk) -> None:
    lock = layout.take_lock(disk, "store")
    assert layout.was_used_by_another(lock), "nobody signed yet"
    layout.sign_lock(lock)
    assert not layout.was_used_by_another(lock)
    lock.pwrite(0, b"lock")  # as Java does at its start
    assert layout.was_used_by_another(lock)


def test_the_name_is_on_the_medium(disk: SimDisk) -> None:
    lock = layout.take_lock(disk, "store")
    disk.sync_dir("store")
    layout.sign_lock(lock)
    assert lost(disk)["store/lock"] == b"tianzhou"


def test_the_abort_marker_comes_and_goes_for_good(disk: SimDisk) -> None:
    layout.write_abort(disk, "store")
    assert lost(disk)["store/abort"] == str(os.getpid()).encode()
    layout.write_abort(disk, "store")  # after a crash it is there already
    layout.remove_abort(disk, "store")
    assert "store/abort" not in lost(disk)


def test_a_marker_that_is_not_there_is_not_removed(disk: SimDisk) -> None:
    before = len(disk.calls)
    layout.remove_abort(disk, "store")
    assert len(disk.calls) == before
