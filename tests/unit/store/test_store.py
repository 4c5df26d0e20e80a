import time
from pathlib import Path

import pytest
from small_store import FILE_BYTES, KEY, CalmFiles, bodies_of, chunk, open_store, put, read

from tianzhou.base.kinds import PhysicalOffset
from tianzhou.record import flags
from tianzhou.record.errors import RecordTooLarge
from tianzhou.store import store as store_module
from tianzhou.store import upkeep
from tianzhou.store.config import FlushMode, StoreConfig
from tianzhou.store.detect import detect
from tianzhou.store.errors import DiskFull, StoreClosed, StoreFenced, StoreLocked
from tianzhou.store.files import RealFile, RealFiles, Usage
from tianzhou.store.recovery import Report
from tianzhou.store.store import MessageStore
from tianzhou.store.verify import Directory
from tianzhou.testing.sim.clock import ManualClock
from tianzhou.testing.sim.disk import SimDisk


def test_store_sync_flush_shows_messages_after_the_flush(tmp_path: Path) -> None:
    store = open_store(tmp_path, mode=FlushMode.SYNC)
    placed = store.append(chunk(b"a"))
    assert store.dispatch() == []
    assert store.max_offset(KEY) == 0
    assert store.wait_flushed(placed.end, 10)
    (run,) = store.dispatch()
    assert (run.queue, run.first) == (KEY, 0)
    assert read(store) == [b"a"]
    store.close()


def test_store_async_flush_shows_messages_at_once(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    placed = store.append(chunk(b"a"))
    store.dispatch_all()
    assert read(store) == [b"a"]
    assert store.flushed < placed.end
    store.flush()
    assert store.flushed == placed.end == store.watermarks.appended
    store.close()


def test_store_flush_thread_flushes_and_notifies(tmp_path: Path) -> None:
    progress: list[int] = []
    store = open_store(tmp_path, mode=FlushMode.SYNC)
    store.start(lambda: progress.append(store.flushed))
    for n in range(20):
        placed = store.append(chunk(b"%d" % n * 300))
        assert store.wait_flushed(placed.end, 30)
        store.dispatch_all()
    store.checkpoint()
    assert progress
    assert read(store) == [b"%d" % n * 300 for n in range(20)]
    store.close()
    assert open_store(tmp_path).recovered.scanned_bytes == 0


def test_store_keeps_undispatched_records_in_memory_up_to_a_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_module, "FRESH_BYTES_MAX", 2 * len(chunk(b"a").data))
    store = open_store(tmp_path)
    for _ in range(3):
        store.append(chunk(b"a"))
    assert len(store.dispatcher.fresh) == 2
    store.dispatch_all()
    assert read(store) == [b"a"] * 3, "the third is found in the log"
    store.close()


def test_store_half_messages_take_no_queue_offset(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    store.append(chunk(b"half", sys_flag=flags.TRANSACTION_PREPARED))
    placed = store.append(chunk(b"whole", sys_flag=flags.TRANSACTION_COMMIT))
    store.append(chunk(b"undone", sys_flag=flags.TRANSACTION_ROLLBACK))
    store.dispatch_all()
    assert list(placed.queue_offsets) == [0]
    assert read(store) == [b"whole"]
    store.close()


def test_store_rejects_a_record_larger_than_a_file(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    put(store, b"a")
    end = store.log.end
    with pytest.raises(RecordTooLarge, match="commit_log_file_bytes"):
        store.append(chunk(b"b", b"x" * FILE_BYTES))
    assert store.log.end == end
    put(store, b"c")
    assert read(store) == [b"a", b"c"]
    store.close()


def test_store_closed_raises_on_use(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    store.close()
    store.close()
    assert store.dispatch() == []
    for use in (lambda: store.append(chunk(b"a")), store.checkpoint, store.clean, store.flush):
        with pytest.raises(StoreClosed):
            use()


class FailingFiles(CalmFiles):
    """Syncs fail once `failing` is set."""

    failing = False

    def create(self, path: str, size: int) -> RealFile:
        return FailingFile(self, super().create(path, size))

    def open(self, path: str) -> RealFile:
        return FailingFile(self, super().open(path))


class FailingFile(RealFile):
    __slots__ = ("_files",)

    def __init__(self, files: FailingFiles, file: RealFile) -> None:
        super().__init__(file.path, file._fd)
        self._files = files

    def sync(self) -> None:
        if self._files.failing:
            raise OSError(5, "input/output error", self.path)
        super().sync()


@pytest.mark.parametrize("threaded", [False, True])
def test_store_failed_sync_fences_without_a_second_attempt(tmp_path: Path, threaded: bool) -> None:
    files = FailingFiles()
    store = open_store(tmp_path, files=files, mode=FlushMode.SYNC)
    if threaded:
        store.start()
    placed = store.append(chunk(b"safe"))
    assert store.wait_flushed(placed.end, 30)
    store.dispatch_all()
    files.failing = True
    placed = store.append(chunk(b"lost"))
    with pytest.raises(StoreFenced, match="check the disk and restart"):
        store.wait_flushed(placed.end, 30)
    files.failing = False
    flushed = store.flushed
    with pytest.raises(StoreFenced):
        store.append(chunk(b"more"))
    with pytest.raises(StoreFenced):
        store.wait_flushed(PhysicalOffset(0), 1)
    assert store.flushed == flushed < placed.end
    assert read(store) == [b"safe"], "what was seen before can still be read"
    store.close()
    assert (tmp_path / "abort").exists(), "a broken store is not closed clean"
    again = open_store(tmp_path)
    assert read(again) in ([b"safe"], [b"safe", b"lost"])
    again.close()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_store_dead_flush_thread_fences_the_store(tmp_path: Path) -> None:
    """Without the thread nothing is synced again, yet every send would be acknowledged."""

    def mistake() -> None:
        raise ZeroDivisionError

    def send() -> None:
        for body in (b"synced, and then it dies", b"never synced"):
            store.wait_flushed(store.append(chunk(body)).end, 30)

    store = open_store(tmp_path)
    store.start(mistake)
    with pytest.raises(StoreFenced, match="the flush thread ended"):
        send()
    assert store.is_broken
    store.close()
    assert (tmp_path / "abort").exists()


def test_store_ignores_files_of_a_file_browser(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    put(store, b"a")
    store.close()
    config = store.config
    for place in (".", "commitlog", "consumequeue", "consumequeue/orders", "index"):
        (tmp_path / place / ".DS_Store").write_bytes(b"x")
    (tmp_path / "consumequeue/orders/0/.nfs0001").write_bytes(b"x")
    assert detect(CalmFiles(), str(tmp_path)).commit_log_file_bytes == config.commit_log_file_bytes
    directory = Directory(CalmFiles(), str(tmp_path), config)
    assert directory.verify(lambda _done, _total: None).problems == []
    directory.close()
    again = open_store(tmp_path)
    assert again.recovered == Report()
    assert read(again) == [b"a"]
    assert again.delete_topic("orders") == 1
    again.close()
    again = open_store(tmp_path)
    assert (again.recovered, again.max_offset(KEY)) == (Report(), 0)
    again.close()


def test_store_maintenance_saves_when_due(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = ManualClock()
    store = open_store(tmp_path, clock=clock)
    put(store, b"a")
    store.maintain()
    assert store._opened.parts.checkpoint.derived == 0
    clock.advance(seconds=61)
    store.maintain()
    assert store._opened.parts.checkpoint.derived == store.log.end
    # Or when a restart would have much to scan.
    monkeypatch.setattr(upkeep, "CHECKPOINT_BYTES", 1000)
    clock.advance(seconds=2)
    put(store, b"b" * 500)
    store.maintain()
    assert store._opened.parts.checkpoint.derived < store.log.end
    put(store, b"c" * 500)
    store.maintain()
    assert store._opened.parts.checkpoint.derived == store.log.end
    store.close()


def test_store_flush_thread_creates_the_next_file_early(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    store.start()
    put(store, b"x" * (FILE_BYTES // 2))
    deadline = time.monotonic() + 60
    while len(list((tmp_path / "commitlog").iterdir())) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.005)
    assert len(store.log.segments) == 1
    store.close()


def test_store_crash_after_expiry_needs_no_rebuild(tmp_path: Path) -> None:
    clock = ManualClock()
    store = open_store(tmp_path, clock=clock)
    put(store, *[b"x" * 500] * 20)
    clock.advance(hours=2)
    put(store, b"y" * 500)
    assert store.clean(by_hand=True) > 1
    kept = read(store, store.min_offset(KEY))
    store.abandon()
    again = open_store(tmp_path, clock=clock)
    assert again.recovered == Report()
    assert read(again, again.min_offset(KEY)) == kept
    again.close()


def test_dispatch_of_a_missing_record_reports_it_and_continues(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    for body in (b"lost", b"kept"):  # one alone would be dispatched from memory
        store.append(chunk(body))
    with (tmp_path / "commitlog" / f"{0:020d}").open("r+b") as file:
        file.write(b"!" * 8)
    reported: list[int] = []
    store.damage.on_damage = reported.append
    store.dispatch_all()
    assert reported == [0]
    assert store.damaged == {0}
    assert read(store, start=store.min_offset(KEY)) == [b"kept"]
    store.close()


def test_store_deleted_topic_starts_at_0_again(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    put(store, b"old", b"older")
    assert store.delete_topic("orders") == 1
    assert store.delete_topic("nobody") == 0
    assert store.max_offset(KEY) == 0
    put(store, b"new")
    assert read(store) == [b"new"]
    store.close()
    again = open_store(tmp_path)
    assert read(again) == [b"new"]
    again.close()


@pytest.mark.parametrize("start", [1 << 31, 1 << 32, 5 << 40])
def test_store_offsets_beyond_32_bits_are_kept(tmp_path: Path, start: int) -> None:
    store = open_store(tmp_path)
    store.begin_again(PhysicalOffset(start - FILE_BYTES))
    store.begin_writing()
    bodies = [b"%d" % number * 60 for number in range(150)]
    store.append(chunk(*bodies[:100], keys="k"))  # crosses the limit, and goes the way of many
    store.dispatch_all()
    store.checkpoint()
    for body in bodies[100:]:
        store.append(chunk(body, keys="k"))
    store.dispatch_all()
    store.flush()
    assert store.log.min_offset < start < store.log.end
    store.abandon()
    again = open_store(tmp_path)
    assert (again.recovered.rebuilt, again.recovered.damage) == ("", [])
    assert again.recovered.records == 50
    assert read(again, count=200) == bodies
    with again.find("orders", "k", count_max=200) as found:
        assert bodies_of(found) == bodies[::-1]
    assert again.offset_by_time(KEY, 0) == 0
    again.close()


# Paths of their own


def test_store_with_separate_paths_keeps_everything_after_a_restart(tmp_path: Path) -> None:
    config = StoreConfig(
        commit_log_path=f"{tmp_path}/log",
        consume_queue_path=f"{tmp_path}/queues",
        index_path=f"{tmp_path}/keys",
        tables_path=f"{tmp_path}/tables",
        checkpoint_path=f"{tmp_path}/marks/checkpoint",
        abort_path=f"{tmp_path}/marks/abort",
    )
    root = tmp_path / "root"
    recovered: list[Report] = []
    for count in range(1, 4):
        store = MessageStore(RealFiles(), str(root), config, ManualClock())
        recovered.append(store.recovered)
        assert (tmp_path / "marks/abort").exists()
        store.append(chunk(b"%d" % count, keys="k"))
        store.dispatch_all()
        assert read(store, 0) == [b"%d" % number for number in range(1, count + 1)]
        with store.find("orders", "k") as found:
            assert len(found.spans) == count
        store.close()
    assert sorted(path.name for path in root.iterdir()) == ["lock", "paths.json"]
    assert recovered == [Report()] * 3
    assert detect(RealFiles(), str(root)).commit_log_path == f"{tmp_path}/log"


def test_store_log_in_use_is_rejected(tmp_path: Path) -> None:
    config = StoreConfig(commit_log_path=f"{tmp_path}/log")
    store = MessageStore(RealFiles(), f"{tmp_path}/a", config, ManualClock())
    with pytest.raises(StoreLocked, match="commit_log_path"):
        MessageStore(RealFiles(), f"{tmp_path}/b", config, ManualClock())
    store.close()
    MessageStore(RealFiles(), f"{tmp_path}/b", config, ManualClock()).close()


class TwoDisks(SimDisk):
    """The queues have a disk of their own, and it is nearly full."""

    def usage(self, path: str) -> Usage:
        return Usage(100, 3 if path.startswith("queues") else 90)


def test_store_full_queue_disk_rejects_writes_and_names_the_disk() -> None:
    config = StoreConfig(consume_queue_path="queues/here", clean_interval_ms=10)
    store = MessageStore(TwoDisks(), "store", config, ManualClock())
    store.clean()
    assert "the disk of queues/here is 97% full" in store.refusal
    with pytest.raises(DiskFull):
        store.append(chunk(b"one"))
