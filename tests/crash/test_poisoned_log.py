"""Logs poisoned by an earlier version: they open, serve all other records, and report the place."""

from collections.abc import Callable
from pathlib import Path

import pytest
from damaged_store import CONFIG, QUEUES, chunk_of, fast_directory, open_store

from tianzhou.base.kinds import PhysicalOffset, QueueOffset
from tianzhou.record.message import MessageView, decode_all
from tianzhou.store.commit_log import NextOffsets
from tianzhou.store.config import StoreConfig
from tianzhou.store.files import RealFiles
from tianzhou.store.read import ReadLimit
from tianzhou.store.store import MessageStore
from tianzhou.store.verify import Directory, Findings
from tianzhou.testing.poisoned_record import poisoned_record
from tianzhou.testing.sim.clock import ManualClock

FLAGS = (0x10, 0x20, 0x30)
POISON = b"poison"


def poison(store: MessageStore, sys_flag: int, queue_offset: int) -> tuple[int, int]:
    """Write a poisoned record at the end of the log; returns its start and end."""
    start = store.log.end
    data = poisoned_record(
        QUEUES[0],
        POISON,
        sys_flag=sys_flag,
        queue_offset=queue_offset,
        physical_offset=start,
        store_ms=1_700_000_000_000,
        properties=b"UNIQ_KEY\x01BAD\x02KEYS\x01bad\x02",
    )
    store.log.append_raw(data, timestamp=1_700_000_000_000)
    return start, start + len(data)


def all_views(store: MessageStore) -> list[MessageView]:
    found: list[MessageView] = []
    for queue in QUEUES:
        offset = QueueOffset(0)
        while offset < store.max_offset(queue):
            with store.read(queue, offset, ReadLimit(100, 1 << 20)) as read:
                found += [view for span in read.spans for view in decode_all(bytes(span))]
                offset = read.next_offset
    return found


def serials(store: MessageStore) -> list[int]:
    return sorted(int(view.keys[0][1:]) for view in all_views(store))


def verify(root: Path) -> Findings:
    files = RealFiles()
    directory = Directory(files, str(root), CONFIG)
    try:
        return directory.verify(lambda _done, _total: None)
    finally:
        directory.close()


def stop_cleanly(store: MessageStore) -> None:
    store.dispatch_all()
    store.close()


def kill(store: MessageStore) -> None:
    store.abandon()


@pytest.mark.parametrize("stop", [stop_cleanly, kill])
@pytest.mark.parametrize("sys_flag", FLAGS)
@pytest.mark.parametrize("behind", [0, 8, 60])
def test_start_of_a_poisoned_log_serves_everything_else(
    sys_flag: int, behind: int, stop: Callable[[MessageStore], None]
) -> None:
    with fast_directory() as place:
        root = place / "store"
        store = open_store(root)
        store.append(chunk_of(range(8)))
        store.flush()
        start, end = poison(store, sys_flag, queue_offset=2)
        # The old code never got past the poison, so nothing after it was dispatched.
        store._next_offsets = NextOffsets({q: 3 if q == QUEUES[0] else 2 for q in QUEUES})
        if behind:
            store.append(chunk_of(range(8, 8 + behind)))
        store.flush()
        kill(store)

        for is_first in (True, False):  # the second start must accept what the first wrote
            found = verify(root)
            assert [(one.start, one.end) for one in found.damage] == [(start, end)]
            assert "malformed" in found.damage[0].reason
            store = open_store(root)
            assert serials(store) == list(range(8 + behind))
            assert [view.body for view in all_views(store) if view.body == POISON] == []
            reported = [(start, end)] if is_first else []
            assert [(one.start, one.end) for one in store.recovered.malformed] == reported
            assert store.damaged == ({start} if is_first else set())
            assert store.recovered.damage == []
            assert store.recovered.cut_at is None
            assert store.record_at(start).count == 0
            assert store.find("orders", "bad").count == 0
            appended = store.append(chunk_of(range(100, 101)))
            store.dispatch_all()
            assert appended.queue_offsets[0] == store.max_offset(QUEUES[0]) - 1
            store.truncate(PhysicalOffset(appended.physical_offsets()[0]))
            store.begin_writing()
            stop(store)


@pytest.mark.parametrize("sys_flag", FLAGS)
def test_clean_stop_after_poison_needs_no_rebuild(tmp_path: Path, sys_flag: int) -> None:
    store = open_store(tmp_path)
    store.append(chunk_of(range(4)))
    start, _ = poison(store, sys_flag, queue_offset=1)
    store.dispatch_all()
    assert store.damaged == {start}
    store.close()
    store = open_store(tmp_path)
    assert store.recovered.rebuilt == ""
    assert serials(store) == [0, 1, 2, 3]
    store.close()
    assert verify(tmp_path).problems == []


@pytest.mark.parametrize("sys_flag", FLAGS)
def test_slave_replicates_a_poisoned_log_and_serves_the_rest(tmp_path: Path, sys_flag: int) -> None:
    master = open_store(tmp_path / "master")
    master.append(chunk_of(range(4)))
    start, _ = poison(master, sys_flag, queue_offset=1)
    master._next_offsets = NextOffsets({q: 2 if q == QUEUES[0] else 1 for q in QUEUES})
    master.append(chunk_of(range(4, 8)))
    segment = master.log.segment_at(0)
    assert segment is not None
    slave = open_store(tmp_path / "slave")
    reported: list[int] = []
    slave.damage.on_malformed = lambda record: reported.append(record.offset)
    data = (tmp_path / "master/commitlog/00000000000000000000").read_bytes()[: master.log.end]
    assert slave.append_raw(PhysicalOffset(0), data) == master.log.end
    slave.dispatch_all()
    assert reported == [start]
    assert serials(slave) == list(range(8))
    slave.close()
    master.abandon()
    again = open_store(tmp_path / "slave")
    assert serials(again) == list(range(8))
    assert again.damaged == set(), "it was reported before and is not scanned again"
    again.close()


def test_retention_handles_a_file_that_starts_with_poison(tmp_path: Path) -> None:
    """The store time of a poisoned record is meaningless."""
    clock = ManualClock()
    config = StoreConfig(
        commit_log_file_bytes=4096,
        consume_queue_file_bytes=200,
        commit_log_preallocate_bytes=4096,
        index_slots=8,
        index_entries=40,
        retention_hours=1,
        retention_at_hours=(),
    )
    store = MessageStore(RealFiles(), str(tmp_path), config, clock)
    store.append(chunk_of(range(4)))
    store.log._close_file(store.log._segment_for_write(PhysicalOffset(4096)))
    start, _ = poison(store, 0x10, queue_offset=1)
    assert start == 4096
    store.dispatch_all()
    store.flush()
    clock.advance(hours=5)
    assert store.clean(by_hand=True) in (0, 1)
    store.close()
