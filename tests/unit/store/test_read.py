import errno
from collections.abc import Callable
from pathlib import Path

import pytest
from small_store import FILE_BYTES, KEY, OTHER, CalmFiles, bodies_of, open_store, put, read

from tianzhou.base.java import string_hash
from tianzhou.base.kinds import QueueOffset, queue_key
from tianzhou.store.consume_queue import UNIT, UNIT_BYTES
from tianzhou.store.files import RealFile
from tianzhou.store.read import SCAN_UNITS_MAX, ReadLimit, ReadStatus
from tianzhou.store.store import MessageStore
from tianzhou.testing.sim.clock import ManualClock

A, B = {string_hash("a")}, {string_hash("b")}


def test_read_returns_the_status_of_the_offset(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    put(store, b"0", b"1", b"2")

    def look(start: int, key: int = 0) -> tuple[ReadStatus, int]:
        result = store.read(queue_key("orders", key), QueueOffset(start))
        result.release()
        return result.status, result.next_offset

    assert look(0) == (ReadStatus.FOUND, 3)
    assert look(3) == (ReadStatus.OFFSET_OVERFLOW_ONE, 3)
    assert look(4) == (ReadStatus.OFFSET_OVERFLOW_BADLY, 3), "not 0: all would be read again"
    assert look(-1) == (ReadStatus.OFFSET_TOO_SMALL, 0)
    assert look(0, key=9) == (ReadStatus.NO_MATCHED_LOGIC_QUEUE, 0)
    store.close()


def test_read_of_expired_messages_returns_their_status(tmp_path: Path) -> None:
    clock = ManualClock()
    store = open_store(tmp_path, clock=clock)
    put(store, *[b"x" * 500] * 20)
    clock.advance(hours=2)
    put(store, b"last")
    assert store.clean(by_hand=True) > 0
    minimum, end = store.min_offset(KEY), store.max_offset(KEY)
    assert 0 < minimum < end == 21
    result = store.read(KEY, QueueOffset(0))
    assert (result.status, result.next_offset) == (ReadStatus.OFFSET_TOO_SMALL, minimum)
    result = store.read(KEY, QueueOffset(99))
    assert (result.status, result.next_offset) == (ReadStatus.OFFSET_OVERFLOW_BADLY, end)
    assert read(store, minimum)[-1] == b"last"
    store.close()


def test_read_is_limited_in_count_and_size(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    put(store, *[b"%d" % n for n in range(10)])
    assert read(store, 2, count=3) == [b"2", b"3", b"4"]
    size = store.log.end // 10
    assert read(store, 0, size=2 * size) == [b"0", b"1"]
    assert read(store, 0, size=2 * size + 1) == [b"0", b"1"]
    assert read(store, 7, size=1) == [b"7"], "one is always given"
    assert read(store, 7, count=2, tags={0}, size=1) == [b"7"]
    store.close()


def test_read_of_two_files_returns_one_span_for_each(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    put(store, *[b"x" * 400] * 12)
    put(store, b"y", key=OTHER)
    put(store, b"z")
    with store.read(KEY, QueueOffset(0)) as result:
        # One for each file, although the other queue's message stands in between.
        assert len(result.spans) == 1 + store.log.end // FILE_BYTES
        assert result.count == 13
        assert result.size == sum(map(len, result.spans))
    store.close()


def test_read_with_a_filter_returns_matches_and_the_next_offset(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    for n in range(6):
        put(store, b"%d" % n, tag="ab"[n % 2])
    assert read(store, tags=A) == [b"0", b"2", b"4"]
    assert read(store, tags=A | B) == [b"%d" % n for n in range(6)]
    with store.read(KEY, QueueOffset(0), ReadLimit(2), tags_codes=B) as result:
        assert bodies_of(result) == [b"1", b"3"]
        assert result.next_offset == 4, "behind the last one that was given"
    with store.read(KEY, QueueOffset(4), tags_codes=A) as result:
        assert (bodies_of(result), result.next_offset) == ([b"4"], 6)
    with store.read(KEY, QueueOffset(0), tags_codes={12345}) as result:
        assert result.status is ReadStatus.NO_MATCHED_MESSAGE
        assert result.next_offset == 6
    store.close()


@pytest.mark.parametrize("tags", [None, B])
def test_read_examines_a_bounded_number_of_units(tmp_path: Path, tags: set[int] | None) -> None:
    store = open_store(tmp_path)
    put(store, *[b""] * (SCAN_UNITS_MAX + 5), tag="a")
    with store.read(KEY, QueueOffset(2), ReadLimit(5000, 1 << 30), tags_codes=tags) as result:
        assert result.count == (SCAN_UNITS_MAX if tags is None else 0)
        assert result.next_offset == SCAN_UNITS_MAX + 2
    store.close()


def test_read_result_is_valid_after_its_file_is_deleted(tmp_path: Path) -> None:
    clock = ManualClock()
    store = open_store(tmp_path, clock=clock)
    put(store, *[b"%04d" % n * 100 for n in range(30)])
    clock.advance(hours=2)
    put(store, b"last")
    held = store.read(KEY, QueueOffset(0), ReadLimit(1))
    assert store.clean(by_hand=True) > 0
    assert store.min_offset(KEY) > 0
    assert bodies_of(held) == [b"0000" * 100]
    held.release()
    held.release()  # twice does no harm
    assert held.spans == []
    store.close()


class FailingReads(CalmFiles):
    """A disk with pages of the commit log that cannot be read."""

    def __init__(self) -> None:
        self.bad: list[range] = []
        """Physical offsets that give EIO."""

    def open(self, path: str) -> RealFile:
        return self._wrap(super().open(path))

    def create(self, path: str, size: int) -> RealFile:
        return self._wrap(super().create(path, size))

    def _wrap(self, file: RealFile) -> RealFile:
        if "/commitlog/" not in file.path:
            return file
        base, pread = int(file.path.rpartition("/")[2]), file.pread

        def reading(at: int, size: int) -> bytes:
            start, end = base + at, base + at + size
            if any(start < bad.stop and bad.start < end for bad in self.bad):
                raise OSError(errno.EIO, "Input/output error", file.path)
            return pread(at, size)

        return _Shim(file, reading)


class _Shim(RealFile):
    """The same open file, whose reads may fail."""

    __slots__ = ("_pread",)

    def __init__(self, file: RealFile, pread: Callable[[int, int], bytes]) -> None:
        super().__init__(file.path, file._fd)
        self._pread = pread

    def pread(self, at: int, size: int) -> bytes:
        return self._pread(at, size)


@pytest.mark.parametrize("tags", [None, A])
def test_read_of_an_unreadable_page_reports_damage_to_its_records_only(
    tmp_path: Path, tags: set[int] | None
) -> None:
    files = FailingReads()
    store = open_store(tmp_path, files=files)
    put(store, *[b"%04d" % n * 20 for n in range(30)], tag="a")
    places = [store.queues.obtain(KEY).unit(rank) for rank in range(30)]
    bad = places[7]
    files.bad = [range(bad.physical_offset + 10, bad.physical_offset + 20)]
    assert read(store, tags=tags) == [b"%04d" % n * 20 for n in range(30) if n != 7]
    assert store.damaged == {bad.physical_offset}
    assert store.record_at(bad.physical_offset).count == 0
    assert store.offset_by_time(KEY, 0) == 0
    files.bad = []
    assert len(read(store, tags=tags)) == 30, "the disk recovered, and nothing was cut"
    store.close()


def test_start_with_an_unreadable_page_reports_damage_and_keeps_the_log(tmp_path: Path) -> None:
    files = FailingReads()
    store = open_store(tmp_path, files=files)
    put(store, *[b"%04d" % n * 20 for n in range(30)])
    places = [store.queues.obtain(KEY).unit(rank) for rank in range(30)]
    bad = places[12]
    store.flush()
    end = store.log.end
    store.abandon()
    files.bad = [range(bad.physical_offset, bad.physical_offset + 4)]
    store = open_store(tmp_path, files=files)
    (damage,) = store.recovered.damage
    assert damage[:2] == (0, FILE_BYTES), "a page, which is a whole file of these"
    assert "cannot read" in damage.reason
    assert (store.recovered.cut_at, store.log.end) == (None, end)
    second = [rank for rank, place in enumerate(places) if place.physical_offset >= FILE_BYTES]
    assert read(store, start=second[0]) == [b"%04d" % n * 20 for n in second]
    store.close()
    files.bad = []
    store = MessageStore(files, str(tmp_path), store.config, ManualClock(), rebuild=True)
    assert read(store) == [b"%04d" % n * 20 for n in range(30)], "nothing was overwritten"
    store.close()


@pytest.mark.parametrize("unit", [(0, 5, 0), (1, 95, 0), (4090, 91, 0), (-5, 200, 0), (0, -9, 0)])
def test_read_of_a_queue_with_a_wrong_unit_skips_it(
    tmp_path: Path, unit: tuple[int, int, int]
) -> None:
    store = open_store(tmp_path)
    put(store, b"a", b"b" * 3800, b"c")
    queue = store.queues.obtain(KEY)
    queue.write_out()
    (path,) = (tmp_path / "consumequeue/orders/0").iterdir()
    with path.open("r+b") as file:
        file.seek(UNIT_BYTES)
        file.write(UNIT.pack(*unit))
    assert read(store) == [b"a", b"c"]
    store.offset_by_time(KEY, 1 << 50)
    store.close()


@pytest.mark.parametrize("tags", [None, A])
@pytest.mark.parametrize(
    "place",
    [(1 << 60, 200), (-5, 200), (-(1 << 63), 200), (0, 0), (100, -7)],
    ids=["beyond", "before", "long-before", "zero", "size"],
)
def test_read_of_a_unit_without_a_record_skips_and_reports_it(
    tmp_path: Path, tags: set[int] | None, place: tuple[int, int]
) -> None:
    """The queue is damaged and the log is not, but a consumer still misses a message."""
    store = open_store(tmp_path)
    put(store, *[b"%04d" % n * 20 for n in range(60)], tag="a")
    queue = store.queues.obtain(KEY)
    code = queue.unit(50).tags_code
    store.close()
    paths = sorted((tmp_path / "consumequeue" / KEY.topic / str(KEY.queue_id)).iterdir())
    which, at = divmod(50 * UNIT_BYTES, paths[0].stat().st_size)
    with paths[which].open("r+b") as file:
        file.seek(at)
        file.write(UNIT.pack(*place, code))
    store = open_store(tmp_path)
    assert read(store, tags=tags) == [b"%04d" % n * 20 for n in range(60) if n != 50]
    assert store.damaged == {place[0]}
    store.close()
