import errno
import os
import random
from pathlib import Path

import pytest

from tianzhou.store import index_file
from tianzhou.store.errors import StoreDamaged
from tianzhou.store.files import RealFiles
from tianzhou.store.index_file import IndexFile, empty_slots, file_bytes
from tianzhou.testing.sim.disk import SimDisk

SLOTS, ENTRIES = 10, 200
NOW = 1_700_000_000_000
Rows = tuple[list[int], list[int], list[int]]


def begin(path: Path) -> IndexFile:
    file = RealFiles().create(str(path), file_bytes(SLOTS, ENTRIES))
    return IndexFile.begin(
        file, empty_slots(SLOTS), entries=ENTRIES, offset=5, timestamp=NOW - 9000
    )


def rows(count: int, seed: int) -> Rows:
    dice = random.Random(seed)
    hashes = [dice.choice((0, 3, 13, 2**31 - 1, dice.randrange(2**31))) for _ in range(count)]
    times = [NOW + dice.randrange(-5000, 50_000) for _ in range(count)]
    return hashes, [1000 + 100 * rank for rank in range(count)], times


@pytest.mark.parametrize("seed", range(6))
def test_index_file_stores_many_entries_like_single_ones(tmp_path: Path, seed: int) -> None:
    few, many = begin(tmp_path / "few"), begin(tmp_path / "many")
    for first, count in ((0, 60), (60, 1), (61, 130)):
        hashes, offsets, times = (row[first : first + count] for row in rows(199, seed))
        many.put(hashes, offsets, times)
        for rank in range(count):
            few.put(hashes[rank : rank + 1], offsets[rank : rank + 1], times[rank : rank + 1])
    assert few.count == many.count == 192
    for file in (few, many):
        file.write_out()
        file.close()
    assert (tmp_path / "few").read_bytes() == (tmp_path / "many").read_bytes()


def test_index_file_reopened_has_the_same_entries(tmp_path: Path) -> None:
    made = begin(tmp_path / "index")
    made.put(*rows(100, 1))
    wanted = [list(made.find(hash_, 0, 1 << 60)) for hash_ in range(20)]
    header = made.begin_timestamp, made.end_timestamp, made.begin_offset, made.end_offset
    made.write_out()
    made.close()
    again = IndexFile(RealFiles().open(str(tmp_path / "index")), slots=SLOTS, entries=ENTRIES)
    assert [list(again.find(hash_, 0, 1 << 60)) for hash_ in range(20)] == wanted
    assert header == (
        again.begin_timestamp,
        again.end_timestamp,
        again.begin_offset,
        again.end_offset,
    )
    again.close()


def test_index_file_finds_newest_entries_first_within_a_time_range(tmp_path: Path) -> None:
    made = begin(tmp_path / "index")
    times = [NOW, NOW + 1500, NOW + 3999, NOW + 10_000]
    made.put([3, 13, 3, 3], [100, 200, 300, 400], times)
    assert list(made.find(3, 0, 1 << 60)) == [400, 300, 100]
    assert list(made.find(13, 0, 1 << 60)) == [200]  # the same slot, another hash
    assert list(made.find(4, 0, 1 << 60)) == []
    assert list(made.find(3, NOW + 3999, NOW + 3999)) == [300]
    assert list(made.find(3, NOW, NOW)) == [100]
    assert list(made.find(3, NOW + 11_500, 1 << 60)) == []
    assert made.overlaps(NOW + 10_000, 1 << 60)
    assert not made.overlaps(NOW + 10_001, 1 << 60)
    assert not made.overlaps(0, NOW - 1)
    made.close()


def test_index_file_truncate_removes_newer_entries(tmp_path: Path) -> None:
    whole, cut = begin(tmp_path / "whole"), begin(tmp_path / "cut")
    hashes, offsets, times = rows(150, 4)
    whole.put(hashes[:70], offsets[:70], times[:70])
    cut.put(hashes, offsets, times)
    assert cut.cut(71)
    cut.set_end(times[69])
    assert [list(cut.find(h, 0, 1 << 60)) for h in hashes] == [
        list(whole.find(h, 0, 1 << 60)) for h in hashes
    ]
    for wrong in (0, -1, ENTRIES + 1):
        assert not cut.cut(wrong)
    whole.close()
    cut.close()


def test_index_file_chain_that_points_forward_ends(tmp_path: Path) -> None:
    made = begin(tmp_path / "index")
    made.put([3, 3, 3], [100, 200, 300], [NOW] * 3)
    made.write_out()
    at = index_file.HEADER.size + index_file.SLOT.size * SLOTS + index_file.ENTRY.size * 2
    made.file.pwrite(at, index_file.ENTRY.pack(3, 200, 0, 2))  # entry 2 comes after itself
    assert list(made.find(3, 0, 1 << 60)) == [300, 200]
    assert not made.cut(4)
    made.close()


def test_index_file_slot_and_count_out_of_range_find_nothing(tmp_path: Path) -> None:
    made = begin(tmp_path / "index")
    made.put([3], [100], [NOW])
    made.seal()
    made.count = 1 << 30
    at = index_file.HEADER.size + index_file.SLOT.size * 3
    made.file.pwrite(at, index_file.SLOT.pack(1 << 29))
    assert list(made.find(3, 0, 1 << 60)) == []
    made.close()


def test_index_file_copy_with_holes_allocates_its_blocks(tmp_path: Path) -> None:
    """A write into a hole fails on a full disk; a put that reserved its blocks first does not."""
    slots, path = 40_000, tmp_path / "copy"
    with path.open("wb") as file:
        file.write(index_file.HEADER.pack(NOW, NOW, 5, 5, 0, 1))
        file.truncate(file_bytes(slots, ENTRIES))
    copy = IndexFile(RealFiles().open(str(path)), slots=slots, entries=ENTRIES)
    assert path.stat().st_blocks * 512 < 4 * slots, "looking takes none"
    copy.put([3], [100], [NOW])
    assert path.stat().st_blocks * 512 >= 4 * slots
    copy.close()


def test_index_file_of_another_size_is_rejected(tmp_path: Path) -> None:
    file = RealFiles().create(str(tmp_path / "index"), 100)
    with pytest.raises(StoreDamaged, match="has 100 bytes"):
        IndexFile(file, slots=SLOTS, entries=ENTRIES)
    file.close()


def test_index_file_shortened_raises_store_damaged_in_find(tmp_path: Path) -> None:
    made = begin(tmp_path / "index")
    made.put(*rows(100, 1))
    made.seal()
    os.truncate(tmp_path / "index", index_file.HEADER.size)
    with pytest.raises(StoreDamaged, match="was shortened to 40 bytes"):
        list(made.find(3, 0, 1 << 60))
    made.close()


def test_index_file_shortened_raises_in_put_and_adds_nothing(tmp_path: Path) -> None:
    made = begin(tmp_path / "index")
    made.put([3], [100], [NOW])
    os.truncate(tmp_path / "index", file_bytes(SLOTS, 2))
    with pytest.raises(StoreDamaged, match="was shortened"):
        made.put([3], [200], [NOW])
    assert made.count == 2
    assert (tmp_path / "index").stat().st_size == file_bytes(SLOTS, 2)
    made.close()


def entries_on(disk: SimDisk, entries: int) -> IndexFile:
    file = disk.create("index", file_bytes(SLOTS, entries))
    return IndexFile.begin(file, empty_slots(SLOTS), entries=entries, offset=5, timestamp=NOW)


def test_index_file_put_after_a_failed_write_keeps_the_chain() -> None:
    """The slot must not lead to an entry that was never written."""
    disk = SimDisk()
    made = entries_on(disk, 1000)
    for hashes in ([3], [3, 3], [3] * 30):
        fill = 300  # more than gathers in memory: the next put writes it
        made.put([3] * fill, [10_000 * made.count] * fill, [NOW] * fill)
        before, found = made.count, list(made.find(3, 0, 1 << 60))
        offsets = [10_000 * before + rank for rank in range(len(hashes))]
        disk.fail_at(1, errno.EIO)
        with pytest.raises(OSError, match="Input/output"):
            made.put(hashes, offsets, [NOW] * len(hashes))
        assert (made.count, list(made.find(3, 0, 1 << 60))) == (before, found)
        made.put(hashes, offsets, [NOW] * len(hashes))
        assert list(made.find(3, 0, 1 << 60)) == offsets[::-1] + found


def test_index_file_write_out_after_a_failed_write_writes_all_entries() -> None:
    disk = SimDisk()
    made = entries_on(disk, ENTRIES)
    made.put([3] * 50, list(range(1000, 1050)), [NOW] * 50)
    disk.fail_at(1, errno.EIO)
    with pytest.raises(OSError, match="Input/output"):
        made.write_out()
    made.write_out()
    again = IndexFile(disk.open("index"), slots=SLOTS, entries=ENTRIES)
    assert list(again.find(3, 0, 1 << 60)) == list(range(1049, 999, -1))


def test_index_file_put_of_single_entries_writes_a_page_at_a_time() -> None:
    disk = SimDisk()
    made = entries_on(disk, 1000)
    before = len(disk.calls)
    for rank in range(500):
        made.put([3], [1000 + rank], [NOW])
    written = [call.size for call in disk.calls[before:] if call.kind == "pwrite"]
    assert written == [4080, 4080], "204 entries of 20 bytes each; the rest is in memory"
    assert list(made.find(3, 0, 1 << 60)) == list(range(1499, 999, -1))


def test_index_file_shortened_raises_in_write_out_and_stays_short(tmp_path: Path) -> None:
    made = begin(tmp_path / "index")
    made.put([3], [100], [NOW])
    os.truncate(tmp_path / "index", file_bytes(SLOTS, 2))
    with pytest.raises(StoreDamaged, match="was shortened"):
        made.write_out()
    assert (tmp_path / "index").stat().st_size == file_bytes(SLOTS, 2)
    made.close()


@pytest.mark.parametrize("offset", [0, 1000, 1001, 5950, 20_900, 20_901])
def test_index_file_count_below_is_the_first_entry_from_an_offset(
    tmp_path: Path, offset: int
) -> None:
    made = begin(tmp_path / "index")
    hashes, offsets, times = rows(199, 2)
    made.put(hashes, offsets, times)
    assert made.count_below(offset) == 1 + sum(known < offset for known in offsets)
    made.close()
