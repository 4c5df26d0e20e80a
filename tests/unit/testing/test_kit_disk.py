"""The disk of a test broker."""

import errno
from pathlib import Path

import pytest

from tianzhou.testing.kit.disk import KitDisk


def test_kit_disk_writes_real_files(tmp_path: Path) -> None:
    disk, path = KitDisk(), str(tmp_path / "a")
    file = disk.create(path, 16)
    file.reserve(0, 16)
    file.pwrite(4, b"abcd")
    file.sync()
    assert (file.size(), file.pread(4, 4), file.next_data(0)) == (16, b"abcd", 0)
    view = file.view()
    assert bytes(view[4:8]) == b"abcd"
    view.release()
    file.close()
    assert disk.exists(path)
    disk.rename(path, f"{path}b")
    assert disk.list(str(tmp_path)) == ["ab"]
    again = disk.open(f"{path}b")
    again.truncate(8)
    assert again.size() == 8
    writable = again.writable()
    writable[0:1] = b"z"
    assert again.pread(0, 1) == b"z"
    writable.release()
    again.close()
    disk.remove(f"{path}b")
    disk.make_dirs(f"{path}/c")
    disk.sync_dir(path)
    disk.remove_dir(f"{path}/c")
    assert disk.list(path) == []


def test_full_kit_disk_keeps_its_files_and_rejects_writes(tmp_path: Path) -> None:
    disk, path = KitDisk(), str(tmp_path / "a")
    file = disk.create(path, 16)
    disk.is_full = True
    file.pwrite(0, b"old room")
    for more in (lambda: file.reserve(8, 16), lambda: disk.create(str(tmp_path / "b"), 1)):
        with pytest.raises(OSError, match="No space left") as caught:
            more()
        assert caught.value.errno == errno.ENOSPC
    assert disk.usage(str(tmp_path)).used_ratio == 1
    disk.is_full = False
    file.reserve(8, 16)
    assert disk.usage(str(tmp_path)).used_ratio == 0
    file.close()


def test_kit_disk_locks_directories(tmp_path: Path) -> None:
    lock = KitDisk().lock(str(tmp_path / "lock"))
    assert (tmp_path / "lock").exists()
    lock.close()
