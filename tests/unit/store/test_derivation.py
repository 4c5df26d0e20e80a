"""Delay levels as they were, and topics that were deleted: what verify and rebuild must know."""

from typing import Final

import pytest
from small_store import KEY, chunk

from tianzhou.base.kinds import QueueKey, QueueOffset, queue_key
from tianzhou.record.chunk import Entry, RecordChunk, build
from tianzhou.store.config import StoreConfig
from tianzhou.store.consume_queue import UNIT
from tianzhou.store.derivation import FILE, Derivation
from tianzhou.store.derive import QueueUnits
from tianzhou.store.detect import detect
from tianzhou.store.errors import StoreDamaged
from tianzhou.store.store import MessageStore
from tianzhou.store.tables import Tables
from tianzhou.store.verify import Directory, Findings
from tianzhou.testing.sim.clock import ManualClock
from tianzhou.testing.sim.disk import SimDisk
from tianzhou.wire.names import SCHEDULE_TOPIC
from tianzhou.wire.tables import TopicConfig, TopicConfigTable

DELAYED: Final = queue_key(SCHEDULE_TOPIC, 0)


class World:
    def __init__(self) -> None:
        self.disk = SimDisk()
        self.clock = ManualClock()

    def open(self, *levels: int, rebuild: bool = False) -> MessageStore:
        config = StoreConfig(
            commit_log_file_bytes=4096,
            consume_queue_file_bytes=200,
            commit_log_preallocate_bytes=4096,
            index_slots=10,
            index_entries=40,
            delay_levels_ms=levels or (1000, 5000),
        )
        return MessageStore(self.disk, "store", config, self.clock, rebuild=rebuild)

    def verify(self) -> Findings:
        directory = Directory(self.disk, "store", detect(self.disk, "store"))
        found = directory.verify(lambda _done, _total: None)
        directory.close()
        return found

    def topics(self, *names: str) -> None:
        table = {name: TopicConfig(topic_name=name) for name in names}
        Tables(self.disk, "store/config").topics.save(TopicConfigTable(topic_config_table=table))


def delayed(count: int) -> RecordChunk:
    entries = [Entry(DELAYED, b"later", b"DELAY\x011\x02")] * count
    return build(entries, store_host=bytes(8), record_crc=True)


def put(store: MessageStore, made: RecordChunk) -> None:
    store.append(made)
    store.dispatch_all()


def times(store: MessageStore) -> list[int]:
    queue = store.queues.obtain(DELAYED)
    return [time for _, _, time in UNIT.iter_unpack(queue.read(0, queue.end))]


def test_verify_of_a_deleted_and_recreated_topic_is_clean() -> None:
    world = World()
    store = world.open()
    put(store, chunk(b"old", b"older", key=KEY))
    store.delete_topic(KEY.topic)
    store.close()
    world.topics(KEY.topic)
    found = world.verify()
    assert (found.is_sound, found.deleted_units, found.pending_units) == (True, 2, 0)
    store = world.open()
    put(store, chunk(b"new", key=KEY))
    store.close()
    found = world.verify()
    assert (found.is_sound, found.deleted_units) == (True, 2), found.problems


def test_rebuild_does_not_restore_a_deleted_topic() -> None:
    world = World()
    store = world.open()
    put(store, chunk(b"old", key=KEY))
    store.delete_topic(KEY.topic)
    store.close()
    store = world.open(rebuild=True)
    assert store.max_offset(KEY) == 0
    put(store, chunk(b"new", key=KEY))
    assert store.max_offset(KEY) == 1
    store.close()
    store = world.open(rebuild=True)
    assert store.max_offset(KEY) == 1
    store.close()
    assert world.verify().is_sound


def test_verify_and_rebuild_use_the_delay_levels_of_the_directory() -> None:
    world = World()
    store = world.open(7000)
    put(store, delayed(2))
    before = times(store)
    store.close()
    assert detect(world.disk, "store").delay_levels_ms == (7000,)
    assert world.verify().is_sound
    store = MessageStore(
        world.disk, "store", detect(world.disk, "store"), world.clock, rebuild=True
    )
    assert times(store) == before == [world.clock.now_ms() + 7000] * 2
    store.close()


def test_changed_delay_levels_keep_the_times_of_older_messages() -> None:
    world = World()
    for levels in ((7000,), (9000, 1), (3000,)):
        store = world.open(*levels)
        put(store, delayed(20))
        before = times(store)
        store.close()
        assert world.verify().is_sound
    delays = [time - world.clock.now_ms() for time in before]
    assert delays == [7000] * 20 + [9000] * 20 + [3000] * 20
    store = world.open(3000, rebuild=True)
    assert times(store) == before
    store.close()


def test_derivation_of_a_truncated_log_forgets_later_deletions() -> None:
    world = World()
    store = world.open()
    put(store, chunk(b"kept", key=KEY))
    end = store.log.end
    put(store, chunk(b"cut", key=KEY))
    store.delete_topic(KEY.topic)
    store.truncate(end)
    store.begin_writing()
    put(store, chunk(b"a" * 500, b"b", key=KEY))
    assert store.max_offset(KEY) == 2
    store.close()
    store = world.open(rebuild=True)
    assert store.max_offset(KEY) == 2
    store.close()


def run_of(*offsets: int, key: QueueKey = KEY) -> QueueUnits:
    return QueueUnits(
        key, QueueOffset(0), b"".join(UNIT.pack(offset, 100, 0) for offset in offsets)
    )


def test_derivation_live_excludes_records_before_the_deletion() -> None:
    derivation = Derivation(SimDisk(), "config", (1,))
    derivation.delete_topic(KEY.topic, 500)
    derivation.delete_topic(KEY.topic, 300)
    live = derivation.live(run_of(100, 400, 500, 600))
    assert live is not None
    assert (live.first, live.units) == (2, run_of(500, 600).units)
    assert derivation.live(run_of(100)) is None
    other = run_of(100, key=queue_key("other", 0))
    assert derivation.live(other) is other


def test_derivation_file_that_cannot_be_decoded_is_named() -> None:
    disk = SimDisk()
    disk.make_dirs("config")
    disk.create(f"config/{FILE}", 0).pwrite(0, b"{")
    with pytest.raises(StoreDamaged, match=FILE):
        Derivation(disk, "config", (1,))


def test_derivation_history_of_expired_records_is_removed() -> None:
    disk = SimDisk()
    for delays, end in (((1,), 0), ((2,), 100), ((3,), 200)):
        Derivation(disk, "config", delays).begin(0, end)
    derivation = Derivation(disk, "config", (3,))
    derivation.delete_topic("gone", 150)
    derivation.begin(150, 300)
    parts = list(derivation.parts([10, 60], 100, base=150))
    assert [(list(part.starts), part.end, part.delays_ms) for part in parts] == [
        ([10], 60, (2,)),
        ([60], 100, (3,)),
    ]
    assert derivation.live(run_of(10, key=queue_key("gone", 0))) is not None
