import os

import pytest

from tianzhou.base.errors import UsageError
from tianzhou.store import layout
from tianzhou.store.config import StoreConfig
from tianzhou.store.errors import StoreDamaged, StoreLocked
from tianzhou.testing.sim.disk import SimDisk
from tianzhou.testing.sim.disk_faults import lost


@pytest.fixture
def disk() -> SimDisk:
    made = SimDisk()
    made.make_dirs("store")
    made.sync_dir("")
    return made


def test_directory_lock_has_one_owner_at_a_time(disk: SimDisk) -> None:
    lock = layout.take_lock(disk, "store")
    with pytest.raises(StoreLocked):
        layout.take_lock(disk, "store")
    lock.close()
    layout.take_lock(disk, "store").close()
    assert disk.list("store") == ["lock"], "the name that Java locks"


def test_lock_file_names_its_last_owner(disk: SimDisk) -> None:
    lock = layout.take_lock(disk, "store")
    assert layout.was_used_by_another(lock), "not signed yet"
    layout.sign_lock(lock)
    assert not layout.was_used_by_another(lock)
    lock.pwrite(0, b"lock")  # as Java does at its start
    assert layout.was_used_by_another(lock)


def test_lock_file_name_is_durable(disk: SimDisk) -> None:
    lock = layout.take_lock(disk, "store")
    disk.sync_dir("store")
    layout.sign_lock(lock)
    assert lost(disk)["store/lock"] == b"tianzhou"


def test_abort_marker_is_created_and_removed_durably(disk: SimDisk) -> None:
    layout.write_abort(disk, "store/abort")
    assert lost(disk)["store/abort"] == str(os.getpid()).encode()
    layout.write_abort(disk, "store/abort")  # after a crash it is there already
    layout.remove_abort(disk, "store/abort")
    assert "store/abort" not in lost(disk)


def test_abort_marker_missing_is_not_removed(disk: SimDisk) -> None:
    before = len(disk.calls)
    layout.remove_abort(disk, "store/abort")
    assert len(disk.calls) == before


# Paths

ELSEWHERE = StoreConfig(
    commit_log_path="log",
    consume_queue_path="queues",
    index_path="keys",
    tables_path="tables",
    checkpoint_path="marks/checkpoint",
    abort_path="marks/abort",
)


def record(disk: SimDisk, config: StoreConfig) -> None:
    paths = layout.paths_of("store", config)
    layout.make_directories(disk, paths)
    layout.record_paths(disk, paths, 1)


def test_paths_are_in_the_directory_unless_configured() -> None:
    usual = layout.paths_of("store", StoreConfig())
    assert (usual.commit_log, usual.tables) == ("store/commitlog", "store/config")
    moved = layout.paths_of("store", ELSEWHERE)
    assert (moved.root, moved.commit_log, moved.checkpoint) == ("store", "log", "marks/checkpoint")


def test_recorded_paths_survive_power_loss(disk: SimDisk) -> None:
    record(disk, ELSEWHERE)
    kept = SimDisk(lost(disk))
    assert layout.with_recorded_paths(kept, "store", StoreConfig()) == ELSEWHERE


def test_default_paths_are_not_recorded(disk: SimDisk) -> None:
    given = StoreConfig(commit_log_path="store/commitlog")
    record(disk, given)
    assert disk.list("store") == []


def test_paths_moved_back_into_the_directory_are_recorded(disk: SimDisk) -> None:
    record(disk, ELSEWHERE)
    record(disk, StoreConfig())
    assert layout.with_recorded_paths(disk, "store", StoreConfig()) == StoreConfig()


def test_recorded_paths_that_cannot_be_decoded_are_an_error(disk: SimDisk) -> None:
    disk.create("store/paths.json", 0).pwrite(0, b"{")
    with pytest.raises(StoreDamaged, match=r"store/paths\.json"):
        layout.with_recorded_paths(disk, "store", StoreConfig())


@pytest.mark.parametrize(
    "config",
    [
        StoreConfig(commit_log_path="store"),
        StoreConfig(commit_log_path="store/index"),
        StoreConfig(index_path="store/config/index", tables_path="store/config"),
    ],
)
def test_paths_that_contain_each_other_are_rejected(config: StoreConfig) -> None:
    with pytest.raises(UsageError, match="use separate directories"):
        layout.check_distinct(layout.paths_of("store", config))


def test_log_lock_of_a_separate_path_has_one_owner_at_a_time(disk: SimDisk) -> None:
    disk.make_dirs("log")
    lock = disk.lock_dir("log")
    with pytest.raises(StoreLocked):
        disk.lock_dir("log")
    lock.close()
    disk.lock_dir("log").close()
    assert disk.list("log") == [], "nothing that a Java broker would stumble over"
