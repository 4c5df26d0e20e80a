"""No bytes in a log make a reader fail: it returns messages, or reports the damage."""

import contextlib
from collections.abc import Iterator
from typing import Final

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from malformed_records import mutated_chunks

from tianzhou.base.kinds import PhysicalOffset, QueueOffset, queue_key
from tianzhou.record.errors import RecordDamaged
from tianzhou.record.layout import RECORD_BYTES_MIN
from tianzhou.record.message import MessageView
from tianzhou.record.walk import are_vouched_for, first_unsound, is_sound, walk
from tianzhou.store.checkpoint import Checkpoint, CheckpointFile
from tianzhou.store.config import StoreConfig
from tianzhou.store.derive import (
    Derived,
    derive,
    derive_by_shape,
    derive_plainly,
    facts_of,
    last_store_time,
    store_time_of,
)
from tianzhou.store.errors import RawRefused
from tianzhou.store.read import ReadLimit
from tianzhou.store.replica_log import whole
from tianzhou.store.search import Boundary
from tianzhou.store.store import MessageStore
from tianzhou.store.verify import Directory
from tianzhou.testing.sim.clock import ManualClock
from tianzhou.testing.sim.disk import SimDisk

FILE_BYTES: Final = 1 << 16
CONFIG: Final = StoreConfig(
    commit_log_file_bytes=FILE_BYTES,
    consume_queue_file_bytes=20 * 16,
    commit_log_preallocate_bytes=4096,
    index_slots=16,
    index_entries=4096,
    retention_at_hours=(),
)
LOG: Final = "store/commitlog/00000000000000000000"
DELAYS_MS: Final = (1000, 5000)
RAW: Final = st.binary(max_size=400)
Mutated = tuple[bytearray, list[int], list[int]]

examples = settings(
    deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)


def plain(derived: Derived) -> tuple[object, ...]:
    keys = zip(derived.key_hashes, derived.key_offsets, derived.key_timestamps, strict=True)
    return (
        sorted((run.queue, run.first, run.units) for run in derived.runs),
        [tuple(map(int, key)) for key in keys],
        derived.last_timestamp,
        list(derived.malformed),
    )


@examples
@given(mutated_chunks(), st.integers(0, 1 << 40))
def test_derive_of_any_records_lists_malformed_ones_by_both_algorithms(
    made: Mutated, base: int
) -> None:
    data, starts, ends = made
    at = PhysicalOffset(base)
    slow = derive_plainly(data, starts, ends[-1], base=at, delays_ms=DELAYS_MS)
    fast = derive_by_shape(data, starts, ends[-1], base=at, delays_ms=DELAYS_MS)
    assert by_rank(fast) == by_rank(slow)
    assert plain(fast)[1:] == plain(slow)[1:]
    derive(data, starts, ends[-1], base=at, delays_ms=DELAYS_MS)
    bad = {one.offset - base for one in slow.malformed}
    for start, end in zip(starts, ends, strict=True):
        try:
            facts_of(data, start, end, DELAYS_MS)
        except RecordDamaged:
            assert start in bad
        else:
            assert start not in bad
    store_time_of(data, starts[-1])
    last_store_time(data, starts, ends[-1])


def by_rank(derived: Derived) -> dict[tuple[object, int], bytes]:
    """Units by queue and offset: two records may claim one, and then the order of runs differs."""
    found: dict[tuple[object, int], bytes] = {}
    for run in derived.runs:
        for rank in range(len(run.units) // 20):
            key = (run.queue, run.first + rank)
            found[key] = min(found.get(key, b"\xff"), run.units[rank * 20 : rank * 20 + 20])
    return found


@examples
@given(RAW | mutated_chunks().map(lambda made: bytes(made[0])), st.integers(0, 1 << 40))
def test_walk_and_checks_of_any_bytes_raise_nothing(data: bytes, base: int) -> None:
    found = walk(data, 0, len(data))
    first_unsound(data, found.starts, found.end, base=base)
    ends = [*found.starts[1:], found.end]
    places = [base + start for start in found.starts]
    are_vouched_for(data, found.starts, ends if found.starts else [], places=places)
    for start, end in zip(found.starts, ends, strict=bool(found.starts)):
        is_sound(data, start, end, base=base)
        show(data, start)
    for start in range(0, len(data), 7):
        show(data, start)
        is_sound(data, start, len(data), base=base)
    with contextlib.suppress(RawRefused):
        whole(memoryview(data), offset=base, file_bytes=FILE_BYTES)


def show(data: bytes, start: int) -> None:
    try:
        view = MessageView(data, start)
    except RecordDamaged:
        return
    assert repr(view)
    assert view.properties is not None
    _ = (view.topic, view.keys, view.tags, view.born_host, view.store_host, view.stored_body)
    _ = (view.offset_id, view.message_id, view.store_timestamp, view.prepared_offset)


def disk_with(data: bytes, *, flushed: int) -> SimDisk:
    """A directory whose log starts with these bytes, some of them before the checkpoint."""
    disk = SimDisk()
    disk.make_dirs("store/commitlog")
    disk.create(LOG, FILE_BYTES).pwrite(0, data)
    checkpoint = CheckpointFile(disk, "store/checkpoint")
    checkpoint.write(Checkpoint(exact=True, flushed=flushed), sync=True)
    checkpoint.close()
    return disk


def use(store: MessageStore) -> Iterator[int]:
    """Use every way to read; returns the places that were returned."""
    store.dispatch_all()
    for queue in list(store.queues):
        for tags in (None, {0, 1}):
            offset = QueueOffset(queue.min_offset)
            while offset < queue.end:
                limit = ReadLimit(100, 1 << 20)
                with store.read(queue.key, offset, limit, tags_codes=tags) as found:
                    for span in found.spans:
                        yield MessageView(bytes(span)).physical_offset
                    assert found.next_offset > offset
                    offset = found.next_offset
        for boundary in Boundary:
            store.offset_by_time(queue.key, 1_700_000_000_000, boundary)
        for rank in range(queue.first, min(queue.end, queue.first + 5)):
            store.record_at(queue.unit(rank).physical_offset).release()
    for key in ("a", "12", "b"):
        store.find("orders", key).release()
    store.clean(by_hand=True)


@examples
@given(
    RAW | mutated_chunks().map(lambda made: bytes(made[0])[: FILE_BYTES - 8]),
    st.sampled_from([0, 500, FILE_BYTES]),
    st.booleans(),
)
def test_start_with_any_log_serves_or_reports_and_verify_agrees(
    data: bytes, flushed: int, is_cut: bool
) -> None:
    data = data[: len(data) * 2 // 3] if is_cut else data
    disk = disk_with(data, flushed=flushed)
    directory = Directory(disk, "store", CONFIG)
    directory.verify(lambda _done, _total: None)
    directory.close()
    clock = ManualClock()
    for rebuild in (False, False, True):
        store = MessageStore(disk, "store", CONFIG, clock, rebuild=rebuild, is_repaired=True)
        served = list(use(store))
        bad = [(one.start, one.end) for one in store.recovered.damage + store.recovered.malformed]
        assert not [at for at in served if any(start <= at < end for start, end in bad)]
        store.close()
        directory = Directory(disk, "store", CONFIG)
        found = directory.verify(lambda _done, _total: None)
        directory.close()
        assert found.problems == []


@examples
@given(mutated_chunks().map(lambda made: bytes(made[0])[: FILE_BYTES - 8]))
def test_replica_accepts_or_rejects_any_bytes(data: bytes) -> None:
    store = MessageStore(SimDisk(), "store", CONFIG, ManualClock())
    with contextlib.suppress(RawRefused):
        store.append_raw(PhysicalOffset(0), data)
    list(use(store))
    store.close()


def test_smallest_record_has_no_room_for_long_hosts() -> None:
    """The case that led to this file: a flag that claims more bytes than there are."""
    data = bytearray(RECORD_BYTES_MIN)
    data[39] = 0x30
    derived = derive_plainly(
        data, [0], RECORD_BYTES_MIN, base=PhysicalOffset(0), delays_ms=DELAYS_MS
    )
    assert "hosts" in derived.malformed[0].reason
    assert queue_key("orders", 0) not in [run.queue for run in derived.runs]
