"""Deleting a topic waits for no disk, and is durable when the store says so."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from small_store import FILE_BYTES, KEY, OTHER, CalmFiles, chunk, open_store, put, read

from tianzhou.base.kinds import PhysicalOffset, queue_key
from tianzhou.store.consume_queue import DELETED
from tianzhou.store.errors import StoreFenced
from tianzhou.store.files import RealFile
from tianzhou.store.store import MessageStore
from tianzhou.testing.sim.clock import ManualClock

ELSEWHERE = queue_key("payments", 0)
DEADLINE_S = 30


class HangingFiles(CalmFiles):
    """A disk that neither syncs nor removes anything between `hang` and `go_on`. The writer of the
    store must not even try to in that time."""

    def __init__(self) -> None:
        self._writer = threading.current_thread()
        self._may_go_on = threading.Event()
        self.loses_removals = False
        """A crash undoes removals whose directory was not synced: these never happen."""
        self.hangs_renames = False
        """A change of a directory waits while another thread syncs."""
        self.go_on()

    def hang(self) -> None:
        self._may_go_on.clear()

    def go_on(self) -> None:
        self._may_go_on.set()

    def wait(self, what: str) -> None:
        if not self._may_go_on.is_set():
            assert threading.current_thread() is not self._writer, f"the writer waits: {what}"
            assert self._may_go_on.wait(DEADLINE_S)

    def create(self, path: str, size: int) -> RealFile:
        return _HangingFile(super().create(path, size), self)

    def open(self, path: str) -> RealFile:
        return _HangingFile(super().open(path), self)

    def remove(self, path: str) -> None:
        self.wait(f"remove {path}")
        if not self.loses_removals:
            super().remove(path)

    def rename(self, old: str, new: str) -> None:
        if self.hangs_renames:
            self.wait(f"rename {old}")
        super().rename(old, new)

    def remove_dir(self, path: str) -> None:
        if self.hangs_renames:
            self.wait(f"remove {path}")
        super().remove_dir(path)

    def sync_dir(self, path: str) -> None:
        self.wait(f"sync {path}")
        super().sync_dir(path)


class _HangingFile(RealFile):
    __slots__ = ("_files",)

    def __init__(self, file: RealFile, files: HangingFiles) -> None:
        super().__init__(file.path, file._fd)
        self._files = files

    def sync(self) -> None:
        self._files.wait(f"sync {self.path}")
        super().sync()


class Deleting:
    """A store whose flush thread syncs, on a disk that may hang."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.files = HangingFiles()
        self._progress = threading.Event()
        self.store = open_store(root, files=self.files)
        self.store.start(self._progress.set)

    def wait_durable(self) -> None:
        removals = self.store.removals
        while removals.durable < removals.begun:
            assert self._progress.wait(DEADLINE_S)
            self._progress.clear()

    def wait_removed(self) -> None:
        while self.set_aside():
            assert self._progress.wait(DEADLINE_S)
            self._progress.clear()

    def set_aside(self) -> list[str]:
        return self.files.list(str(self.root / "consumequeue" / DELETED))

    def crash(self) -> MessageStore:
        """The store after a kill -9 and a start."""
        self.store.abandon()
        self.store = open_store(self.root)
        return self.store


@pytest.fixture
def deleting(tmp_path: Path) -> Iterator[Deleting]:
    made = Deleting(tmp_path)
    yield made
    made.files.go_on()
    made.store.abandon()


def test_delete_topic_on_a_disk_that_hangs_does_not_block_the_store(deleting: Deleting) -> None:
    store = deleting.store
    put(store, *[b"old %d" % number for number in range(25)])  # three files
    put(store, b"old", key=OTHER)
    store.checkpoint(whole=True)  # before it, queues have no files
    deleting.files.hang()
    store.append(chunk(b"not dispatched"))
    assert store.delete_topic("orders") == 2
    assert (store.max_offset(KEY), store.max_offset(OTHER)) == (0, 0)
    put(store, b"other", key=ELSEWHERE)
    put(store, b"new")
    assert (read(store, key=ELSEWHERE), read(store)) == ([b"other"], [b"new"])
    assert store.removals.durable == 0
    assert len(deleting.set_aside()) == 4
    deleting.files.go_on()
    deleting.wait_durable()
    deleting.wait_removed()
    store.close()
    assert not (deleting.root / "consumequeue" / DELETED).exists()
    again = open_store(deleting.root)
    assert (read(again), again.recovered.rebuilt) == ([b"new"], "")
    again.close()


def test_delete_topic_leaves_directory_changes_to_the_flush_thread(
    deleting: Deleting,
) -> None:
    store = deleting.store
    put(store, *[b"old %d" % number for number in range(25)])  # three files
    put(store, b"kept", key=ELSEWHERE)
    store.checkpoint(whole=True)
    deleting.files.hangs_renames = True
    deleting.files.hang()
    assert store.delete_topic("orders") == 1
    assert (store.max_offset(KEY), read(store, key=ELSEWHERE)) == (0, [b"kept"])
    assert len(deleting.files.list(str(deleting.root / "consumequeue" / "orders" / "0"))) == 3
    deleting.files.go_on()
    deleting.wait_durable()
    deleting.wait_removed()
    assert not (deleting.root / "consumequeue" / "orders").exists()
    put(store, b"new")
    store.close()
    again = open_store(deleting.root)
    assert (read(again), again.recovered.rebuilt) == ([b"new"], "")
    again.close()


def test_delete_topic_twice_before_the_first_is_recorded_succeeds(deleting: Deleting) -> None:
    store = deleting.store
    put(store, b"first life")
    store.checkpoint(whole=True)
    deleting.files.hang()
    store.delete_topic("orders")
    put(store, b"second life")
    store.delete_topic("orders")
    put(store, b"third life")
    assert read(store) == [b"third life"]
    deleting.files.go_on()
    deleting.wait_durable()
    deleting.wait_removed()
    store.close()
    again = open_store(deleting.root)
    assert (read(again), again.recovered.rebuilt) == ([b"third life"], "")
    again.close()


def test_delete_topic_that_is_durable_survives_a_crash(deleting: Deleting) -> None:
    put(deleting.store, b"old")
    deleting.store.checkpoint(whole=True)
    deleting.store.delete_topic("orders")
    deleting.wait_durable()
    store = deleting.crash()
    assert store.max_offset(KEY) == 0
    put(store, b"new")
    assert read(store) == [b"new"]


def test_open_after_a_crash_removes_files_of_deleted_queues(tmp_path: Path) -> None:
    deleting = Deleting(tmp_path)
    put(deleting.store, b"old", b"older")
    deleting.store.checkpoint(whole=True)  # before it, queues have no files
    deleting.files.loses_removals = True
    assert deleting.store.delete_topic("orders") == 1
    deleting.wait_durable()
    assert deleting.set_aside()
    store = deleting.crash()
    assert not (deleting.root / "consumequeue" / DELETED).exists()
    put(store, b"new")
    store.checkpoint(whole=True)
    assert store.delete_topic("orders") == 1, "the next deletion sets files aside as well"
    store.close()
    assert not (deleting.root / "consumequeue" / DELETED).exists()


def test_open_after_a_recorded_deletion_removes_queues_that_are_still_there(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    put(store, b"old")
    store.checkpoint()  # stands where the topic is deleted
    store.derivation.delete_topic("orders", store.log.end)
    store.derivation.save()
    store.abandon()
    store = open_store(tmp_path)
    assert store.max_offset(KEY) == 0
    store.close()


def test_delete_topic_before_an_offset_keeps_queues_that_continue_after_it(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    put(store, b"old")
    place = store.log.end
    put(store, b"kept", key=OTHER)
    assert store.delete_topic("orders", before=place) == 1
    assert (read(store), read(store, key=OTHER)) == ([], [b"kept"])
    store.close()


def test_open_of_a_log_that_lost_its_end_serves_later_messages(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    put(store, b"old")
    store.derivation.delete_topic("orders", FILE_BYTES)  # far behind the end of the log
    store.derivation.save()
    store.close()
    store = open_store(tmp_path)
    put(store, b"new")
    assert read(store) == [b"new"]
    store.close()


def test_delete_topic_that_cannot_be_recorded_fences_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(tmp_path, clock=ManualClock())
    put(store, b"old")

    def fail(path: str) -> None:
        raise OSError(5, "Input/output error", path)

    monkeypatch.setattr(store.files, "sync_dir", fail)
    with pytest.raises(StoreFenced, match="deleted files and topics failed"):
        store.delete_topic("orders")
    assert store.removals.durable == 0
    with pytest.raises(StoreFenced):
        store.delete_topic("orders", before=PhysicalOffset(1))
    store.abandon()
