from dataclasses import replace

import pytest
from small_store import OTHER, chunk

from tianzhou.record.chunk import RecordChunk
from tianzhou.store.config import StoreConfig
from tianzhou.store.consume_queue import UNIT
from tianzhou.store.errors import StoreDamaged
from tianzhou.store.store import MessageStore
from tianzhou.store.tables import Tables
from tianzhou.store.verify import Directory, Findings, QueueSummary
from tianzhou.testing.sim.clock import ManualClock
from tianzhou.testing.sim.disk import SimDisk
from tianzhou.wire.tables import TopicConfig, TopicConfigTable

CONFIG = StoreConfig(
    commit_log_file_bytes=4096,
    consume_queue_file_bytes=200,
    commit_log_preallocate_bytes=4096,
    index_slots=8,
    index_entries=10,
)
LOG = "store/commitlog/00000000000000000000"
QUEUE = "store/consumequeue/orders/0/00000000000000000000"


class World:
    """A directory with seven messages in two log files."""

    def __init__(self, *, config: StoreConfig = CONFIG) -> None:
        self.disk = SimDisk()
        self.config = config
        self.clock = ManualClock()
        self.store = self.open()
        self.starts: list[int] = []
        self.put(chunk(b"a" * 500, b"b" * 500, b"c" * 500, keys="k"))
        self.put(chunk(b"d" * 500, keys="k l", key=OTHER))
        self.put(chunk(b"e" * 2000, b"f", b"g", keys="m"))

    def open(self) -> MessageStore:
        return MessageStore(self.disk, "store", self.config, self.clock)

    def put(self, made: RecordChunk) -> None:
        self.starts += self.store.append(made).physical_offsets()
        self.store.dispatch_all()
        self.clock.advance(ms=1000)

    def closed(self) -> "World":
        self.store.close()
        return self

    def write(self, path: str, at: int, data: bytes) -> None:
        self.disk.open(path).pwrite(at, data)

    def remove_queue(self, queue_id: int) -> None:
        directory = f"store/consumequeue/orders/{queue_id}"
        for name in self.disk.list(directory):
            self.disk.remove(f"{directory}/{name}")
        self.disk.remove_dir(directory)

    def verify(self, steps: list[tuple[int, int]] | None = None) -> Findings:
        directory = Directory(self.disk, "store", self.config)
        before = len(self.disk.calls)
        taken: list[tuple[int, int]] = [] if steps is None else steps
        found = directory.verify(lambda done, total: taken.append((done, total)))
        directory.close()
        assert len(self.disk.calls) == before, "it only looks"
        return found


@pytest.fixture
def world() -> World:
    return World().closed()


def index_path(world: World, rank: int = 0) -> str:
    return f"store/index/{world.disk.list('store/index')[rank]}"


def test_verify_sound_directory_reports_its_contents(world: World) -> None:
    end = world.store.log.end
    found = world.verify()
    assert found.is_sound
    assert found == Findings(
        clean=True,
        log_start=0,
        log_end=end,
        log_files=2,
        flushed=end,
        derived=end,
        records=7,
        index_files=1,
        index_entries=8,
        queues=[QueueSummary("orders", 0, 0, 6), QueueSummary("orders", 1, 0, 1)],
    )


def test_inspect_reads_no_record(world: World) -> None:
    world.write(LOG, 100, b"!")
    directory = Directory(world.disk, "store", CONFIG)
    found = directory.inspect()
    directory.close()
    assert found.is_sound
    assert (found.records, found.log_end, found.index_entries) == (0, world.store.log.end, 8)


def test_verify_progress_ends_at_the_total(world: World) -> None:
    steps: list[tuple[int, int]] = []
    world.verify(steps)
    done = [step for step, _ in steps]
    assert done == sorted(done)
    assert len(steps) > 2
    assert {total for _, total in steps} == {8192}
    assert steps[-1] == (8192, 8192)


def test_verify_reports_damage_as_a_range_and_continues(world: World) -> None:
    world.write(LOG, world.starts[1] + 100, b"!")
    found = world.verify()
    (damage,) = found.damage
    assert damage == (world.starts[1], world.starts[2], "a record whose checksum fails")
    assert found.records == 6
    assert not found.is_sound


def test_verify_of_a_log_without_its_first_file_reports_the_missing_range(world: World) -> None:
    first, second = world.disk.list("store/commitlog")
    world.disk.remove(f"store/commitlog/{first}")
    (damage,) = world.verify().damage
    assert (damage.start, damage.end) == (0, int(second))
    assert damage.reason == "the first files of the log are missing"


def test_verify_missing_flushed_end_is_damage(world: World) -> None:
    world.write("store/commitlog/00000000000000004096", world.starts[6] - 4096, bytes(200))
    found = world.verify()
    (damage,) = found.damage
    assert (damage.start, damage.end) == (world.starts[6], world.store.log.end)
    assert found.log_end == world.starts[6]


def test_verify_reports_a_unit_that_points_at_the_wrong_record(world: World) -> None:
    world.write(QUEUE, 20, UNIT.pack(0, world.starts[1], 0))
    found = world.verify()
    assert found.problems == ["queue 0 of orders points at the wrong records"]
    assert not found.is_sound


def test_verify_reports_a_queue_longer_than_the_log(world: World) -> None:
    world.write(QUEUE, 6 * 20, UNIT.pack(world.starts[6], 100, 0))
    assert world.verify().problems == ["queue 0 of orders ends at 7; the log at 6"]


def test_verify_reports_missing_units_after_a_stop_but_not_after_a_crash(world: World) -> None:
    world.write(QUEUE, 4 * 20, bytes(40))
    found = world.verify()
    assert found.pending_units == 2
    assert found.problems == ["2 units are missing in the queues"]
    world.disk.create("store/abort", 0)
    found = world.verify()
    assert (found.clean, found.pending_units, found.is_sound) == (False, 2, True)


def test_verify_ignores_messages_not_visible_at_the_stop() -> None:
    """As in a Raft group whose majority did not answer."""
    world = World()
    confirmed = world.store.log.end
    world.store.limit_visible(lambda: confirmed)
    world.put(chunk(b"h", b"i"))
    found = world.closed().verify()
    assert (found.clean, found.pending_units, found.problems) == (True, 2, [])
    assert found.is_sound


def test_verify_counts_a_missing_queue(world: World) -> None:
    world.remove_queue(1)
    assert world.verify().pending_units == 1


def topics(name: str) -> TopicConfigTable:
    return TopicConfigTable(topic_config_table={name: TopicConfig(topic_name=name)})


def test_verify_deleted_topic_is_not_damage(world: World) -> None:
    """Its queues are gone, and the log keeps its records until they expire."""
    world.remove_queue(0)
    world.remove_queue(1)
    assert not world.verify().is_sound
    tables = Tables(world.disk, "store/config")
    tables.topics.save(topics("refunds"))
    found = world.verify()
    assert (found.deleted_units, found.pending_units, found.is_sound) == (7, 0, True)
    tables.topics.save(topics("orders"))
    assert world.verify().pending_units == 7


def test_verify_names_an_unreadable_topic_table(world: World) -> None:
    world.disk.make_dirs("store/config")
    world.disk.create("store/config/topics.json", 1).pwrite(0, b"{")
    assert "topics.json" in world.verify().problems[0]


def test_verify_after_a_kill_is_clean() -> None:
    world = World()
    world.disk.kill()
    found = world.verify()
    assert found.is_sound
    assert (found.clean, found.pending_units, found.records) == (False, 7, 7)
    # The table may be older than the log, so it does not prove that a topic was deleted.
    Tables(world.disk, "store/config").topics.save(topics("refunds"))
    assert (world.verify().deleted_units, world.verify().pending_units) == (0, 7)


def test_verify_reports_a_key_missing_from_the_index(world: World) -> None:
    world.write(index_path(world), 40, bytes(8 * 4))  # every slot empty
    assert world.verify().problems == ["8 keys are missing in the index"]


def test_verify_without_an_exact_checkpoint_does_not_check_the_index(world: World) -> None:
    world.write(index_path(world), 40, bytes(8 * 4))
    world.write("store/checkpoint", 64, bytes(8))
    assert world.verify().is_sound
    world.disk.remove("store/checkpoint")
    assert world.verify().is_sound


def test_verify_names_an_unreadable_index_file(world: World) -> None:
    path = index_path(world)
    world.disk.open(path).truncate(100)
    found = world.verify()
    assert found.index_files == 0
    assert found.problems[0].startswith(f"{path}: has 100 bytes")
    assert found.problems[1:] == ["8 keys are missing in the index"]


def test_verify_names_unreadable_queues(world: World) -> None:
    world.disk.make_dirs("store/consumequeue/orders/x")
    problems = world.verify().problems
    assert problems[0] == "store/consumequeue/orders/x: is not a queue number; move it away"


def test_verify_reports_a_short_log_file_and_does_not_repair_it(world: World) -> None:
    path = "store/commitlog/00000000000000004096"
    world.disk.open(path).truncate(100)
    with pytest.raises(StoreDamaged, match="has 100 bytes and should have 4096"):
        world.verify()
    assert world.disk.open(path).size() == 100


def test_verify_after_expiry_reports_raised_minimum_offsets() -> None:
    world = World(config=replace(CONFIG, retention_hours=0))
    world.clock.advance(hours=1)
    assert world.store.clean(by_hand=True) == 1
    found = world.closed().verify()
    assert found.is_sound
    assert (found.log_start, found.log_files, found.records) == (4096, 1, 3)
    assert found.queues == [QueueSummary("orders", 0, 3, 6), QueueSummary("orders", 1, 1, 1)]
