from dataclasses import replace

import pytest
from small_store import chunk

from tianzhou.store.config import StoreConfig
from tianzhou.store.detect import detect
from tianzhou.store.errors import StoreDamaged
from tianzhou.store.store import MessageStore
from tianzhou.testing.sim.clock import ManualClock
from tianzhou.testing.sim.disk import SimDisk

CONFIG = StoreConfig(
    commit_log_file_bytes=8192,
    consume_queue_file_bytes=400,
    commit_log_preallocate_bytes=4096,
    index_slots=10,
    index_entries=40,
)


def written_with(config: StoreConfig, *bodies: bytes) -> SimDisk:
    disk = SimDisk()
    store = MessageStore(disk, "store", config, ManualClock())
    if bodies:
        store.append(chunk(*bodies, keys="k"))
        store.dispatch_all()
    store.close()
    return disk


def test_detect_reads_all_sizes_from_the_files() -> None:
    found = detect(written_with(CONFIG, b"a"), "store")
    assert found == replace(
        StoreConfig(),
        commit_log_file_bytes=8192,
        consume_queue_file_bytes=400,
        index_slots=10,
        index_entries=40,
    )


def test_detect_accepts_a_short_newest_file() -> None:
    disk = written_with(CONFIG, b"x" * 5000, b"y" * 5000)
    disk.open("store/commitlog/00000000000000008192").truncate(17)
    assert detect(disk, "store").commit_log_file_bytes == 8192


def test_detect_uses_defaults_for_missing_files() -> None:
    disk = written_with(replace(CONFIG, index_enabled=False), b"a")
    disk.make_dirs("store/consumequeue/aaa/0")  # made, and nothing written yet
    found = detect(disk, "store")
    assert found.consume_queue_file_bytes == 400
    assert found.index_slots == StoreConfig().index_slots


@pytest.mark.parametrize("root", ["store", "elsewhere"])
def test_detect_rejects_a_directory_without_a_log(root: str) -> None:
    with pytest.raises(StoreDamaged, match=f"^{root}: has no commit log files"):
        detect(written_with(CONFIG), root)


def test_detect_rejects_an_index_of_unknown_proportions() -> None:
    disk = written_with(replace(CONFIG, index_slots=8), b"a")
    with pytest.raises(StoreDamaged, match="store/index: files of 872 bytes are unknown"):
        detect(disk, "store")


def test_detect_changes_nothing() -> None:
    disk = written_with(CONFIG, b"a")
    before = len(disk.calls)
    detect(disk, "store")
    assert len(disk.calls) == before
