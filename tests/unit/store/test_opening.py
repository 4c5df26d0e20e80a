"""Owning a directory: the locks, and that none is left behind or created in vain."""

from dataclasses import replace

import pytest
from small_store import chunk

from tianzhou.store.config import StoreConfig
from tianzhou.store.errors import StoreLocked, StoreRefused
from tianzhou.store.files import File
from tianzhou.store.layout import paths_of
from tianzhou.store.opening import take
from tianzhou.store.preflight import Shortfall
from tianzhou.store.store import MessageStore
from tianzhou.testing.sim.clock import ManualClock
from tianzhou.testing.sim.disk import SimDisk

CONFIG = StoreConfig(commit_log_file_bytes=4096, commit_log_preallocate_bytes=4096)
APART = replace(CONFIG, commit_log_path="log")


def taken(
    disk: SimDisk, config: StoreConfig, locks: list[File], *, lenient: bool = False
) -> Shortfall | None:
    paths = paths_of("store", config)
    return take(disk, paths, config, locks=locks, now_ms=1, lenient=lenient)


def test_open_new_directory_creates_and_locks_it() -> None:
    disk, locks = SimDisk(), list[File]()
    assert taken(disk, CONFIG, locks) is None
    assert [lock.path for lock in locks] == ["store/lock"]


def test_open_log_in_a_separate_path_locks_it() -> None:
    disk, locks = SimDisk(), list[File]()
    taken(disk, APART, locks)
    assert [lock.path for lock in locks] == ["store/lock", "log"]
    with pytest.raises(StoreLocked):
        disk.lock_dir("log")


def _short_log() -> tuple[SimDisk, int]:
    disk = SimDisk()
    store = MessageStore(disk, "store", CONFIG, ManualClock())
    for _ in range(30):
        store.append(chunk(b"x" * 300))
    store.close()
    disk.remove(f"store/commitlog/{disk.list('store/commitlog')[-1]}")
    with pytest.raises(StoreRefused) as caught:
        MessageStore(disk, "store", CONFIG, ManualClock())
    return disk, caught.value.loss_at


def test_open_after_a_rejected_open_succeeds() -> None:
    disk, end = _short_log()
    locks: list[File] = []
    found = taken(disk, replace(CONFIG, accept_loss_at=end), locks)
    assert found is not None
    assert found.end == end


def test_open_lenient_accepts_a_short_log() -> None:
    disk, end = _short_log()
    found = taken(disk, CONFIG, [], lenient=True)
    assert found is not None
    assert found.end == end


def test_open_a_log_in_use_by_another_broker_is_rejected() -> None:
    disk = SimDisk()
    config = replace(CONFIG, commit_log_path="shared/log")
    first = MessageStore(disk, "one", config, ManualClock())
    with pytest.raises(StoreLocked):
        MessageStore(disk, "two", config, ManualClock())
    first.append(chunk(b"one"))
    first.close()
    with pytest.raises(StoreRefused, match="two is not their store directory"):
        MessageStore(disk, "two", config, ManualClock())


@pytest.mark.parametrize("setting", ["consume_queue_path", "index_path", "tables_path"])
def test_open_a_path_in_use_by_another_broker_is_rejected(setting: str) -> None:
    disk = SimDisk()
    config = replace(CONFIG, **{setting: "shared/part"})  # type: ignore[arg-type]
    first = MessageStore(disk, "one", config, ManualClock())
    for _ in range(2):  # while it runs, and afterwards
        with pytest.raises(StoreRefused, match="of another store, that of one"):
            MessageStore(disk, "two", config, ManualClock())
        first.close()
    assert not disk.exists("two")
    MessageStore(disk, "one", config, ManualClock()).close()


def test_open_a_log_within_the_directory_of_another_broker_is_rejected() -> None:
    disk = SimDisk()
    first = MessageStore(disk, "one", CONFIG, ManualClock())
    inside = replace(CONFIG, commit_log_path="one/commitlog")
    with pytest.raises(StoreLocked):
        MessageStore(disk, "two", inside, ManualClock())
    first.close()
