"""Checkpoints and retention over many queues, a slice at a time."""

import errno
import threading
from pathlib import Path

import pytest
from small_store import CalmFiles, chunk, open_store, put, read

from tianzhou.base.kinds import QueueKey, queue_key
from tianzhou.store import flush, upkeep
from tianzhou.store.config import FlushMode
from tianzhou.store.errors import DiskFull
from tianzhou.store.files import RealFile
from tianzhou.store.recovery import Report
from tianzhou.store.store import MessageStore
from tianzhou.testing.sim.clock import ManualClock
from tianzhou.testing.sim.disk import SimDisk
from tianzhou.testing.sim.workload import SlicedStore

KEYS = [queue_key(f"topic-{number}", 0) for number in range(10)]


def open_sliced(disk: SimDisk, clock: ManualClock | None = None) -> SlicedStore:
    """A store that visits three queues in a slice."""
    plain = open_store(Path("unused"), files=disk)
    plain.close()
    store = SlicedStore(disk, "data", plain.config, clock or ManualClock())
    store._upkeep.work.slice_queues = 3
    return store


def fill(store: MessageStore, *bodies: bytes, keys: list[QueueKey] = KEYS) -> None:
    for key in keys:
        put(store, *bodies, key=key)


def unwritten(store: MessageStore) -> int:
    return len(store.queues.census().unwritten)


def saved(store: MessageStore) -> int:
    return store._opened.parts.checkpoint.derived


def test_checkpoint_with_many_queues_writes_a_bounded_number_in_each_slice() -> None:
    store = open_sliced(SimDisk())
    fill(store, b"a")
    begun_at = store.log.end
    store.checkpoint()
    left = [unwritten(store)]
    while saved(store) == 0:
        put(store, b"later", key=queue_key("late", len(left)))
        store.advance()
        left.append(unwritten(store))
    assert left == [7, 5, 3, 3], "three at a time; of the late ones none was waited for"
    assert saved(store) == begun_at


def test_checkpoint_in_slices_survives_a_crash_without_a_rebuild() -> None:
    disk = SimDisk()
    store = open_sliced(disk)
    fill(store, b"a")
    store.checkpoint()
    fill(store, b"b")
    while saved(store) == 0:
        store.advance()
    fill(store, b"c")
    store.flush()
    disk.kill()
    again = open_sliced(disk)
    assert again.recovered.rebuilt == ""
    assert [read(again, key=key) for key in KEYS] == [[b"a", b"b", b"c"]] * 10


def test_checkpoint_in_slices_with_a_deleted_topic_counts_the_rest() -> None:
    disk = SimDisk()
    store = open_sliced(disk)
    fill(store, b"a")
    store.checkpoint()
    store.delete_topic("topic-4")
    while saved(store) == 0:
        store.advance()
    store.flush()
    disk.kill()
    again = open_sliced(disk)
    assert again.recovered.rebuilt == ""
    assert again.max_offset(KEYS[4]) == 0
    assert read(again, key=KEYS[5]) == [b"a"]


def test_checkpoint_slice_without_disk_space_is_repeated_in_full() -> None:
    disk = SimDisk()
    store = open_sliced(disk)
    fill(store, b"a")
    store.checkpoint()
    disk.fail_at(1, errno.ENOSPC)
    with pytest.raises(DiskFull):
        store.advance()
    assert not store._upkeep.work.is_unfinished
    store.checkpoint()
    while saved(store) == 0:
        assert store._upkeep.work.is_unfinished
        store.advance()
    assert unwritten(store) == 0
    disk.kill()
    assert open_sliced(disk).recovered.rebuilt == ""


def test_retention_with_many_queues_raises_minimums_before_its_slices() -> None:
    disk, clock = SimDisk(), ManualClock()
    store = open_sliced(disk, clock)
    for _ in range(12):  # more than the units of one queue file
        fill(store, b"x" * 300)
    clock.advance(hours=2)
    fill(store, b"y" * 300)
    while store.checkpoint() or store._upkeep.work.is_unfinished:
        store.advance()
    assert store.clean(by_hand=True) > 1
    assert store._upkeep.work.is_unfinished
    minimums = [store.min_offset(key) for key in KEYS]
    assert min(minimums) > 9
    kept = [read(store, int(minimum), key=key) for key, minimum in zip(KEYS, minimums, strict=True)]
    while store._upkeep.work.is_unfinished:
        store.advance()
    assert all(len(disk.list(queue.directory)) == 1 for queue in store.queues)
    store.flush()
    disk.kill()
    again = open_sliced(disk, clock)
    assert again.recovered == Report()
    assert [again.min_offset(key) for key in KEYS] == minimums
    assert kept == [
        read(again, int(minimum), key=key) for key, minimum in zip(KEYS, minimums, strict=True)
    ]


# With the flush thread


class WatchedFiles(CalmFiles):
    """Calls `on_sync` before a queue file is synced, and notes what was synced."""

    def __init__(self) -> None:
        self.synced: list[str] = []
        self.on_sync = lambda: None

    def create(self, path: str, size: int) -> RealFile:
        return WatchedFile(self, super().create(path, size))

    def open(self, path: str) -> RealFile:
        return WatchedFile(self, super().open(path))


class WatchedFile(RealFile):
    __slots__ = ("_files",)

    def __init__(self, files: WatchedFiles, file: RealFile) -> None:
        super().__init__(file.path, file._fd)
        self._files = files

    def sync(self) -> None:
        if "consumequeue" in self.path:
            self._files.on_sync()
            self._files.synced.append(self.path)
        super().sync()


def test_log_is_flushed_while_the_files_of_a_checkpoint_are_synced(tmp_path: Path) -> None:
    files = WatchedFiles()
    store = open_store(tmp_path, files=files, mode=FlushMode.SYNC)
    arrived, gate, second, seen = *(threading.Event() for _ in range(3)), list[int]()

    def on_sync() -> None:
        if not seen:
            arrived.set()
            assert gate.wait(60)
        seen.append(store.flushed)
        if len(seen) == 2:
            second.set()

    store.start()
    for key in KEYS:
        store.append(chunk(b"a", key=key))
    store.flush()
    store.dispatch_all()
    files.on_sync = on_sync
    store.checkpoint()
    assert arrived.wait(60)
    before = store.flushed
    store.append(chunk(b"urgent"))
    gate.set()
    assert second.wait(60)
    store.close()
    assert seen[0] == before
    assert seen[1] == store.log.end, "the log waited for all queue files"


def test_close_syncs_files_left_by_an_interrupted_checkpoint(tmp_path: Path) -> None:
    files = WatchedFiles()
    store = open_store(tmp_path, files=files)
    store.start()
    thread = store._flusher.thread
    assert thread is not None
    fill(store, b"a")

    def wait_for_stop() -> None:
        with thread._wake:
            assert thread._wake.wait_for(lambda: thread._stopping, 60)

    files.on_sync = wait_for_stop
    store.checkpoint()
    store.close()
    assert len(set(files.synced)) == len(KEYS)
    again = open_store(tmp_path)
    assert again.was_clean
    assert again.recovered == Report()
    again.close()


class WritingBackFiles(WatchedFiles):
    """Notes how many files had been synced when everything was written back."""

    def __init__(self) -> None:
        super().__init__()
        self.written_back: list[int] = []

    def write_back(self) -> None:
        self.written_back.append(len(self.synced))


@pytest.mark.parametrize(("many", "expected"), [(10, [0]), (11, [])])
def test_close_with_many_dirty_files_writes_back_once_and_still_syncs_each(
    tmp_path: Path, many: int, expected: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flush, "MANY_FILES", many)
    files = WritingBackFiles()
    store = open_store(tmp_path, files=files)
    fill(store, b"a")
    store._upkeep.work._index = None  # its files are not counted here
    store.close()
    assert files.written_back == expected
    assert len(set(files.synced)) == len(KEYS)


# A start


class CountingFiles(CalmFiles):
    """Counts what is done to queue files."""

    def __init__(self) -> None:
        self.lists = self.opens = self.reads = self.cuts = self.syncs = 0

    def list(self, path: str) -> list[str]:
        self.lists += "consumequeue/" in path
        return super().list(path)

    def open(self, path: str) -> RealFile:
        if "consumequeue/" not in path:
            return super().open(path)
        self.opens += 1
        return CountingFile(self, super().open(path))


class CountingFile(RealFile):
    __slots__ = ("_files",)

    def __init__(self, files: CountingFiles, file: RealFile) -> None:
        super().__init__(file.path, file._fd)
        self._files = files

    def pread(self, at: int, size: int) -> bytes:
        self._files.reads += 1
        return super().pread(at, size)

    def truncate(self, size: int) -> None:
        self._files.cuts += 1
        super().truncate(size)

    def sync(self) -> None:
        self._files.syncs += 1
        super().sync()


@pytest.mark.slow
@pytest.mark.parametrize("expired", [False, True])
def test_start_after_a_clean_stop_opens_each_queue_once(tmp_path: Path, expired: bool) -> None:
    """More queues than open files are kept: a second look at a queue would open its file again."""
    clock, topics, queues = ManualClock(), 30, 20
    store = open_store(tmp_path, clock=clock)
    keys = [queue_key(f"topic-{t}", q) for t in range(topics) for q in range(queues)]
    fill(store, b"a", keys=keys)
    if expired:
        clock.advance(hours=2)
        fill(store, b"b", keys=keys)
        assert store.clean(by_hand=True) > 0
    store.close()
    files = CountingFiles()
    again = open_store(tmp_path, files=files, clock=clock)
    assert again.recovered == Report()
    last = max(queue.last_physical_offset() for queue in again.queues)
    assert last > 0
    assert files.opens == len(keys)
    assert files.lists == len(keys) + topics
    assert files.reads <= (4 if expired else 2) * len(keys)
    again.close()


def crashed(root: Path, *later: bytes) -> None:
    """Leave a store as a killed process does: these messages came after its last checkpoint."""
    store = open_store(root)
    fill(store, b"a")
    store.checkpoint()
    fill(store, *later)
    store.flush()
    store.abandon()


def test_start_after_a_crash_truncates_only_queues_past_the_checkpoint(
    tmp_path: Path,
) -> None:
    store = open_store(tmp_path)
    fill(store, b"a")
    store.checkpoint()
    fill(store, b"b", keys=KEYS[:1])
    store.queues.write_out()
    store.flush()
    store.abandon()
    files = CountingFiles()
    again = open_store(tmp_path, files=files)
    assert (again.was_clean, again.recovered.rebuilt) == (False, "")
    assert files.cuts == 2, "one queue: its file is cut and made as long as before"
    assert files.syncs == 1
    assert [read(again, key=key) for key in KEYS] == [[b"a", b"b"], *[[b"a"]] * 9]
    again.close()


def test_start_after_a_crash_leaves_syncs_of_many_queues_to_a_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upkeep, "MANY_FILES", len(KEYS))
    crashed(tmp_path, b"b")
    files = CountingFiles()
    again = open_store(tmp_path, files=files)
    assert again.recovered.rebuilt == ""
    assert files.syncs == 0, "a start must not wait for thousands of files"
    assert again.flushed == again.log.end, "but for the log"
    assert [read(again, key=key) for key in KEYS] == [[b"a", b"b"]] * 10
    again.maintain()
    assert files.syncs == len(KEYS)
    assert saved(again) == again.log.end
    again.close()


def test_start_after_two_crashes_with_many_queues_finds_every_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upkeep, "MANY_FILES", len(KEYS))
    crashed(tmp_path, b"b")
    again = open_store(tmp_path)
    fill(again, b"c")
    again.queues.write_out()
    again.flush()
    again.abandon()
    third = open_store(tmp_path)
    assert third.recovered.rebuilt == ""
    assert [read(third, key=key) for key in KEYS] == [[b"a", b"b", b"c"]] * 10
    third.close()


def test_start_after_a_crash_with_a_new_queue_does_not_rebuild_the_others(tmp_path: Path) -> None:
    store, fresh = open_store(tmp_path), queue_key("fresh", 0)
    fill(store, b"a")
    store.checkpoint()
    put(store, b"b", key=fresh)
    store.queues.write_out()
    store.flush()
    store.abandon()
    again = open_store(tmp_path)
    assert again.recovered.rebuilt == "", "the checkpoint does not count the new queue"
    assert read(again, key=fresh) == [b"b"]
    again.close()
