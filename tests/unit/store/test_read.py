from pathlib import Path

import pytest
from small_store import FILE_BYTES, KEY, OTHER, bodies_of, open_store, put, read

from tianzhou.base.java import string_hash
from tianzhou.base.kinds import QueueOffset, queue_key
from tianzhou.store.read import SCAN_UNITS_MAX, ReadLimit, ReadStatus
from tianzhou.testing.sim.clock import ManualClock

A, B = {string_hash("a")}, {string_hash("b")}


def test_statuses(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    put(store, b"0", b"1", b"2")

    def look(start: int, key: int = 0) -> tuple[ReadStatus, int]:
        result = store.read(queue_key("orders", key), QueueOffset(start))
        result.release()
        return result.status, result.next_offset

    assert look(0) == (ReadStatus.FOUND, 3)
    assert look(3) == (ReadStatus.OFFSET_OVERFLOW_ONE, 3)
    assert look(4) == (ReadStatus.OFFSET_OVERFLOW_BADLY, 0)
    assert look(-1) == (ReadStatus.OFFSET_TOO_SMALL, 0)
    assert look(0, key=9) == (ReadStatus.NO_MATCHED_LOGIC_QUEUE, 0)
    store.close()


def test_statuses_when_messages_have_expired(tmp_path: Path) -> None:
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


def test_a_limit_of_count_and_of_size(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    put(store, *[b"%d" % n for n in range(10)])
    assert read(store, 2, count=3) == [b"2", b"3", b"4"]
    size = store.log.end // 10
    assert read(store, 0, size=2 * size) == [b"0", b"1"]
    assert read(store, 0, size=2 * size + 1) == [b"0", b"1"]
    assert read(store, 7, size=1) == [b"7"], "one is always given"
    assert read(store, 7, count=2, tags={0}, size=1) == [b"7"]
    store.close()


def test_neighbours_are_one_span_and_files_end_it(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    put(store, *[b"x" * 400] * 12)
    put(store, b"y", key=OTHER)
    put(store, b"z")
    with store.read(KEY, QueueOffset(0)) as result:
        # Twice the end of a file, and the other queue's message in between.
        assert len(result.spans) == 1 + store.log.end // FILE_BYTES + 1
        assert result.count == 13
        assert result.size == sum(map(len, result.spans))
    store.close()


def test_a_filter_gives_matches_and_says_how_far_it_looked(tmp_path: Path) -> None:
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
def test_a_read_looks_at_so_many_units_and_no_more(tmp_path: Path, tags: set[int] | None) -> None:
    store = open_store(tmp_path)
    put(store, *[b""] * (SCAN_UNITS_MAX + 5), tag="a")
    with store.read(KEY, QueueOffset(2), ReadLimit(5000, 1 << 30), tags_codes=tags) as result:
        assert result.count == (SCAN_UNITS_MAX if tags is None else 0)
        assert result.next_offset == SCAN_UNITS_MAX + 2
    store.close()


def test_a_lease_keeps_a_file_until_it_is_given_back(tmp_path: Path) -> None:
    clock = ManualClock()
    store = open_store(tmp_path, clock=clock)
    put(store, *[b"%04d" % n * 100 for n in range(30)])
    clock.advance(hours=2)
    put(store, b"last")
    held = store.read(KEY, QueueOffset(0), ReadLimit(1))
    assert store.clean(by_hand=True) == 0, "the younger ones stay too: the log has no gaps"
    assert bodies_of(held) == [b"0000" * 100]
    held.release()
    held.release()  # twice does no harm
    assert store.clean(by_hand=True) > 0
    assert store.min_offset(KEY) > 0
    store.close()
