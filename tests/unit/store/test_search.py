from pathlib import Path

import pytest
from small_store import KEY, bodies_of, chunk, open_store, put

from tianzhou.store.read import ReadStatus
from tianzhou.store.search import Boundary
from tianzhou.store.store import MessageStore
from tianzhou.testing.sim.clock import ManualClock

NOW = 1_700_000_000_000


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(NOW)


def store_of_times(root: Path, clock: ManualClock) -> MessageStore:
    """Stored at NOW + 0, 10, 10, 20."""
    store = open_store(root, clock=clock)
    for step in (0, 10, 0, 10):
        clock.advance(ms=step)
        put(store, b"%d" % (clock.now_ms() - NOW))
    return store


@pytest.mark.parametrize(
    ("after", "lower", "upper"),
    [(-5, 0, 0), (0, 0, 0), (5, 1, 0), (10, 1, 2), (15, 3, 2), (20, 3, 3), (25, 4, 3)],
)
def test_search_by_time_finds_the_message(
    tmp_path: Path, clock: ManualClock, after: int, lower: int, upper: int
) -> None:
    store = store_of_times(tmp_path, clock)
    assert store.offset_by_time(KEY, NOW + after) == lower
    assert store.offset_by_time(KEY, NOW + after, Boundary.UPPER) == upper
    store.close()


def test_search_by_time_before_all_messages_finds_the_first(
    tmp_path: Path, clock: ManualClock
) -> None:
    store = open_store(tmp_path, clock=clock)
    put(store, *[b"x" * 500] * 20)
    clock.advance(hours=2)
    put(store, *[b"y" * 500] * 8)
    store.clean(by_hand=True)
    assert store.min_offset(KEY) > 0
    assert store.offset_by_time(KEY, NOW - 5) == store.min_offset(KEY)
    # Every one is younger, and RocketMQ answers 0 then.
    assert store.offset_by_time(KEY, NOW - 5, Boundary.UPPER) == 0
    store.close()


def test_search_by_key_and_time_finds_messages(tmp_path: Path, clock: ManualClock) -> None:
    store = open_store(tmp_path, clock=clock)
    for n in range(5):
        store.append(chunk(b"%d" % n, keys="k other"))
        clock.advance(ms=400)
    store.dispatch_all()

    def found(key: str, **limits: int) -> list[bytes]:
        with store.find("orders", key, **limits) as result:
            assert (result.status is ReadStatus.FOUND) == bool(result.count)
            return bodies_of(result)

    assert found("k") == [b"4", b"3", b"2", b"1", b"0"]
    assert found("other", count_max=2) == [b"4", b"3"]
    assert found("k", begin_ms=NOW + 400, end_ms=NOW + 1200) == [b"3", b"2", b"1"]
    assert found("k", begin_ms=NOW + 1201, end_ms=NOW + 1599) == []
    assert found("nobody") == []
    store.close()


def test_search_by_offset_finds_a_record_only_at_its_start(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    placed = store.append(chunk(b"one", b"two"))
    store.dispatch_all()
    first, second = placed.physical_offsets()
    for offset, body in ((first, [b"one"]), (second, [b"two"]), (first + 1, []), (1 << 40, [])):
        with store.record_at(offset) as result:
            assert bodies_of(result) == body
    store.close()


def test_search_by_a_key_named_twice_finds_the_message_once(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    store.append(chunk(b"a", b"b", keys="k other k"))
    store.dispatch_all()
    with store.find("orders", "k") as result:
        assert bodies_of(result) == [b"b", b"a"]
    store.close()


def test_search_inside_a_body_reports_no_damage(tmp_path: Path) -> None:
    """A client requests an offset inside a record: not a message, and not damage."""
    store = open_store(tmp_path)
    inner = bytes(chunk(b"inner").data)
    (outer,) = store.append(chunk(inner)).physical_offsets()
    store.dispatch_all()
    with store.record_at(outer) as result:
        at = bytes(result.spans[0]).index(inner)
    with store.record_at(outer + at) as result:
        assert (result.count, result.damaged) == (0, [])
    store.close()
