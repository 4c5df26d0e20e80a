import errno
import os
from pathlib import Path

import pytest

from tianzhou.base.java import key_hash
from tianzhou.base.kinds import PhysicalOffset
from tianzhou.store.files import RealFiles
from tianzhou.store.key_index import KeyIndex
from tianzhou.testing.sim.clock import ManualClock
from tianzhou.testing.sim.disk import SimDisk

EVER = 1 << 60
NOW = 1_700_000_000_000


def make(directory: Path, clock: ManualClock) -> KeyIndex:
    return KeyIndex(RealFiles(), str(directory), clock, slots=8, entries=11)


def put(index: KeyIndex, count: int, *, first: int = 0) -> None:
    """One key each, a second apart; ten fit into a file."""
    ranks = range(first, first + count)
    index.put(
        [key_hash(f"t#k{rank % 4}") for rank in ranks],
        [1000 * rank for rank in ranks],
        [NOW + 1000 * rank for rank in ranks],
    )


def find(index: KeyIndex, key: str, begin: int = 0, end: int = EVER, count: int = 99) -> list[int]:
    found = index.find("t", key, begin_ms=begin, end_ms=end, count_max=count)
    return [offset // 1000 for offset in found]


def test_key_index_rolls_full_files_and_searches_newest_first(tmp_path: Path) -> None:
    index = make(tmp_path / "index", ManualClock())
    put(index, 35)
    assert [file.count - 1 for file in index.files] == [10, 10, 10, 5]
    assert find(index, "k1") == [33, 29, 25, 21, 17, 13, 9, 5, 1]
    assert find(index, "k1", count=3) == [33, 29, 25]
    assert find(index, "k1", begin=NOW + 13_000, end=NOW + 25_000) == [25, 21, 17, 13]
    assert find(index, "nobody") == []
    index.close()


def test_key_index_new_file_inherits_the_end_until_its_first_entry(tmp_path: Path) -> None:
    index = make(tmp_path / "index", ManualClock())
    put(index, 11)
    first, second = index.files
    assert (second.begin_offset, second.begin_timestamp) == (10_000, NOW + 10_000)
    assert first.end_offset == 9000
    # Its first entry was timed against the end of the last file, as in Java.
    assert second._entries.entry(1)[2] == 1
    index.close()


def test_key_index_file_names_grow_when_the_clock_goes_back(tmp_path: Path) -> None:
    clock = ManualClock()
    index = make(tmp_path / "index", clock)
    put(index, 10)
    clock.jump(-7 * 3_600_000)
    put(index, 10, first=10)
    put(index, 10, first=20)
    names = [file.name for file in index.files]
    assert names == sorted(set(names))
    assert all(len(name) == 17 and name.isdecimal() for name in names)
    index.write_out()
    index.close()
    again = make(tmp_path / "index", clock)
    again.load()
    assert [file.name for file in again.files] == names
    assert find(again, "k0") == [28, 24, 20, 16, 12, 8, 4, 0]
    again.close()


def test_key_index_truncate_removes_newer_files(tmp_path: Path) -> None:
    index = make(tmp_path / "index", ManualClock())
    put(index, 14)
    name, count = index.files[-1].name, index.files[-1].count
    put(index, 16, first=14)
    assert index.cut(name, count)
    assert find(index, "k1") == [13, 9, 5, 1]
    assert not index.cut("20000101000000000", 3)
    assert index.files == []
    assert index.cut("", 1)
    index.close()


def test_key_index_expiry_removes_all_but_the_newest_file(tmp_path: Path) -> None:
    index = make(tmp_path / "index", ManualClock())
    put(index, 25)
    assert index.remove_expired(PhysicalOffset(9000)) == 0
    assert index.remove_expired(PhysicalOffset(9001)) == 1
    assert index.remove_expired(PhysicalOffset(1 << 40)) == 1
    assert len(index.files) == len(list((tmp_path / "index").iterdir())) == 1
    index.close()


def test_key_index_message_with_two_equal_keys_is_found_once(tmp_path: Path) -> None:
    index = make(tmp_path / "index", ManualClock())
    index.put([key_hash("t#k")] * 2, [7000] * 2, [NOW] * 2)
    assert find(index, "k") == [7]
    index.close()


def test_key_index_batch_interrupted_by_a_full_disk_is_not_found_twice() -> None:
    """The batch is put again completely when there is room. Two messages have two keys each."""
    clock, disk = ManualClock(), SimDisk()
    index = KeyIndex(disk, "index", clock, slots=8, entries=11)
    hashes = [key_hash("t#k")] * 24
    offsets = [1000 * (rank // 2) for rank in range(24)]
    times = [NOW] * 24
    tries = 0
    for fail in range(1, 20):  # of the calls that one try makes
        disk.fail_at(fail, errno.ENOSPC)
        try:
            clock.advance(ms=5)
            index.put(hashes, offsets, times)
            break
        except OSError:
            tries += 1
    assert tries > 2
    assert [file.count - 1 for file in index.files] == [10, 10, 4]
    assert disk.list("index") == [file.name for file in index.files], "none is left behind"
    assert find(index, "k") == list(range(11, -1, -1))
    index.close()


def test_key_index_file_without_disk_space_is_closed_and_removed() -> None:
    clock, disk = ManualClock(), SimDisk()
    index = KeyIndex(disk, "index", clock, slots=8, entries=11)
    for _ in range(3):
        clock.advance(ms=5)
        disk.fail_at(2, errno.ENOSPC)  # the blocks of the file, not the file
        with pytest.raises(OSError, match="No space"):
            put(index, 1)
        assert disk.list("index") == []
    put(index, 1)
    assert find(index, "k0") == [0]
    index.close()


def test_key_index_find_skips_a_shortened_file_and_reports_it_once(tmp_path: Path) -> None:
    index = make(tmp_path / "index", ManualClock())
    put(index, 35)
    reported: list[tuple[str, str]] = []
    index.on_damage = lambda path, reason: reported.append((path, reason))
    bad = index.files[1]
    os.truncate(bad.file.path, 40)
    for _ in range(2):
        assert find(index, "k1") == [33, 29, 25, 21, 9, 5, 1]
    assert reported == [(bad.file.path, "was shortened to 40 bytes")]
    assert list(index.damaged) == [bad.name]
    index.close()


def test_key_index_put_after_shortening_continues_in_a_new_file(tmp_path: Path) -> None:
    index = make(tmp_path / "index", ManualClock())
    put(index, 13)
    os.truncate(index.files[-1].file.path, 40)
    put(index, 12, first=13)
    assert find(index, "k1") == [21, 17, 13, 9, 5, 1]
    assert [file.count - 1 for file in index.files] == [10, 3, 10, 2]
    assert list(index.damaged) == [index.files[1].name]
    index.write_out()
    assert os.stat(index.files[1].file.path).st_size == 40, "a damaged file is not written"
    index.close()


def test_key_index_write_out_abandons_a_shortened_file(tmp_path: Path) -> None:
    """A checkpoint must not fail because of a file that the log can replace."""
    index = make(tmp_path / "index", ManualClock())
    put(index, 13)
    os.truncate(index.files[-1].file.path, 40)
    index.write_out()
    assert list(index.damaged) == [index.files[1].name]
    assert os.stat(index.files[1].file.path).st_size == 40, "a damaged file is not written"
    put(index, 4, first=13)
    assert find(index, "k1") == [13, 9, 5, 1]
    index.close()


def test_key_index_keeps_only_slots_of_the_newest_file_in_memory(tmp_path: Path) -> None:
    index = make(tmp_path / "index", ManualClock())
    put(index, 35)
    assert [file._table is not None for file in index.files] == [False, False, False, True]
    index.close()


def test_key_index_holds_every_entry_after_the_clock_went_back(tmp_path: Path) -> None:
    index = make(tmp_path / "index", ManualClock())
    hour_ms = 3_600_000
    timestamps = [NOW + hour_ms * (rank % 3 - 1) for rank in range(35)]
    hashes = [key_hash(f"t#k{rank % 4}") for rank in range(35)]
    index.put(hashes, [1000 * rank for rank in range(35)], timestamps)
    assert all(index.holds(hash_, 1000 * rank) for rank, hash_ in enumerate(hashes))
    assert not index.holds(hashes[0], 1000)
    assert not index.holds(hashes[0], 35_000)
    index.close()
