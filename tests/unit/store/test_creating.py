"""Creating a file: all of it or nothing, whatever goes wrong on the way."""

import errno
import os
from pathlib import Path

import pytest

from tianzhou.store.descriptors import NotOpened
from tianzhou.store.file_cache import FileCache
from tianzhou.store.files import RealFiles, creating
from tianzhou.store.key_index import KeyIndex
from tianzhou.testing.sim.clock import ManualClock
from tianzhou.testing.sim.disk import SimDisk

NOT_A_LENGTH = 1 << 62
"""More than any file system takes."""


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.parametrize("error", [OSError(errno.EIO, "x"), KeyboardInterrupt(), ValueError("x")])
def test_creating_removes_the_file_and_passes_the_error_on(
    tmp_path: Path, error: BaseException
) -> None:
    before = descriptors()
    with pytest.raises(type(error)), creating(RealFiles(), f"{tmp_path}/file", 10):
        raise error
    assert os.listdir(tmp_path) == []
    assert descriptors() == before


def test_creating_without_memory_raises_not_opened_and_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(NotOpened) as caught, creating(RealFiles(), f"{tmp_path}/file", 10):
        raise MemoryError
    assert (caught.value.errno, caught.value.filename) == (errno.ENOMEM, f"{tmp_path}/file")
    assert os.listdir(tmp_path) == []


def test_creating_keeps_a_completed_file_open(tmp_path: Path) -> None:
    with creating(RealFiles(), f"{tmp_path}/file", 10) as file:
        file.pwrite(0, b"whole")
    assert file.pread(0, 10) == b"whole" + bytes(5)
    file.close()


def test_create_that_cannot_set_the_length_leaves_nothing(tmp_path: Path) -> None:
    before = descriptors()
    with pytest.raises(OSError, match=r"too large|Invalid"):
        RealFiles().create(f"{tmp_path}/file", NOT_A_LENGTH)
    assert os.listdir(tmp_path) == []
    assert descriptors() == before


def test_key_index_without_memory_for_slots_creates_no_file(tmp_path: Path) -> None:
    index = KeyIndex(RealFiles(), f"{tmp_path}/index", ManualClock(), slots=1 << 50, entries=11)
    for _ in range(3):
        with pytest.raises(MemoryError):
            index.put([1], [1000], [1])
    assert os.listdir(tmp_path / "index") == []
    index.close()


def test_key_index_retries_with_the_same_name_when_removing_fails_too() -> None:
    """The disk fails from the second call on, so the created file cannot be removed."""
    clock, disk = ManualClock(), SimDisk()
    index = KeyIndex(disk, "index", clock, slots=8, entries=11)
    for _ in range(5):
        clock.advance(ms=5)
        disk.fail_at(2, errno.ENOSPC, onward=True)
        with pytest.raises(OSError, match="No space"):
            index.put([1], [1000], [1])
        assert len(disk.list("index")) == 1
    disk.heal()
    index.put([1], [1000], [1])
    assert disk.list("index") == [file.name for file in index.files]


def test_key_index_rebuilds_slots_after_memory_ran_out_in_a_put(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    disk = SimDisk()
    index = KeyIndex(disk, "index", ManualClock(), slots=4, entries=100)
    index.put([5] * 3, [1000, 2000, 3000], [1] * 3)
    (file,) = index.files
    monkeypatch.setattr(file, "_was_put", _raise_memory_error)
    for hashes in ([5] * 2, [5] * 40):
        with pytest.raises(MemoryError):  # the slots lead to entries that do not count
            index.put(hashes, [4000] * len(hashes), [1] * len(hashes))
    monkeypatch.undo()
    index.put([5] * 2, [4000, 5000], [1] * 2)
    assert list(file.find(5, 0, 10)) == [5000, 4000, 3000, 2000, 1000]


def _raise_memory_error(*_: object) -> None:
    raise MemoryError


def test_file_cache_marks_the_directory_of_a_file_it_could_not_complete() -> None:
    """A later attempt finds the file by its name, which must have been synced by then."""
    disk = SimDisk()
    disk.make_dirs("queue")
    cache = FileCache(disk, 4)
    disk.fail_at(1, errno.ENOSPC)
    with pytest.raises(OSError, match="No space"):
        cache.create("queue/0", 100)
    assert cache.take_dirty() == ({"queue/0"}, {"queue"})
