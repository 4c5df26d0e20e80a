"""Parts of a store with paths of their own: a missing disk, or that of another store, is noticed
before anything is changed."""

from collections.abc import Mapping
from dataclasses import replace

import pytest
from small_store import KEY, chunk

from tianzhou.store.config import StoreConfig
from tianzhou.store.errors import StoreDamaged, StoreRefused
from tianzhou.store.store import MessageStore
from tianzhou.testing.sim.clock import ManualClock
from tianzhou.testing.sim.disk import SimDisk
from tianzhou.testing.sim.disk_images import Image, build, plans
from tianzhou.wire.tables import ConsumerOffsetTable

CONFIG = StoreConfig(
    commit_log_file_bytes=4096,
    consume_queue_file_bytes=200,
    commit_log_preallocate_bytes=4096,
    index_slots=8,
    index_entries=40,
)
COUNT = 60
APART: dict[str, str] = {
    "commit_log_path": "disk1/log",
    "consume_queue_path": "disk2/queues",
    "index_path": "disk3/index",
    "tables_path": "disk4/tables",
}


def bytes_of(disk: SimDisk) -> Image:
    return build(point := disk.crash_point(), next(iter(plans(point, ""))))


class StoredApart:
    """A store with every part on another disk; it was closed, or killed."""

    def __init__(self, *, root: str = "store", size: int = 170, clean: bool = True) -> None:
        self.disk, self.clock, self.root = SimDisk(), ManualClock(), root
        store = self.open()
        for number in range(COUNT):
            store.append(chunk(b"%03d" % number + bytes(size), keys=f"k{number}"))
        store.flush()
        store.dispatch_all()
        store.tables.consumer_offsets.save(
            ConsumerOffsetTable(offset_table={f"{KEY.topic}@g": {0: 5}})
        )
        if clean:
            store.close()
        else:
            store.checkpoint(whole=True)
            self.disk.kill()

    def open(
        self,
        settings: Mapping[str, str] = {},
        *,
        rebuild: bool = False,
    ) -> MessageStore:
        config = replace(CONFIG, **{**APART, **settings})  # type: ignore[arg-type]
        return MessageStore(self.disk, self.root, config, self.clock, rebuild=rebuild)

    def empty(self, directory: str) -> None:
        """What a mount point shows when its disk is not mounted."""
        for name in self.disk.list(directory):
            path = f"{directory}/{name}"
            if self.disk.list(path):
                self.empty(path)
                self.disk.remove_dir(path)
            else:
                self.disk.remove(path)

    def refused(self, settings: Mapping[str, str] = {}) -> str:
        before = bytes_of(self.disk)
        with pytest.raises(StoreRefused, match="Nothing was changed") as caught:
            self.open(settings)
        assert bytes_of(self.disk) == before
        return str(caught.value)


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("commit_log_path", "there is no commit log in disk1/log"),
        ("consume_queue_path", "there are no consume queues in disk2/queues"),
        ("index_path", "there are no index files in disk3/index"),
        ("tables_path", "there are no tables of topics and offsets in disk4/tables"),
    ],
)
def test_open_without_the_disk_of_a_part_is_rejected(
    setting: str, said: str, *, clean: bool
) -> None:
    stored = StoredApart(clean=clean)
    stored.empty(APART[setting])
    refused = stored.refused()
    assert said in refused
    assert f"It was at {APART[setting]} when the store was last open" in refused
    assert setting in refused


@pytest.mark.parametrize("setting", APART)
def test_open_without_the_setting_of_a_path_is_rejected(setting: str) -> None:
    stored = StoredApart()
    assert f"It was at {APART[setting]}" in stored.refused({setting: ""})


@pytest.mark.parametrize("setting", ["consume_queue_path", "index_path"])
def test_rebuild_derives_a_part_that_is_lost(setting: str) -> None:
    stored = StoredApart()
    stored.empty(APART[setting])
    stored.open(rebuild=True).close()
    store = stored.open()
    assert store.max_offset(KEY) == COUNT
    assert stored.disk.list(APART[setting])


def test_open_with_everything_apart_is_recovered_after_a_kill() -> None:
    stored = StoredApart(clean=False)
    store = stored.open()
    assert store.max_offset(KEY) == COUNT
    assert store.incidents.open == []
    assert not stored.disk.list("store/commitlog")


def test_open_with_the_log_of_another_store_is_rejected() -> None:
    stored, other = StoredApart(), StoredApart(size=331)
    for name in other.disk.list("disk1/log"):
        data = other.disk.open(f"disk1/log/{name}")
        stored.disk.make_dirs("swapped")
        copy = stored.disk.create(f"swapped/{name}", data.size())
        copy.pwrite(0, data.pread(0, data.size()))
        copy.close()
    assert "is not the one that store/checkpoint describes" in stored.refused(
        {"commit_log_path": "swapped"}
    )


def test_open_with_swapped_paths_is_rejected_unchanged() -> None:
    stored = StoredApart()
    before = bytes_of(stored.disk)
    with pytest.raises(StoreDamaged, match="is not a commit log file"):
        stored.open({"commit_log_path": "disk2/queues", "consume_queue_path": "disk1/log"})
    assert bytes_of(stored.disk) == before


def test_open_without_the_disk_of_the_store_directory_is_rejected() -> None:
    stored = StoredApart()
    stored.empty("store")
    refused = stored.refused()
    assert "commit log files, but store is not their store directory" in refused
    assert '{"commitLogPath": "disk1/log"}' in refused


def test_open_ignores_the_directory_that_a_new_file_system_has() -> None:
    stored = StoredApart()
    for path in APART.values():
        stored.disk.make_dirs(f"{path}/lost+found")
    assert stored.open().max_offset(KEY) == COUNT


def test_open_of_the_usual_queues_that_are_lost_derives_them_again() -> None:
    disk, clock = SimDisk(), ManualClock()
    store = MessageStore(disk, "store", CONFIG, clock)
    for _ in range(COUNT):
        store.append(chunk(b"x"))
    store.close()
    for topic in disk.list("store/consumequeue"):
        for queue in disk.list(f"store/consumequeue/{topic}"):
            for name in disk.list(f"store/consumequeue/{topic}/{queue}"):
                disk.remove(f"store/consumequeue/{topic}/{queue}/{name}")
    assert MessageStore(disk, "store", CONFIG, clock).max_offset(KEY) == COUNT


@pytest.mark.parametrize("setting", ["consume_queue_path", "index_path", "tables_path"])
def test_open_with_a_part_of_another_store_is_rejected(setting: str) -> None:
    stored = StoredApart()
    config = replace(CONFIG, **{setting: "theirs"})  # type: ignore[arg-type]
    MessageStore(stored.disk, "other", config, stored.clock).close()
    refused = stored.refused({setting: "theirs"})
    assert "of another store, that of other" in refused
    assert setting in refused


def test_open_after_a_crash_between_marker_and_record_succeeds() -> None:
    stored = StoredApart()
    stored.disk.remove("store/paths.json")
    store = stored.open()
    assert store.max_offset(KEY) == COUNT
