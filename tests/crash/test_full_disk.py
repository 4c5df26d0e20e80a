"""A full disk: writes are rejected, reads continue, and writes resume when there is room."""

import contextlib
import errno
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from damaged_store import (
    CONFIG,
    FILE_BYTES,
    Known,
    check_whole,
    fast_directory,
    open_store,
    readable,
)

from tianzhou.store.errors import DiskFull
from tianzhou.store.files import RealFile, RealFiles, Usage
from tianzhou.store.store import MessageStore
from tianzhou.testing.sim.clock import ManualClock


@pytest.fixture
def place() -> Iterator[Path]:
    with fast_directory() as path:
        yield path


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MiB."""
    mount = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(tmp_path)], capture_output=True
    )
    if mount.returncode:
        pytest.skip("mounting needs root; the injected disk below stands in")
    yield tmp_path
    subprocess.run(["umount", "-l", str(tmp_path)], check=True)


class Disk(RealFiles):
    """Reports a chosen disk usage, and fails to reserve blocks when the test wants it."""

    def __init__(self) -> None:
        self.used_percent = 10
        self.full = False

    def usage(self, path: str) -> Usage:
        return Usage(total=100, free=100 - self.used_percent)

    def create(self, path: str, size: int) -> RealFile:
        return self._wrapped(super().create(path, size))

    def open(self, path: str) -> RealFile:
        return self._wrapped(super().open(path))

    def _wrapped(self, file: RealFile) -> RealFile:
        return DiskFile(self, file)


class DiskFile(RealFile):
    __slots__ = ("_disk",)

    def __init__(self, disk: Disk, file: RealFile) -> None:
        super().__init__(file.path, file._fd)
        self._disk = disk

    def reserve(self, start: int, end: int) -> None:
        if self._disk.full:
            raise OSError(errno.ENOSPC, "no space left on device", self.path)
        super().reserve(start, end)


def open_on(disk: RealFiles, root: Path, clock: ManualClock | None = None) -> MessageStore:
    return MessageStore(disk, str(root), CONFIG, clock or ManualClock())


def fill(known: Known, store: MessageStore) -> None:
    """Append until the disk is full."""
    try:
        for _ in range(10_000):
            known.append(store, 20)
    except DiskFull:
        return
    raise AssertionError("the disk never ran full")


def test_real_disk_that_fills_up_rejects_writes_until_there_is_room(small_disk: Path) -> None:
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(400 * 1024))
    known = Known(small_disk / "store")
    store = open_store(known.root)
    fill(known, store)
    count = len(known.placed)
    assert count > 200
    store.clean()  # as the broker does from time to time; nothing has expired
    _check_stored(store, known)
    fill(known, store)
    ballast.unlink()
    store.clean()
    known.append(store, 40)
    assert len(known.placed) >= count + 40
    _check_stored(store, known)
    store.checkpoint()
    store.abandon()
    store = open_store(known.root)
    assert store.recovered.damage == []
    check_whole(store, known.placed)
    store.close()


def _check_stored(store: MessageStore, known: Known) -> None:
    """Check that acknowledged messages can be read. Dispatch may lag while its files lack room."""
    store.dispatch_all()
    assert readable(store) <= set(known.placed)
    dispatched = store.watermarks.dispatched
    assert readable(store) == {placed for placed in known.placed if placed.end <= dispatched}


def test_full_disk_and_a_kill_lose_nothing(small_disk: Path) -> None:
    known = Known(small_disk / "store")
    store = open_store(known.root)
    fill(known, store)
    store.abandon()
    # Opening derives what had no room before, so it needs some.
    for path in (known.root / "index").iterdir():
        path.unlink()
    with contextlib.suppress(DiskFull):
        store = open_store(known.root)
        assert readable(store) == set(known.placed)
        store.abandon()
    subprocess.run(["mount", "-o", "remount,size=4m", str(small_disk)], check=True)
    store = open_store(known.root)
    check_whole(store, known.placed)
    known.append(store, 20)
    store.close()


def test_full_disk_rejects_whole_chunks(place: Path) -> None:
    disk = Disk()
    known = Known(place / "store")
    store = open_on(disk, known.root)
    known.append(store, 10)
    disk.full = True
    end = store.log.end
    fill(known, store)  # blocks that were reserved before can still be used
    full_end = store.log.end
    assert end <= full_end
    with pytest.raises(DiskFull, match="nothing was stored"):
        known.append(store, 20)
    assert store.log.end == full_end
    check_whole(store, known.placed)
    disk.full = False
    known.append(store, 60)
    check_whole(store, known.placed)
    # Queue offsets have no gap where chunks were rejected.
    for key in {placed.queue for placed in known.placed}:
        ranks = [placed.queue_offset for placed in known.placed if placed.queue == key]
        assert ranks == list(range(len(ranks)))
    store.close()


def test_disk_usage_limits_reject_and_accept_writes(place: Path) -> None:
    disk = Disk()
    known = Known(place / "store")
    store = open_on(disk, known.root)
    known.append(store, 100)
    for percent in (75, 85, 90):
        disk.used_percent = percent
        store.clean()
        assert store.refusal == "", "a limit applies when it is exceeded, not when it is reached"
        known.append(store, 1)
    disk.used_percent = 91
    store.clean()
    assert "91%" in store.refusal
    with pytest.raises(DiskFull, match="91%"):
        known.append(store, 1)
    kept = {placed for placed in known.placed if placed.offset >= store.log.min_offset}
    assert readable(store) == kept
    disk.used_percent = 80
    store.clean()
    assert store.refusal == ""
    known.append(store, 1)
    store.close()


def test_nearly_full_disk_deletes_the_oldest_file_one_at_a_time(place: Path) -> None:
    disk = Disk()
    known = Known(place / "store")
    store = open_on(disk, known.root)
    known.append(store, 100)
    files = len(store.log.segments)
    assert files > 2
    disk.used_percent = 76
    assert store.clean() == 0  # nothing has expired
    disk.used_percent = 86
    assert store.clean() == 1
    assert store.log.min_offset == FILE_BYTES
    disk.used_percent = 95
    for _ in range(files):
        store.clean()
    assert len(store.log.segments) == 1, "the file that is being written is kept"
    kept = {placed for placed in known.placed if placed.offset >= store.log.min_offset}
    assert readable(store) == kept
    store.close()


def test_filling_disk_deletes_expired_files_at_any_hour(place: Path) -> None:
    disk, clock = Disk(), ManualClock()
    known = Known(place / "store")
    store = open_on(disk, known.root, clock)
    known.append(store, 100)
    clock.advance(hours=100)
    known.append(store, 1)
    assert store.clean() == 0  # no hour of the day is configured
    disk.used_percent = 76
    assert store.clean() > 0
    store.close()
