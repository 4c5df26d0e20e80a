"""A log that follows another: bytes in pieces of any size, and the way back."""

from pathlib import Path

import pytest
from small_store import FILE_BYTES, KEY, OTHER, CalmFiles, chunk, open_store, put, read

from tianzhou.base.kinds import PhysicalOffset
from tianzhou.store.config import FlushMode
from tianzhou.store.errors import RawRefused, StoreFenced
from tianzhou.store.failpoint import arm, disarm
from tianzhou.store.replica_log import whole
from tianzhou.store.store import MessageStore


def log_bytes(store: MessageStore, start: int | None = None) -> bytes:
    """All of a log, from its beginning or an offset."""
    at = store.log.min_offset if start is None else start
    pieces: list[bytes] = []
    while at < store.log.end:
        segment = store.log.segment_at(at)
        assert segment is not None
        end = min(store.log.end, segment.start + FILE_BYTES)
        pieces.append(segment.read(at - segment.start, end - segment.start))
        at = end
    return b"".join(pieces)


def filled(root: Path, count: int = 40) -> MessageStore:
    store = open_store(root)
    for n in range(count):
        store.append(chunk(b"%d " % n * 30, key=KEY if n % 3 else OTHER, keys=f"k{n}", tag="t"))
    store.dispatch_all()
    assert len(store.log.segments) > 1
    return store


def follow(follower: MessageStore, data: bytes, *, step: int) -> None:
    """Bring bytes in pieces, as a stream does."""
    waiting = b""
    for at in range(0, len(data), step):
        waiting += data[at : at + step]
        before = follower.log.end
        end = follower.append_raw(before, waiting)
        waiting = waiting[end - before :]
        follower.dispatch_all()
    assert waiting == b""


@pytest.mark.parametrize("step", [7, 1000, FILE_BYTES, 1 << 20])
def test_replica_has_the_same_bytes_queues_and_keys(tmp_path: Path, step: int) -> None:
    leader, follower = filled(tmp_path / "a"), open_store(tmp_path / "b")
    follow(follower, log_bytes(leader), step=step)
    assert log_bytes(follower) == log_bytes(leader)
    for key in (KEY, OTHER):
        assert read(follower, key=key) == read(leader, key=key)
    with follower.find("orders", "k7") as found:
        assert len(found.spans) == 1
    leader.close()
    follower.close()


def test_replica_promoted_continues_the_queue_offsets(tmp_path: Path) -> None:
    leader, follower = filled(tmp_path / "a"), open_store(tmp_path / "b")
    follow(follower, log_bytes(leader), step=500)
    with pytest.raises(AssertionError, match="log of a replica accepts no messages"):
        follower.append(chunk(b"too early"))
    follower.begin_writing()
    assert list(follower.append(chunk(b"next")).queue_offsets) == [leader.max_offset(KEY)]
    leader.close()
    follower.close()


def test_replica_bytes_survive_a_crash(tmp_path: Path) -> None:
    leader, follower = filled(tmp_path / "a"), open_store(tmp_path / "b", mode=FlushMode.SYNC)
    data = log_bytes(leader)
    end = follower.append_raw(PhysicalOffset(0), data[:5000])
    assert end < 5000  # it ends in the middle of a record, which is not taken
    follower.flush()
    follower.abandon()
    again = open_store(tmp_path / "b")
    assert again.recovered.damage == []
    assert again.log.end == end
    follow(again, data[end:], step=333)
    assert log_bytes(again) == data
    again.close()
    leader.close()


def test_replica_empty_log_starts_where_the_source_does(tmp_path: Path) -> None:
    leader = filled(tmp_path / "a")
    follower = open_store(tmp_path / "b")
    start = leader.log.segments[1].start
    follower.append_raw(start, log_bytes(leader, start))
    follower.dispatch_all()
    assert follower.log.min_offset == start
    assert follower.max_offset(KEY) == leader.max_offset(KEY)
    first = follower.min_offset(KEY)
    assert first > 0
    assert read(follower, first) == read(leader, first)
    follower.close()
    again = open_store(tmp_path / "b")
    assert again.recovered.rebuilt == ""
    assert (again.min_offset(KEY), again.log.min_offset) == (first, start)
    again.close()
    leader.close()


def test_replica_rejects_bytes_that_do_not_fit_and_changes_nothing(tmp_path: Path) -> None:
    leader, follower = filled(tmp_path / "a"), open_store(tmp_path / "b")
    data = log_bytes(leader)
    with pytest.raises(RawRefused, match="do not fit"):
        follower.append_raw(PhysicalOffset(17), data[17:])
    torn = bytearray(data[:2000])
    torn[300] ^= 1
    with pytest.raises(RawRefused, match="is damaged: its checksum fails"):
        follower.append_raw(PhysicalOffset(0), torn)
    with pytest.raises(RawRefused, match="no record starts"):
        follower.append_raw(PhysicalOffset(0), b"garbage " * 10)
    with pytest.raises(RawRefused, match="belongs elsewhere"):
        follower.append_raw(PhysicalOffset(FILE_BYTES), data[:2000])
    with pytest.raises(RawRefused, match="equal files"):
        whole(memoryview(data), offset=0, file_bytes=FILE_BYTES * 2)
    assert follower.log.end in (0, FILE_BYTES)
    follower.close()
    leader.close()


def test_replica_shows_nothing_beyond_the_bound(tmp_path: Path) -> None:
    leader, follower = filled(tmp_path / "a"), open_store(tmp_path / "b")
    data = log_bytes(leader)
    bound = whole(memoryview(data)[:3000], offset=0, file_bytes=FILE_BYTES).size
    follower.limit_visible(lambda: PhysicalOffset(bound))
    follower.append_raw(PhysicalOffset(0), data)
    follower.dispatch_all()
    assert follower.watermarks.dispatched == bound
    assert 0 < follower.max_offset(KEY) < leader.max_offset(KEY)
    follower.flush()
    follower.abandon()
    again = MessageStore(
        CalmFiles(),
        str(tmp_path / "b"),
        follower.config,
        leader._clock,
        visible=PhysicalOffset(bound),
    )
    assert (again.watermarks.dispatched, again.log.end) == (bound, len(data))
    assert not again.is_writing
    again.dispatch_all()
    again.begin_writing()
    assert read(again) == read(leader)
    again.close()
    leader.close()


@pytest.mark.parametrize("thread", [False, True])
@pytest.mark.parametrize("keep", [0, 1, 9, 10, 11, 25, 40])
def test_truncate_removes_log_queues_and_keys(tmp_path: Path, keep: int, thread: bool) -> None:
    store = open_store(tmp_path / "a")
    if thread:
        store.start()
    ends = [store.log.end]
    for n in range(40):
        put(store, b"%d " % n * 30)
        ends.append(store.log.end)
    bodies = read(store)
    store.flush()
    store.checkpoint()
    store.truncate(ends[keep])
    assert store.watermarks[1:] == (ends[keep], ends[keep], ends[keep])
    assert read(store) == bodies[:keep]
    store.begin_writing()
    assert list(store.append(chunk(b"instead")).queue_offsets) == [keep]
    store.dispatch_all()
    assert read(store) == [*bodies[:keep], b"instead"]
    store.close()
    again = open_store(tmp_path / "a")
    assert (again.recovered.rebuilt, again.recovered.damage) == ("", [])
    assert read(again) == [*bodies[:keep], b"instead"]
    again.close()


def test_truncate_removes_keys(tmp_path: Path) -> None:
    store = filled(tmp_path / "a", 60)
    with store.find("orders", "k20") as found:
        (at,) = [PhysicalOffset(int.from_bytes(span[28:36])) for span in found.spans]
    store.truncate(at)
    for n in range(60):
        with store.find("orders", f"k{n}") as found:
            assert len(found.spans) == (n < 20)
    store.close()
    again = open_store(tmp_path / "a")
    assert again.recovered.rebuilt == ""
    again.close()


def test_truncate_inside_a_record_is_rejected(tmp_path: Path) -> None:
    store = filled(tmp_path / "a")
    end = store.log.end
    for offset in (17, end + 1, end - 1):
        with pytest.raises(RawRefused):
            store.truncate(PhysicalOffset(offset))
    assert store.log.end == end
    store.close()


@pytest.mark.parametrize("point", ["rewind.before_cut", "rewind.after_cut"])
def test_truncate_crash_leaves_the_old_or_the_new_end(tmp_path: Path, point: str) -> None:
    store = filled(tmp_path / "a")
    cut, end = store.log.segments[1].start, store.log.end
    store.flush()
    store.checkpoint()

    def crash() -> None:
        raise OSError(5, "the machine stops here")

    arm(point, crash)
    with pytest.raises(StoreFenced):
        store.truncate(cut)
    disarm()
    store.abandon()
    again = open_store(tmp_path / "a")
    assert again.recovered.damage == []
    assert again.log.end == (end if point == "rewind.before_cut" else cut)
    again.truncate(cut)
    assert again.log.end == cut
    assert log_bytes(again) == log_bytes(again)[:cut]
    again.close()


def test_begin_again_moves_the_start_of_the_log(tmp_path: Path) -> None:
    leader, late = filled(tmp_path / "a", 80), open_store(tmp_path / "b")
    follow(late, log_bytes(leader)[:3000][: late_size(leader)], step=999)
    start = leader.log.segments[3].start
    late.begin_again(start)
    assert late.max_offset(KEY) == 0
    late.append_raw(start, log_bytes(leader, start))
    late.dispatch_all()
    assert late.max_offset(KEY) == leader.max_offset(KEY)
    assert read(late, late.min_offset(KEY)) == read(leader, late.min_offset(KEY))
    late.close()
    again = open_store(tmp_path / "b")
    assert (again.recovered.rebuilt, again.recovered.damage) == ("", [])
    again.close()
    leader.close()


def late_size(leader: MessageStore) -> int:
    return whole(memoryview(log_bytes(leader))[:3000], offset=0, file_bytes=FILE_BYTES).size
