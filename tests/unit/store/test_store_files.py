import errno
import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tianzhou.store.errors import StoreLocked
from tianzhou.store.files import ReadOnlyFiles, RealFiles, Usage


def test_file_write_at_an_offset_is_visible_in_the_view(tmp_path: Path) -> None:
    file = RealFiles().create(str(tmp_path / "a"), 100)
    view = file.view()
    file.pwrite(10, b"hello")
    assert bytes(view[9:16]) == b"\0hello\0"
    assert file.pread(10, 5) == b"hello"
    assert file.pread(98, 10) == b"\0\0"
    assert file.size() == 100
    view.release()
    file.close()
    file.close()  # twice does no harm


def test_file_view_is_valid_after_the_file_is_closed(tmp_path: Path) -> None:
    file = RealFiles().create(str(tmp_path / "a"), 100)
    file.pwrite(0, b"x" * 100)
    view = file.view()
    file.close()
    (tmp_path / "a").unlink()
    assert bytes(view) == b"x" * 100
    view.release()


def test_reserve_allocates_blocks_and_keeps_the_bytes(tmp_path: Path) -> None:
    file = RealFiles().create(str(tmp_path / "a"), 1 << 20)
    file.pwrite(0, b"kept")
    before = os.stat(tmp_path / "a").st_blocks
    file.reserve(0, 1 << 20)
    assert os.stat(tmp_path / "a").st_blocks > before
    assert file.pread(0, 4) == b"kept"
    assert file.size() == 1 << 20
    file.close()


def test_files_create_list_rename_and_remove_names(tmp_path: Path) -> None:
    files = RealFiles()
    root = str(tmp_path / "x" / "y")
    assert files.list(root) == []
    files.make_dirs(root)
    files.make_dirs(root)
    for name in ("b", "a"):
        files.create(f"{root}/{name}", 0).close()
    assert files.list(root) == ["a", "b"]
    files.rename(f"{root}/a", f"{root}/b")
    assert files.list(root) == ["b"]
    files.remove(f"{root}/b")
    files.sync_dir(root)
    files.remove_dir(root)
    assert not files.exists(root)


def test_create_truncates_an_existing_file(tmp_path: Path) -> None:
    files = RealFiles()
    path = str(tmp_path / "a")
    file = files.create(path, 10)
    file.pwrite(0, b"x")
    file.close()
    file = files.create(path, 10)
    assert file.pread(0, 10) == bytes(10)
    file.truncate(3)
    assert file.size() == 3
    file.close()


def test_usage_has_the_used_ratio_of_the_disk(tmp_path: Path) -> None:
    assert 0 <= RealFiles().usage(str(tmp_path)).used_ratio <= 1
    assert Usage(200, 50).used_ratio == 0.75
    assert Usage(0, 0).used_ratio == 1.0


def test_open_missing_file_raises_oserror(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        RealFiles().open(str(tmp_path / "nobody"))


def test_lock_excludes_other_owners_in_the_same_process(tmp_path: Path) -> None:
    """The system lets a process lock again what it has locked, and then unlocks both at once."""
    path, other = str(tmp_path / "lock"), tmp_path / "other"
    held = RealFiles().lock(path)
    other.symlink_to(tmp_path, target_is_directory=True)
    for name in (path, str(other / "lock")):
        with pytest.raises(StoreLocked, match="this very process"):
            RealFiles().lock(name)
    assert _is_locked(path), "trying has unlocked it"
    held.close()
    assert not _is_locked(path)
    RealFiles().lock(path).close()


def _is_locked(path: str, kind: str = "RealFiles") -> bool:
    """Whether another process could not lock it."""
    script = f"import sys; from tianzhou.store.files import {kind}; {kind}().lock(sys.argv[1])"
    done = subprocess.run([sys.executable, "-c", script, path], capture_output=True, text=True)
    assert done.returncode == 0 or "locked by another process" in done.stderr
    return done.returncode != 0


def test_lock_without_file_system_support_is_not_reported_as_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "lockf", refuse)
    with pytest.raises(OSError, match="No locks available"):
        RealFiles().lock(str(tmp_path / "lock"))


def test_file_short_write_is_continued_where_it_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, taken = os.pwrite, 3

    def short(fd: int, data: bytes | memoryview, at: int) -> int:
        return whole(fd, bytes(data)[:taken], at)

    file = RealFiles().create(str(tmp_path / "a"), 20)
    monkeypatch.setattr(os, "pwrite", short)
    file.pwrite(5, bytearray(b"0123456789"))
    assert file.pread(0, 20) == bytes(5) + b"0123456789" + bytes(5)
    taken = 0
    with pytest.raises(OSError, match="took no more bytes"):
        file.pwrite(0, b"x")
    file.close()


def test_read_only_lock_forbids_changes_and_excludes_writers(tmp_path: Path) -> None:
    path, lock = str(tmp_path / "a"), str(tmp_path / "lock")
    RealFiles().create(path, 10).close()
    file = ReadOnlyFiles().open(path)
    assert file.writable().readonly
    with pytest.raises(OSError, match="Bad file descriptor"):
        file.pwrite(0, b"x")
    file.close()
    with pytest.raises(FileNotFoundError):
        ReadOnlyFiles().lock(lock)
    RealFiles().lock(lock).close()
    held = ReadOnlyFiles().lock(lock)
    assert _is_locked(lock)
    assert not _is_locked(lock, "ReadOnlyFiles"), "several may look"
    held.close()
    held = RealFiles().lock(lock)
    assert _is_locked(lock, "ReadOnlyFiles")
    held.close()
