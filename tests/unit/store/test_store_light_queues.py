"""Light queues in a store: assigned at append, derived from the log, counted and expired."""

from collections.abc import Sequence

import pytest
from small_store import chunk, put

from tianzhou.base.kinds import PhysicalOffset, QueueKey, QueueOffset, queue_key
from tianzhou.record.chunk import Entry, build
from tianzhou.record.light_queues import OFFSETS_BEGIN, with_room
from tianzhou.record.message import decode_all
from tianzhou.store.commit_log import NextOffsets
from tianzhou.store.config import StoreConfig
from tianzhou.store.consume_queue import UNIT
from tianzhou.store.derive import derive_by_shape, derive_plainly
from tianzhou.store.read import ReadLimit, ReadStatus
from tianzhou.store.store import MessageStore
from tianzhou.store.verify import Directory
from tianzhou.testing.sim.clock import ManualClock
from tianzhou.testing.sim.disk import SimDisk

ROOT = "data/store"
CONFIG = StoreConfig(
    commit_log_file_bytes=4096,
    consume_queue_file_bytes=200,
    commit_log_preallocate_bytes=4096,
    index_slots=7,
    index_entries=60,
    retention_hours=1,
    retention_at_hours=(),
)
ORDERS = queue_key("orders", 0)
A, B = queue_key("%LMQ%a", 0), queue_key("%LMQ%b", 0)


def open_store(disk: SimDisk, clock: ManualClock, *, rebuild: bool = False) -> MessageStore:
    return MessageStore(disk, ROOT, CONFIG, clock, rebuild=rebuild)


def entry(body: bytes, *queues: QueueKey, text: bytes = b"", key: QueueKey = ORDERS) -> Entry:
    return Entry(key, body, with_room(text, [queue.topic.encode() for queue in queues]))


def send(store: MessageStore, *entries: Entry) -> None:
    store.append(build(entries, store_host=bytes(8), record_crc=True))
    store.dispatch_all()


def bodies(
    store: MessageStore, queue: QueueKey, start: int = 0, tags: Sequence[int] | None = None
) -> list[bytes]:
    with store.read(queue, QueueOffset(start), ReadLimit(800), tags_codes=tags) as found:
        return [view.body for span in found.spans for view in decode_all(span)]


def test_message_is_stored_once_and_read_from_every_light_queue() -> None:
    store = open_store(SimDisk(), ManualClock())
    send(store, entry(b"1", A), entry(b"2", A, B), Entry(ORDERS, b"3"), entry(b"4", B))
    assert bodies(store, ORDERS) == [b"1", b"2", b"3", b"4"]
    assert bodies(store, A) == [b"1", b"2"]
    assert bodies(store, B) == [b"2", b"4"]
    assert bodies(store, B, 1) == [b"4"]
    records = [
        view
        for body in (store.read(ORDERS, QueueOffset(0), ReadLimit(9)),)
        for span in body.spans
        for view in decode_all(span)
    ]
    assert [dict(view.light_queues) for view in records] == [
        {"%LMQ%a": 0},
        {"%LMQ%a": 1, "%LMQ%b": 0},
        {},
        {"%LMQ%b": 1},
    ]


def test_light_queue_is_filtered_by_tag() -> None:
    store = open_store(SimDisk(), ManualClock())
    text = b"TAGS\x01x\x02"
    send(store, entry(b"1", A, text=text), entry(b"2", A))
    assert bodies(store, A, tags=[ord("x")]) == [b"1"]


@pytest.mark.parametrize("count", [3, 60])
def test_offsets_in_light_queues_continue_after_a_restart(count: int) -> None:
    disk, clock = SimDisk(), ManualClock()
    store = open_store(disk, clock)
    send(store, *[entry(b"%d" % n, A) for n in range(count)])
    store.close()
    store = open_store(disk, clock)
    send(store, entry(b"next", A))
    assert store.max_offset(A) == count + 1
    assert bodies(store, A, count) == [b"next"]


def test_rebuild_derives_the_same_light_queues() -> None:
    disk, clock = SimDisk(), ManualClock()
    store = open_store(disk, clock)
    for number in range(40):
        send(store, entry(b"%d" % number, *((A,), (A, B), ())[number % 3]))
    wanted = [bodies(store, queue) for queue in (ORDERS, A, B)]
    store.close()
    store = open_store(disk, clock, rebuild=True)
    assert store.recovered.rebuilt
    assert [bodies(store, queue) for queue in (ORDERS, A, B)] == wanted


def test_start_after_a_kill_derives_light_queues_that_were_not_written() -> None:
    disk, clock = SimDisk(), ManualClock()
    store = open_store(disk, clock)
    send(store, entry(b"1", A, B))
    disk.kill()
    store = open_store(disk, clock)
    assert bodies(store, A) == bodies(store, B) == [b"1"]


def test_truncation_removes_units_of_light_queues() -> None:
    store = open_store(SimDisk(), ManualClock())
    send(store, entry(b"1", A))
    end = store.log.end
    send(store, entry(b"2", A, B))
    store.truncate(end)
    store.dispatch_all()
    store.begin_writing()
    assert (store.max_offset(A), store.max_offset(B)) == (1, 0)
    send(store, entry(b"3", A))
    assert bodies(store, A) == [b"1", b"3"]


def test_replica_derives_the_light_queues_of_its_master() -> None:
    master, replica = (open_store(SimDisk(), ManualClock()) for _ in range(2))
    for number in range(30):
        send(master, entry(b"%d" % number, A, *((B,) if number % 2 else ())))
    segment = master.log.segments[0]
    replica.append_raw(PhysicalOffset(0), segment.read(0, segment.file.size()))
    replica.dispatch_all()
    for queue in (A, B):
        count = replica.max_offset(queue)
        assert bodies(replica, queue) == bodies(master, queue)[:count] != []


def test_deleted_parent_topic_keeps_its_messages_in_light_queues() -> None:
    """As in RocketMQ: they disappear when the log expires, or with their light queue."""
    disk, clock = SimDisk(), ManualClock()
    store = open_store(disk, clock)
    send(store, entry(b"1", A))
    store.delete_topic("orders")
    assert bodies(store, ORDERS) == []
    assert bodies(store, A) == [b"1"]
    store.close()
    store = open_store(disk, clock, rebuild=True)
    assert bodies(store, A) == [b"1"]


def test_deleted_light_queue_restarts_at_0_and_stays_deleted() -> None:
    disk, clock = SimDisk(), ManualClock()
    store = open_store(disk, clock)
    send(store, entry(b"1", A, B))
    store.delete_topic(A.topic)
    assert bodies(store, A) == []
    assert store.light_queue_count == 1
    send(store, entry(b"2", A))
    assert bodies(store, A) == [b"2"]
    store.close()
    store = open_store(disk, clock, rebuild=True)
    assert bodies(store, A) == [b"2"]
    assert bodies(store, ORDERS) == [b"1", b"2"]


def fill(store: MessageStore) -> None:
    """Several files of the log without messages of light queues."""
    for _ in range(12):
        put(store, bytes(1000), key=ORDERS)


def expire(store: MessageStore, clock: ManualClock) -> None:
    clock.advance(ms=2 * 3_600_000)
    put(store, b"young", key=ORDERS)
    store.clean(by_hand=True, wait=True)
    store.checkpoint(whole=True)


def test_light_queue_disappears_when_its_messages_have_expired() -> None:
    disk, clock = SimDisk(), ManualClock()
    store = open_store(disk, clock)
    gone: list[str] = []
    store.when_light_queue_expires(gone.append)
    send(store, entry(b"1", A))
    fill(store)
    send(store, entry(b"2", B))
    expire(store, clock)
    assert gone == [A.topic]
    assert store.queues.get(A) is None
    assert store.light_queue_count == 1
    assert not disk.exists(f"{ROOT}/consumequeue/{A.topic}")
    send(store, entry(b"3", A))
    assert bodies(store, A) == [b"3"]
    store.close()
    store = open_store(disk, clock)
    assert not store.recovered.rebuilt
    assert bodies(store, A) == [b"3"]


def test_expired_light_queue_keeps_its_offset_while_a_message_of_it_is_not_visible() -> None:
    clock = ManualClock()
    store = open_store(SimDisk(), clock)
    gone: list[str] = []
    store.when_light_queue_expires(gone.append)
    send(store, entry(b"1", A))
    fill(store)
    clock.advance(ms=2 * 3_600_000)
    store.append(build([entry(b"2", A)], store_host=bytes(8), record_crc=True))
    store.clean(by_hand=True, wait=True)
    assert gone == []
    store.dispatch_all()
    assert bodies(store, A, 1) == [b"2"]


def test_expired_light_queue_that_a_crash_restores_restarts_with_its_next_message() -> None:
    disk, clock = SimDisk(), ManualClock()
    store = open_store(disk, clock)
    store.when_light_queue_expires(lambda _name: None)
    send(store, entry(b"1", A))
    fill(store)
    store.checkpoint(whole=True)
    expire(store, clock)
    send(store, entry(b"2", A))
    disk.kill()
    store = open_store(disk, clock, rebuild=True)
    assert bodies(store, A) == [b"2"]


def test_verify_counts_light_queues_and_finds_a_missing_slot() -> None:
    disk, clock = SimDisk(), ManualClock()
    store = open_store(disk, clock)
    for number in range(20):
        send(store, entry(b"%d" % number, A, B))
    store.close()
    directory = Directory(disk, ROOT, CONFIG)
    found = directory.verify(lambda _done, _total: None)
    assert found.is_sound
    assert (found.light_queues, found.light_units, found.records) == (2, 40, 20)
    directory.close()

    file = disk.open(f"{ROOT}/consumequeue/{B.topic}/0/{0:020d}")
    file.pwrite(5 * UNIT.size, file.pread(6 * UNIT.size, UNIT.size))
    directory = Directory(disk, ROOT, CONFIG)
    found = directory.verify(lambda _done, _total: None)
    assert found.problems == ["queue 0 of %LMQ%b points at the wrong records"]
    directory.close()


def test_verify_finds_a_light_queue_that_is_missing() -> None:
    disk, clock = SimDisk(), ManualClock()
    store = open_store(disk, clock)
    send(store, entry(b"1", A, B))
    store.close()
    for name in disk.list(f"{ROOT}/consumequeue/{B.topic}/0"):
        disk.remove(f"{ROOT}/consumequeue/{B.topic}/0/{name}")
    directory = Directory(disk, ROOT, CONFIG)
    found = directory.verify(lambda _done, _total: None)
    assert found.problems == ["1 units are missing in the queues"]
    directory.close()


def test_light_unit_that_leads_to_a_message_of_another_queue_is_left_out() -> None:
    disk, clock = SimDisk(), ManualClock()
    store = open_store(disk, clock)
    send(store, entry(b"1", A), entry(b"2", B))
    store.close()
    file = disk.open(f"{ROOT}/consumequeue/{A.topic}/0/{0:020d}")
    other = disk.open(f"{ROOT}/consumequeue/{B.topic}/0/{0:020d}")
    file.pwrite(0, other.pread(0, UNIT.size))
    store = open_store(disk, clock)
    assert bodies(store, A) == [b"1"]  # the start noticed, and derived the queues again
    assert store.recovered.rebuilt


def test_reading_a_wrong_light_unit_returns_no_message() -> None:
    store = open_store(SimDisk(), ManualClock())
    send(store, entry(b"1", A), entry(b"2", B))
    queue, other = store.queues.get(A), store.queues.get(B)
    assert queue is not None
    assert other is not None
    queue.tail[:] = other.tail
    with store.read(A, QueueOffset(0)) as found:
        assert found.status is ReadStatus.MESSAGE_WAS_REMOVING
        assert found.damaged


def test_forged_offsets_are_never_assigned() -> None:
    """Only room that the broker left is filled in, and only offsets in it make a light queue."""
    store = open_store(SimDisk(), ManualClock())
    send(store, Entry(ORDERS, b"1", b"INNER_MULTI_DISPATCH\x01%LMQ%a\x02"))
    assert store.max_offset(A) == 0
    assert store.light_queue_count == 0


def test_derivation_by_columns_agrees_with_the_loop_for_light_queues() -> None:
    """Also for a light queue that has messages of its own, as in a log of RocketMQ."""
    entries: list[Entry] = []
    for number in range(90):
        queues = ((), (A,), (A, B), (B,))[number % 4]
        plain = Entry(ORDERS, b"%d" % number, b"UNIQ_KEY\x01U%07d\x02" % number)
        light = entry(b"%d" % number, *queues, text=plain.properties) if queues else plain
        entries.append(entry(b"own", key=A) if number % 17 == 3 else light)
    whole = build(
        [one if OFFSETS_BEGIN in one.properties and len(one.properties) > 60 else
         one._replace(properties=b"UNIQ_KEY\x01U\x02") for one in entries],
        store_host=bytes(8), record_crc=True,
    )  # fmt: skip
    next_offsets = NextOffsets({})
    offsets, ends = next_offsets.assign(whole.queues)
    next_offsets.assign_light(whole, ends)
    for start, offset in zip(whole.starts, offsets, strict=True):
        whole.data[start + 20 : start + 28] = int(offset).to_bytes(8)
    size = len(whole.data)
    found = [
        derive(whole.data, whole.starts, size, base=PhysicalOffset(0), delays_ms=())
        for derive in (derive_by_shape, derive_plainly)
    ]
    columns, loop = ({(r.queue, r.first): r.units for r in one.runs} for one in found)
    assert columns == loop
    assert {run.queue for run in found[0].runs} == {ORDERS, A, B}


def test_chunk_of_one_queue_needs_no_light_queues() -> None:
    assert not chunk(b"1", b"2").rooms
