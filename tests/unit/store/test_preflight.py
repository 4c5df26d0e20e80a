"""A directory that must not be opened for writing is refused, and left byte for byte as it is."""

import struct
from collections.abc import Callable
from dataclasses import replace
from itertools import islice

import pytest
from small_store import KEY, OTHER, chunk, read

from tianzhou.base.kinds import PhysicalOffset, QueueOffset
from tianzhou.store.checkpoint import SECTOR, TIMES
from tianzhou.store.config import StoreConfig
from tianzhou.store.consume_queue import Queues
from tianzhou.store.errors import StoreDamaged, StoreRefused
from tianzhou.store.incidents import LOG_BEGINS_LATE, LOG_ENDED_EARLY
from tianzhou.store.preflight import read_checkpoint
from tianzhou.store.store import MessageStore
from tianzhou.store.verify import Directory, Findings
from tianzhou.testing.sim.clock import ManualClock
from tianzhou.testing.sim.disk import SimDisk
from tianzhou.testing.sim.disk_images import CrashPoint, Image, build, plans
from tianzhou.wire.tables import ConsumerOffsetTable

FILE_BYTES = 4096
CONFIG = StoreConfig(
    commit_log_file_bytes=FILE_BYTES,
    consume_queue_file_bytes=200,
    commit_log_preallocate_bytes=4096,
    index_slots=8,
    index_entries=40,
)
COUNT = 60


def bytes_of(disk: SimDisk) -> Image:
    return build(point := disk.crash_point(), next(iter(plans(point, ""))))


class Stored:
    """A store that was closed, with sixty messages in two queues and a group that read them."""

    def __init__(self, *, clean: bool = True) -> None:
        self.disk, self.clock = SimDisk(), ManualClock()
        store = self.open()
        for number in range(COUNT):
            self.clock.advance(ms=1)
            store.append(chunk(b"message %03d" % number * 10, key=KEY if number % 3 else OTHER))
        store.flush()
        store.dispatch_all()
        self.ends = {key: int(store.max_offset(key)) for key in (KEY, OTHER)}
        self.end = int(store.log.end)
        table = {f"{KEY.topic}@g": {int(key.queue_id): self.ends[key] for key in (KEY, OTHER)}}
        store.tables.consumer_offsets.save(ConsumerOffsetTable(offset_table=table))
        if clean:
            store.close()
        else:
            self.disk.kill()

    def open(self, *, is_repaired: bool = False, **settings: object) -> MessageStore:
        config = replace(CONFIG, **settings)  # type: ignore[arg-type]
        return MessageStore(self.disk, "store", config, self.clock, is_repaired=is_repaired)

    def files(self) -> list[str]:
        return self.disk.list("store/commitlog")

    def lose(self, count: int) -> None:
        for name in self.files()[-count:]:
            self.disk.remove(f"store/commitlog/{name}")

    def refusal(self, **settings: object) -> StoreRefused:
        before = bytes_of(self.disk)
        with pytest.raises(StoreRefused) as caught:
            self.open(**settings)  # type: ignore[arg-type]
        assert bytes_of(self.disk) == before, "a refused directory was changed"
        return caught.value


@pytest.mark.parametrize("clean", [True, False])
def test_open_of_a_log_without_its_last_files_is_rejected(clean: bool) -> None:
    stored = Stored(clean=clean)
    stored.lose(2)
    refused = stored.refusal()
    assert 0 < refused.loss_at < stored.end
    assert f"ends at offset {refused.loss_at}" in str(refused)
    assert f"up to {stored.end}" in str(refused)
    assert f"accept_loss_at={refused.loss_at}" in str(refused)


def test_open_with_the_acceptance_of_another_loss_is_rejected() -> None:
    stored = Stored()
    stored.lose(1)
    first = stored.refusal()
    stored.lose(1)
    assert stored.refusal(accept_loss_at=first.loss_at).loss_at < first.loss_at


def test_accepted_loss_is_an_incident_and_reuses_no_offset() -> None:
    stored = Stored()
    stored.lose(2)
    loss_at = stored.refusal().loss_at
    store = stored.open(accept_loss_at=loss_at)
    (incident,) = store.incidents.open
    assert incident.kind == LOG_ENDED_EARLY
    assert f"{stored.end - loss_at} bytes are missing" in incident.text
    assert store.recovered.clamped == 0, "groups stay where they were"
    assert {key: store.max_offset(key) for key in (KEY, OTHER)} == stored.ends
    placed = store.append(chunk(b"after the loss"))
    assert list(placed.queue_offsets) == [stored.ends[KEY]]
    store.dispatch_all()
    assert read(store, stored.ends[KEY]) == [b"after the loss"]


def test_accepted_loss_keeps_used_offsets_in_a_rebuild() -> None:
    stored = Stored()
    stored.lose(2)
    stored.open(accept_loss_at=stored.refusal().loss_at).close()
    store = MessageStore(stored.disk, "store", CONFIG, stored.clock, rebuild=True)
    assert {key: store.max_offset(key) for key in (KEY, OTHER)} == stored.ends
    assert [one.kind for one in store.incidents.open] == [LOG_ENDED_EARLY]


@pytest.mark.parametrize("clean", [True, False])
def test_verify_after_an_accepted_loss_reports_no_kept_offset(clean: bool) -> None:
    """The advice would be a rebuild, which keeps these offsets too."""
    stored = Stored(clean=clean)
    stored.lose(2)
    store = stored.open(accept_loss_at=stored.refusal().loss_at)
    store.close()
    assert verified(stored.disk).is_sound, verified(stored.disk)
    store = stored.open()
    store.append(chunk(b"after the loss"))
    store.close()
    found = verified(stored.disk)
    assert found.is_sound, found


def test_verify_after_an_accepted_loss_reports_a_too_long_queue() -> None:
    stored = Stored()
    stored.lose(2)
    stored.open(accept_loss_at=stored.refusal().loss_at).close()
    queues = Queues(stored.disk, "store/consumequeue", CONFIG.consume_queue_file_units)
    queues.load(below=PhysicalOffset(1 << 62), clean=True)
    queue = queues.get(KEY)
    assert queue is not None
    queue.append(QueueOffset(stored.ends[KEY] + 1), b"")
    queues.write_out()
    queues.close()
    (problem,) = verified(stored.disk).problems
    assert f"ends at {stored.ends[KEY] + 1}; the log at" in problem


def verified(disk: SimDisk) -> Findings:
    directory = Directory(disk, "store", CONFIG)
    try:
        return directory.verify(lambda _done, _total: None)
    finally:
        directory.close()


def test_accepted_loss_after_the_checkpoint_skips_offsets_possibly_used() -> None:
    """Units that only memory held are lost with the process, so their number is unknown."""
    stored = Stored(clean=False)
    assert stored.disk.list("store/consumequeue") == [], "all units were in memory"
    stored.lose(2)
    store = stored.open(accept_loss_at=stored.refusal().loss_at)
    ends = {key: int(store.max_offset(key)) for key in (KEY, OTHER)}
    assert all(ends[key] >= stored.ends[key] for key in ends)
    stored.disk.kill()
    store = stored.open()
    assert {key: store.max_offset(key) for key in ends} == ends, "once is enough"


def test_open_of_a_short_log_that_peers_repair_reports_it() -> None:
    stored = Stored()
    stored.lose(1)
    store = stored.open(is_repaired=True)
    (incident,) = store.incidents.open
    assert (incident.kind, incident.is_loss) == (LOG_ENDED_EARLY, False)
    assert store.max_offset(KEY) < stored.ends[KEY], "peers bring the messages at their offsets"


def test_open_of_a_short_last_file_with_all_records_succeeds() -> None:
    """A crash between shortening a file and lengthening it again leaves one."""
    stored = Stored()
    stored.disk.open(f"store/commitlog/{stored.files()[-1]}").truncate(stored.end % FILE_BYTES)
    store = stored.open()
    assert store.log.end == stored.end
    assert store.incidents.open == []


def test_open_of_a_last_file_that_lost_its_end_is_rejected() -> None:
    stored = Stored()
    last = stored.files()[-1]
    stored.disk.open(f"store/commitlog/{last}").truncate(300)
    assert int(last) <= stored.refusal().loss_at < int(last) + 300


# A log that is not there


def _without_log(stored: Stored) -> None:
    stored.lose(len(stored.files()))


def _without_log_and_checkpoint(stored: Stored) -> None:
    _without_log(stored)
    stored.disk.remove("store/checkpoint")


def _java_offsets_alone(stored: Stored) -> None:
    _without_log_and_checkpoint(stored)
    for queue in ("0", "1"):
        for name in stored.disk.list(f"store/consumequeue/orders/{queue}"):
            stored.disk.remove(f"store/consumequeue/orders/{queue}/{name}")


@pytest.mark.parametrize(
    ("take", "evidence"),
    [
        (_without_log, "the checkpoint vouches for its first"),
        (_without_log_and_checkpoint, "2 consume queues point into it"),
        (_java_offsets_alone, "consumer groups have read up to 2 offsets of it"),
    ],
)
def test_open_of_a_directory_without_its_log_is_rejected(
    take: Callable[[Stored], None], evidence: str
) -> None:
    stored = Stored()
    take(stored)
    refused = stored.refusal(accept_loss_at=0)
    assert evidence in str(refused)
    assert "store/commitlog" in str(refused)
    assert "storePathCommitLog" in str(refused)


def test_open_of_a_directory_without_its_lock_creates_none() -> None:
    stored = Stored()
    _without_log(stored)
    stored.disk.remove("store/lock")
    stored.refusal()
    assert "lock" not in stored.disk.list("store")


def test_open_without_the_log_reports_its_recorded_path() -> None:
    disk, clock = SimDisk(), ManualClock()
    config = replace(CONFIG, commit_log_path="other/log")
    store = MessageStore(disk, "store", config, clock)
    store.append(chunk(b"one"))
    store.close()
    with pytest.raises(StoreRefused, match="It was at other/log when the store was last open"):
        MessageStore(disk, "store", CONFIG, clock)
    store = MessageStore(disk, "store", config, clock)
    assert read(store, 0) == [b"one"]


def test_open_of_an_empty_store_again_succeeds() -> None:
    disk, clock = SimDisk(), ManualClock()
    for _ in range(2):
        store = MessageStore(disk, "store", CONFIG, clock)
        assert store.incidents.open == []
        store.close()


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("store/dledger-n0/data/00000000000000000000", "DLedger"),
        ("store/consumequeue/CURRENT", "RocksDB"),
        ("store/config/consumerOffsets/CURRENT", "RocksDB"),
    ],
)
def test_open_with_an_unreadable_layout_is_rejected(path: str, said: str) -> None:
    disk = SimDisk()
    disk.make_dirs(path.rpartition("/")[0])
    disk.create(path, 8).close()
    before = bytes_of(disk)
    with pytest.raises(StoreRefused, match=said):
        MessageStore(disk, "store", CONFIG, ManualClock())
    assert bytes_of(disk) == before


def test_open_with_a_gap_between_files_is_rejected_unchanged() -> None:
    stored = Stored()
    stored.disk.remove(f"store/commitlog/{stored.files()[1]}")
    before = bytes_of(stored.disk)
    with pytest.raises(StoreDamaged, match="is missing"):
        stored.open()
    assert bytes_of(stored.disk) == before


# RocketMQ's checkpoint


def _java_checkpoint(stored: Stored, timestamp: int) -> None:
    page = TIMES.pack(timestamp, timestamp, timestamp).ljust(SECTOR, b"\0")
    stored.disk.open("store/checkpoint").pwrite(0, page)


def test_open_of_a_java_log_older_than_its_checkpoint_is_reported() -> None:
    stored = Stored()
    _java_checkpoint(stored, stored.clock.now_ms())
    stored.lose(2)
    store = stored.open()
    assert [one.kind for one in store.incidents.open] == [LOG_ENDED_EARLY]
    assert store.max_offset(KEY) == stored.ends[KEY]


@pytest.mark.parametrize("later_ms", [0, 1_000_000])
def test_open_of_a_complete_java_log_reports_nothing(later_ms: int) -> None:
    """A time in the future is nonsense: RocketMQ's checkpoint has no checksum."""
    stored = Stored()
    _java_checkpoint(stored, stored.clock.now_ms() + later_ms)
    assert stored.open().incidents.open == []


def test_java_checkpoint_has_the_layout_of_these_tests() -> None:
    assert struct.calcsize(">qqq") == TIMES.size


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("name", ["topics", "consumerOffset", "timerProgress", "derivation"])
def test_open_with_an_unreadable_table_is_rejected_unchanged(name: str, clean: bool) -> None:
    stored = Stored(clean=clean)
    path = f"store/config/{name}.json"
    if stored.disk.exists(path):
        stored.disk.remove(path)
    stored.disk.create(path, 0).pwrite(0, b'{"half')
    before = bytes_of(stored.disk)
    with pytest.raises(StoreDamaged, match=rf"{path}: can't be read"):
        stored.open()
    assert bytes_of(stored.disk) == before, "a refused directory was changed"


# A log that begins too late


def lose_first(stored: Stored, count: int) -> int:
    """Remove the oldest files; return where the log begins now."""
    for name in stored.files()[:count]:
        stored.disk.remove(f"store/commitlog/{name}")
    return count * FILE_BYTES


@pytest.mark.parametrize("clean", [True, False])
def test_open_without_the_first_log_files_reports_the_range_and_serves_the_rest(
    clean: bool,
) -> None:
    stored = Stored(clean=clean)
    begin = lose_first(stored, 2)
    store = stored.open()
    (incident,) = [one for one in store.incidents.open if one.kind == LOG_BEGINS_LATE]
    assert incident.is_loss
    assert incident.place == f"0-{begin}"
    assert f"{begin} bytes are missing" in incident.text
    first = int(store.min_offset(KEY))
    assert first > 0
    assert len(read(store, first)) == stored.ends[KEY] - first
    stored.disk.kill()
    again = stored.open()
    assert [one.place for one in again.incidents.open if one.kind == LOG_BEGINS_LATE] == [
        incident.place
    ]
    again.incidents.acknowledge(1)
    again.close()
    assert stored.open().incidents.open == [], "a new start does not report it again"


def test_open_after_a_second_loss_at_the_start_reports_the_new_range() -> None:
    stored = Stored()
    begin = lose_first(stored, 1)
    stored.open().close()
    stored.disk.remove(f"store/commitlog/{stored.files()[0]}")
    places = [one.place for one in stored.open().incidents.open if one.kind == LOG_BEGINS_LATE]
    assert places == [f"0-{begin}", f"{begin}-{begin + FILE_BYTES}"]


def test_open_of_a_late_log_that_peers_repair_is_a_warning() -> None:
    stored = Stored()
    lose_first(stored, 1)
    found = stored.open(is_repaired=True).incidents.open
    assert [one.is_loss for one in found if one.kind == LOG_BEGINS_LATE] == [False]


def test_open_after_retention_removed_files_reports_nothing() -> None:
    stored = Stored()
    store = stored.open(retention_hours=1)
    stored.clock.advance(hours=2)
    assert store.clean(by_hand=True) > 1
    stored.disk.kill()
    store = stored.open()
    assert store.log.min_offset > 0
    assert store.incidents.open == []


def test_open_after_java_treats_missing_first_files_as_expired() -> None:
    stored = Stored()
    stored.disk.open("store/lock").pwrite(0, b"lock")
    lose_first(stored, 1)
    kinds = [one.kind for one in stored.open().incidents.open]
    assert LOG_BEGINS_LATE not in kinds


def test_open_of_a_follower_that_began_later_reports_nothing() -> None:
    stored = Stored()
    store = stored.open()
    store.begin_again(PhysicalOffset(10 * FILE_BYTES))
    stored.disk.kill()
    store = stored.open(is_repaired=True)
    assert store.log.min_offset == 10 * FILE_BYTES
    assert store.incidents.open == []
    store.close()
    assert read_checkpoint(stored.disk, "store/checkpoint").log_begin == 10 * FILE_BYTES


def test_open_killed_at_any_call_of_begin_again_reports_no_loss() -> None:
    stored = Stored()
    store, points = stored.open(), list[CrashPoint]()
    stored.disk.on_call = lambda: points.append(stored.disk.crash_point())
    store.begin_again(PhysicalOffset(10 * FILE_BYTES))
    assert len(points) > 10
    for point in points:
        for plan in islice(plans(point, "begin again"), 4):
            disk = SimDisk(build(point, plan))
            opened = MessageStore(disk, "store", CONFIG, stored.clock, is_repaired=True)
            assert LOG_BEGINS_LATE not in {one.kind for one in opened.incidents.open}


def test_retention_killed_at_any_call_leaves_a_directory_without_a_loss() -> None:
    stored = Stored()
    store, points = stored.open(retention_hours=1), list[CrashPoint]()
    stored.clock.advance(hours=2)
    stored.disk.on_call = lambda: points.append(stored.disk.crash_point())
    removed = store.clean(by_hand=True)
    assert removed > 1
    begins = set[int]()
    for point in points:
        for plan in islice(plans(point, "retention"), 6):
            opened = MessageStore(SimDisk(build(point, plan)), "store", CONFIG, stored.clock)
            assert [one for one in opened.incidents.open if one.is_loss] == []
            begins.add(int(opened.log.min_offset))
    assert begins == {count * FILE_BYTES for count in range(removed + 1)}, "each step was seen"
