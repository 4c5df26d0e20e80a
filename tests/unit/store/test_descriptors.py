"""A process without free descriptors or memory: its store refuses, and goes on by itself later."""

import errno
import os
import resource
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from small_store import KEY, chunk, read

from tianzhou.store.config import FlushMode, StoreConfig
from tianzhou.store.descriptors import (
    SPARES,
    NotOpened,
    Spares,
    is_shortage,
    is_unopened,
    shortage_text,
)
from tianzhou.store.errors import DiskFull
from tianzhou.store.store import MessageStore
from tianzhou.testing.sim.clock import ManualClock
from tianzhou.testing.sim.disk import SimDisk, SimFile


@contextmanager
def no_free_descriptor() -> Generator[list[int]]:
    """Others have taken them all; they are in the list."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken: list[int] = []
    resource.setrlimit(
        resource.RLIMIT_NOFILE, (max(map(int, os.listdir("/proc/self/fd"))) + 8, hard)
    )
    try:
        while True:
            try:
                taken.append(os.open(os.devnull, os.O_RDONLY))
            except OSError:
                break
        yield taken
    finally:
        for fd in taken:
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_spares_open_files_when_no_descriptor_is_free(tmp_path: Path) -> None:
    spares = Spares()
    spares.hold(3)
    with no_free_descriptor():
        opened = [spares.open(f"{tmp_path}/{n}", os.O_RDWR | os.O_CREAT) for n in range(3)]
        assert len(spares) == 0
        with pytest.raises(NotOpened) as caught:
            spares.open(f"{tmp_path}/more", os.O_RDWR | os.O_CREAT)
        assert caught.value.errno == errno.EMFILE
        with pytest.raises(NotOpened):
            spares.list(str(tmp_path))
        spares.close(opened.pop())
        assert len(spares) == 1, "what is closed goes back to the reserve"
        assert spares.list(str(tmp_path)) == ["0", "1", "2"] or len(spares) == 0
    for fd in opened:
        spares.close(fd)
    assert len(spares) == 3
    spares.hold(0)


def test_descriptor_shortage_excludes_disk_errors() -> None:
    assert not is_shortage(OSError(errno.EIO, "x"))
    assert not is_shortage(OSError(errno.ENOMEM, "x")), "a sync may fail so, and lose pages"
    assert is_shortage(NotOpened(errno.ENOMEM, "x"))
    assert is_shortage(OSError(errno.ENOSPC, "x"))
    assert not is_unopened(OSError(errno.ENOSPC, "x"))
    assert is_unopened(OSError(errno.ENFILE, "x"))
    assert "ulimit -n" in shortage_text(NotOpened(errno.EMFILE, "Too many open files"))
    assert is_shortage(MemoryError())
    assert is_unopened(MemoryError())
    assert "out of memory" in shortage_text(MemoryError())
    assert "out of memory" in shortage_text(NotOpened(errno.ENOMEM, "Cannot allocate memory"))
    assert "free space" in shortage_text(OSError(errno.ENOSPC, "No space left on device"))


class ShortDisk(SimDisk):
    """No file can be opened while `error` is set."""

    error = 0

    def _check(self, path: str) -> None:
        if self.error:
            raise NotOpened(self.error, os.strerror(self.error), path)

    def open(self, path: str) -> SimFile:
        self._check(path)
        return super().open(path)

    def create(self, path: str, size: int) -> SimFile:
        self._check(path)
        return super().create(path, size)

    def sync_dir(self, path: str) -> None:
        self._check(path)
        super().sync_dir(path)


CONFIG = StoreConfig(
    commit_log_file_bytes=4096,
    consume_queue_file_bytes=200,
    commit_log_preallocate_bytes=4096,
    index_slots=8,
    index_entries=40,
    flush_mode=FlushMode.SYNC,
)


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (errno.EMFILE, "no more files can be opened"),
        (errno.ENFILE, "no more files can be opened"),
        (errno.ENOMEM, "the broker is out of memory"),
    ],
)
def test_store_without_descriptors_rejects_and_recovers(error: int, reason: str) -> None:
    disk, clock = ShortDisk(), ManualClock()
    store = MessageStore(disk, "store", CONFIG, clock)
    stored = 0

    def put() -> None:
        nonlocal stored
        store.append(chunk(b"%03d" % stored * 50, keys=f"k{stored}"))
        store.flush()
        stored += 1
        store.dispatch_all()

    def put_many() -> None:
        for _ in range(60):
            put()

    put()
    disk.error = error
    with pytest.raises(DiskFull, match=reason):
        put_many()
    for _ in range(3):
        clock.advance(seconds=61)
        with suppress(DiskFull):  # as the broker does: the next time it works again
            store.maintain()
    assert not store.is_broken
    disk.error = 0
    clock.advance(seconds=61)
    store.maintain()
    assert store.refusal == ""
    for _ in range(30):
        put()
    clock.advance(seconds=61)
    store.maintain()
    disk.kill()
    again = MessageStore(disk, "store", CONFIG, clock)
    assert again.recovered.rebuilt == "", "the checkpoint was made up for"
    assert again.max_offset(KEY) == stored
    assert [body[:3] for body in read(again, 0)] == [b"%03d" % n for n in range(stored)]


def test_store_unopenable_queue_is_an_error_not_empty() -> None:
    disk = ShortDisk()
    store = MessageStore(disk, "store", CONFIG, ManualClock())
    for number in range(30):
        store.append(chunk(b"%d" % number))
    store.flush()
    store.dispatch_all()
    store.checkpoint()
    store.queues.cache.close()
    disk.error = errno.EMFILE
    with pytest.raises(DiskFull, match="the queue cannot be read now"):
        store.read(KEY, store.min_offset(KEY))
    disk.error = 0
    assert len(read(store, 0)) == 30


def test_store_keeps_descriptors_in_reserve() -> None:
    assert SPARES >= 4
