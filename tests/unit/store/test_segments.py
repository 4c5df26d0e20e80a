import errno

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tianzhou.base.kinds import PhysicalOffset
from tianzhou.store.errors import StoreDamaged
from tianzhou.store.segments import (
    PAGE,
    PageSums,
    Segment,
    create,
    file_name,
    is_file_name,
    open_all,
)
from tianzhou.testing.sim.disk import SimDisk
from tianzhou.testing.sim.disk_faults import lost

SIZE = 4096
LOG = "log"


@pytest.fixture
def disk() -> SimDisk:
    made = SimDisk()
    made.make_dirs(LOG)
    made.sync_dir("")
    return made


def make(disk: SimDisk, start: int, size: int = SIZE) -> str:
    path = f"{LOG}/{file_name(start)}"
    disk.create(path, size).close()
    return path


def starts(segments: list[Segment]) -> list[int]:
    return [segment.start for segment in segments]


def test_segments_are_named_by_offsets_of_twenty_digits() -> None:
    assert file_name(1073741824) == "00000000001073741824"
    assert is_file_name(file_name(0))
    for wrong in ("0", "0" * 19, "0" * 21, "0" * 19 + "x", "٠" * 20, "-" + "0" * 19):
        assert not is_file_name(wrong), wrong


def test_segments_new_file_survives_a_crash_with_its_blocks(disk: SimDisk) -> None:
    segment = create(disk, LOG, PhysicalOffset(SIZE), size=SIZE, reserve=1024)
    assert (segment.start, segment.reserved) == (SIZE, 1024)
    assert len(segment.read(0, SIZE)) == SIZE
    assert lost(disk)[f"{LOG}/{file_name(SIZE)}"] == bytes(SIZE)
    assert ("reserve", f"{LOG}/{file_name(SIZE)}", 0, 1024) in disk.calls


def test_segments_reserve_no_more_blocks_than_the_file_size(disk: SimDisk) -> None:
    assert create(disk, LOG, PhysicalOffset(0), size=SIZE, reserve=10 * SIZE).reserved == SIZE


@pytest.mark.parametrize("call", [2, 3, 4], ids=["reserve", "sync", "sync_dir"])
def test_segments_failed_create_leaves_no_file(disk: SimDisk, call: int) -> None:
    disk.fail_at(call, errno.ENOSPC)
    with pytest.raises(OSError, match="No space"):
        create(disk, LOG, PhysicalOffset(0), size=SIZE, reserve=1024)
    assert disk.failures == 1
    assert disk.list(LOG) == []


def test_segments_list_files_in_order_without_hidden_ones(disk: SimDisk) -> None:
    for start in (3 * SIZE, 2 * SIZE, 4 * SIZE):
        make(disk, start)
    disk.create(f"{LOG}/.snapshot", 3)
    segments = open_all(disk, LOG, SIZE)
    assert starts(segments) == [2 * SIZE, 3 * SIZE, 4 * SIZE]
    assert {segment.reserved for segment in segments} == {0}, "what is allocated is unknown"


def test_segments_of_an_empty_directory_are_empty(disk: SimDisk) -> None:
    assert open_all(disk, LOG, SIZE) == []
    assert open_all(disk, "nowhere", SIZE) == []


def test_segments_name_unknown_files_and_leave_them(disk: SimDisk) -> None:
    make(disk, 0)
    disk.create(f"{LOG}/core.1234", 3)
    with pytest.raises(StoreDamaged, match=r"core\.1234: is not a commit log file; move it away"):
        open_all(disk, LOG, SIZE)
    assert disk.exists(f"{LOG}/core.1234")


def test_segments_of_another_size_are_recognised_by_their_names(disk: SimDisk) -> None:
    make(disk, SIZE // 2)
    with pytest.raises(StoreDamaged, match="another commit_log_file_bytes"):
        open_all(disk, LOG, SIZE)


def test_segments_gap_is_reported_by_the_missing_file(disk: SimDisk) -> None:
    make(disk, 0)
    make(disk, 2 * SIZE)
    with pytest.raises(StoreDamaged, match=f"{file_name(SIZE)}: is missing") as caught:
        open_all(disk, LOG, SIZE)
    assert caught.value.path == f"{LOG}/{file_name(SIZE)}"


def test_segments_empty_last_file_is_removed_durably(disk: SimDisk) -> None:
    """A crash between creating the file and giving it its length leaves it behind. If it came back
    after recovery had cut the file before it, that file would be short and not the last one."""
    make(disk, 0)
    empty = make(disk, SIZE, 0)
    disk.sync_dir(LOG)
    assert empty in lost(disk)
    assert starts(open_all(disk, LOG, SIZE)) == [0]
    assert disk.list(LOG) == [file_name(0)]
    assert empty not in lost(disk)


def test_segments_short_last_file_is_extended_durably(disk: SimDisk) -> None:
    path = make(disk, 0, 100)
    disk.open(path).pwrite(0, b"kept")
    disk.sync_dir(LOG)
    (segment,) = open_all(disk, LOG, SIZE)
    assert len(segment.read(0, SIZE)) == SIZE
    assert lost(disk)[path] == b"kept".ljust(SIZE, b"\0")


@pytest.mark.parametrize("size", [0, 100, SIZE - 1, SIZE + 1])
def test_segments_short_file_before_the_last_is_rejected(disk: SimDisk, size: int) -> None:
    make(disk, 0, size)
    make(disk, SIZE)
    with pytest.raises(StoreDamaged, match=f"has {size} bytes and should have {SIZE}"):
        open_all(disk, LOG, SIZE)


def test_segments_too_long_last_file_is_not_cut(disk: SimDisk) -> None:
    path = make(disk, 0, SIZE + 1)
    with pytest.raises(StoreDamaged, match=f"has {SIZE + 1} bytes"):
        open_all(disk, LOG, SIZE)
    assert disk.open(path).size() == SIZE + 1


@pytest.mark.parametrize("size", [0, 100])
def test_segments_read_only_repair_nothing(disk: SimDisk, size: int) -> None:
    make(disk, 0, size)
    before = len(disk.calls)
    with pytest.raises(StoreDamaged, match=f"has {size} bytes"):
        open_all(disk, LOG, SIZE, heal=False)
    assert len(disk.calls) == before


# Checksums of pages

FILE = bytes(range(256)) * 80  # five pages


@given(st.integers(0, 2 * PAGE), st.lists(st.integers(1, 2 * PAGE), max_size=6), st.data())
def test_page_sums_detect_changed_bytes(start: int, sizes: list[int], data: st.DataObject) -> None:
    sums, end = PageSums(start), start
    for size in sizes:
        piece = FILE[end : end + size]
        sums.wrote(end, piece)
        end += len(piece)
    first = data.draw(st.integers(0, len(FILE) - 1), label="first")
    last = data.draw(st.integers(first, len(FILE) - 1), label="last")
    is_known = first // PAGE * PAGE >= start and last < end
    around = sums.around(first, last + 1)
    assert (around is not None) == is_known
    if around is None:
        return
    assert around[0] <= first <= last < around[1] <= end
    assert sums.agree(FILE[slice(*around)], around[0])
    changed = bytearray(FILE)
    changed[data.draw(st.integers(first, last), label="changed")] ^= 1
    assert not sums.agree(changed[slice(*around)], around[0])


def test_page_sums_ignore_bytes_after_the_range() -> None:
    sums = PageSums(0)
    sums.wrote(0, FILE[:100])
    assert sums.around(0, 50) == (0, 100)
    assert sums.agree(FILE[:100], 0)
    assert sums.around(0, 101) is None, "beyond what was written"
