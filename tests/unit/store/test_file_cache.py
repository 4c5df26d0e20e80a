from pathlib import Path

from tianzhou.store.file_cache import FileCache
from tianzhou.store.files import RealFiles


def test_file_cache_keeps_a_bounded_number_of_files_open(tmp_path: Path) -> None:
    cache = FileCache(RealFiles(), 2)
    paths = [str(tmp_path / name) for name in "abc"]
    first, second, third = (cache.create(path, 10) for path in paths)
    third.pwrite(0, b"x")
    second.pwrite(0, b"x")
    assert first is not cache.get(paths[0])  # it was closed, and is opened again
    assert cache.get(paths[2]) is third
    cache.close()


def test_file_cache_keeps_the_most_recently_used_file(tmp_path: Path) -> None:
    cache = FileCache(RealFiles(), 2)
    a, b, c = (str(tmp_path / name) for name in "abc")
    kept = cache.create(a, 10)
    cache.create(b, 10)
    assert cache.get(a) is kept
    cache.create(c, 10)
    assert cache.get(a) is kept
    cache.close()


def test_file_cache_returns_dirty_files_once(tmp_path: Path) -> None:
    cache = FileCache(RealFiles(), 2)
    a, b = str(tmp_path / "a"), str(tmp_path / "b")
    cache.create(a, 10)
    cache.create(b, 10)
    cache.drop(b)
    assert cache.take_dirty() == ({a}, {str(tmp_path)})
    assert cache.take_dirty() == (set(), set())
    cache.close()
