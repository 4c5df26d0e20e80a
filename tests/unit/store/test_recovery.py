"""What recovery decides, case by case. `tests/crash` holds it against every state of a disk."""

import contextlib
import errno
from collections.abc import Callable
from dataclasses import replace

import pytest
from small_store import KEY, OTHER, chunk, read

from tianzhou.base.kinds import PhysicalOffset, QueueKey
from tianzhou.store.checkpoint import SECTOR, TIMES, Checkpoint, decode, encode
from tianzhou.store.commit_log import CommitLog
from tianzhou.store.config import StoreConfig
from tianzhou.store.errors import StoreFenced
from tianzhou.store.recovery import Report, rewrite_unsynced
from tianzhou.store.scan import Damage
from tianzhou.store.store import MessageStore
from tianzhou.testing.sim.clock import ManualClock
from tianzhou.testing.sim.disk import SimDisk

FILE_BYTES = 4096
CONFIG = StoreConfig(
    commit_log_file_bytes=FILE_BYTES,
    consume_queue_file_bytes=200,
    commit_log_preallocate_bytes=4096,
    index_slots=8,
    index_entries=40,
)
BODY = b"x" * 90


class World:
    """A directory, and the store that has it open. Message n has the body `BODY + n`."""

    def __init__(self) -> None:
        self.disk = SimDisk()
        self.clock = ManualClock()
        self.starts: list[int] = []
        self.store = self._open()

    def _open(self, *, rebuild: bool = False, accept_loss_at: int = -1) -> MessageStore:
        config = replace(CONFIG, accept_loss_at=accept_loss_at)
        return MessageStore(self.disk, "store", config, self.clock, rebuild=rebuild)

    def put(self, count: int = 1, *, key: QueueKey = KEY) -> None:
        """Each second one."""
        for _ in range(count):
            number = len(self.starts)
            self.clock.advance(seconds=1)
            placed = self.store.append(chunk(BODY + b"%02d" % number, key=key, keys=f"k{number}"))
            self.starts += placed.physical_offsets()
        self.store.dispatch_all()

    def restart(self, *, rebuild: bool = False, accept_loss_at: int = -1) -> Report:
        """The process is killed and started again."""
        self.disk.kill()
        self.store = self._open(rebuild=rebuild, accept_loss_at=accept_loss_at)
        return self.store.recovered

    def write(self, offset: int, data: bytes) -> None:
        path = f"store/commitlog/{offset // FILE_BYTES * FILE_BYTES:020d}"
        self.disk.open(path).pwrite(offset % FILE_BYTES, data)

    def log_bytes(self, offset: int, size: int) -> bytes:
        path = f"store/commitlog/{offset // FILE_BYTES * FILE_BYTES:020d}"
        return self.disk.open(path).pread(offset % FILE_BYTES, size)

    def change_checkpoint(self, change: Callable[[Checkpoint], Checkpoint]) -> None:
        file = self.disk.open("store/checkpoint")
        file.pwrite(0, encode(change(decode(file.pread(0, SECTOR)))))

    def messages(self, key: QueueKey = KEY) -> list[int]:
        bodies = read(self.store, self.store.min_offset(key), key=key)
        assert all(body.startswith(BODY) for body in bodies)
        return [int(body[len(BODY) :]) for body in bodies]

    def is_found(self, number: int) -> bool:
        with self.store.find("orders", f"k{number}") as found:
            return len(found.spans) == 1


@pytest.fixture
def world() -> World:
    """Five messages that are flushed and in the checkpoint, two of them in another queue."""
    made = World()
    made.put(3)
    made.put(2, key=OTHER)
    made.store.checkpoint()
    return made


def test_recovery_of_an_empty_directory_does_nothing() -> None:
    assert World().store.recovered == Report()


def test_recovery_after_a_clean_stop_scans_nothing(world: World) -> None:
    world.put(2)
    world.store.close()
    before = len(world.disk.calls)
    assert world.restart() == Report()
    assert world.messages() == [0, 1, 2, 5, 6]
    assert world.store.log.mark == (world.store.log.end, world.clock.now_ms())
    written = [call for call in world.disk.calls[before:] if "commitlog/" in call.path]
    assert written == [], "the log is left as it is"


def test_recovery_after_a_kill_derives_only_what_the_checkpoint_lacks(world: World) -> None:
    begin = world.store.log.end
    world.put(2)
    end = world.store.log.end
    assert world.restart() == Report(scanned_bytes=end - begin, records=2)
    assert world.messages() == [0, 1, 2, 5, 6]
    assert world.is_found(0)
    assert world.is_found(6)
    assert world.store.watermarks == (0, end, end, end)
    assert world.store.log.mark == (end, world.clock.now_ms())


def test_recovery_cuts_a_torn_tail_on_disk(world: World) -> None:
    world.put(2)
    last = world.starts[-1]
    world.write(last + 50, bytes(200))
    report = world.restart()
    assert (report.cut_at, report.damage, report.quarantine) == (last, [], "")
    assert world.log_bytes(last, 300) == bytes(300)
    assert world.store.log.end == last
    assert world.messages() == [0, 1, 2, 5]


def test_recovery_removes_files_after_a_torn_record(world: World) -> None:
    world.put(25)
    torn = next(start for start in world.starts if start >= FILE_BYTES)
    assert world.starts[-1] > torn
    for start in world.starts[5:]:
        if start >= world.starts[10]:
            world.write(start, b"\1" * 8)
    world.restart()
    assert world.store.log.end == world.starts[10]
    assert world.disk.list("store/commitlog") == [f"{0:020d}"]


def test_recovery_keeps_and_reports_damage_in_flushed_data(world: World) -> None:
    world.put(2)
    world.store.checkpoint()
    world.change_checkpoint(lambda found: replace(found, derived=0, anchor=0, queues=-1))
    world.write(world.starts[1] + 100, b"!")
    report = world.restart()
    assert report.damage == [
        Damage(world.starts[1], world.starts[2], "a record whose checksum fails")
    ]
    assert (report.cut_at, report.quarantine, report.records) == (None, "", 6)
    assert world.messages() == [0, 2, 5, 6]
    assert world.log_bytes(world.starts[1] + 100, 1) == b"!"


def test_recovery_quarantines_unacknowledged_records_after_a_hole(world: World) -> None:
    world.put(3)
    hole, end = world.starts[5], world.store.log.end
    world.write(hole + 100, b"!")
    kept = world.log_bytes(hole, end - hole)
    report = world.restart()
    assert report.quarantine == f"store/quarantine/commitlog-{hole:020d}"
    assert report.cut_at == hole
    assert [damage.start for damage in report.damage] == [hole]
    copy = world.disk.open(report.quarantine)
    assert copy.size() == FILE_BYTES - hole
    assert copy.pread(0, end - hole) == kept
    assert world.messages() == [0, 1, 2]
    assert world.log_bytes(hole, end - hole) == bytes(end - hole)


def test_recovery_never_overwrites_the_quarantine(world: World) -> None:
    """The log ends at the same offset again, and fails there again."""
    hole = world.store.log.end
    copies: list[bytes] = []
    for _ in range(3):
        world.put(3)
        world.write(hole + 100, b"!")
        copies.append(world.log_bytes(hole, FILE_BYTES - hole))
        assert world.restart().cut_at == hole
    assert world.store.recovered.quarantine.endswith("-3")
    names = [f"store/quarantine/{name}" for name in world.disk.list("store/quarantine")]
    assert [world.disk.open(name).pread(0, FILE_BYTES) for name in names] == copies


def test_recovery_quarantines_later_files_including_empty_ones(world: World) -> None:
    world.put(25)
    for start in world.starts:
        if start >= FILE_BYTES:
            world.write(start, bytes(300))
    hole = world.starts[5]
    world.write(hole + 100, b"!")
    report = world.restart()
    assert world.disk.open(report.quarantine).size() == 2 * FILE_BYTES - hole


@pytest.mark.parametrize("data", [bytes(400), b"\1" * 400], ids=["zeros", "garbage"])
def test_recovery_missing_flushed_end_is_damage_and_not_overwritten(
    world: World, data: bytes
) -> None:
    world.put()
    world.store.flush()
    last, end = world.starts[-1], world.store.log.end
    world.write(last, data)
    report = world.restart(accept_loss_at=last)
    assert [(damage.start, damage.end) for damage in report.damage] == [(last, end)]
    assert world.log_bytes(last, 400) == data
    assert world.messages() == [0, 1, 2]
    assert world.store.log.end == (FILE_BYTES if any(data) else last)


# Queues and index


def _remove_checkpoint(world: World) -> None:
    world.disk.remove("store/checkpoint")


def _remove_queue(world: World) -> None:
    world.disk.remove(f"store/consumequeue/orders/1/{0:020d}")
    world.disk.remove_dir("store/consumequeue/orders/1")


def _shorten_queue(world: World) -> None:
    world.disk.open(f"store/consumequeue/orders/1/{0:020d}").pwrite(20, bytes(20))


def _swap_unit(world: World) -> None:
    """The last unit of queue 0 shows a message of queue 1, of the same size."""
    other = world.disk.open(f"store/consumequeue/orders/1/{0:020d}").pread(20, 20)
    world.disk.open(f"store/consumequeue/orders/0/{0:020d}").pwrite(40, other)


def _remove_index(world: World) -> None:
    (name,) = world.disk.list("store/index")
    world.disk.remove(f"store/index/{name}")


def _shorten_index(world: World) -> None:
    (name,) = world.disk.list("store/index")
    world.disk.open(f"store/index/{name}").truncate(100)


def _move_position(world: World) -> None:
    world.change_checkpoint(lambda found: replace(found, derived=found.derived - 1))


def _move_anchor(world: World) -> None:
    world.change_checkpoint(lambda found: replace(found, anchor=found.anchor + 1))


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (_remove_checkpoint, "there is no checkpoint of Tianzhou"),
        (_remove_queue, "1 queues with 3 units were found; the checkpoint counted 2 with 5"),
        (_shorten_queue, "2 queues with 4 units were found; the checkpoint counted 2 with 5"),
        (_swap_unit, "queue 0 of orders points at no record of its own"),
        (_remove_index, "store/index: does not match the checkpoint"),
        (_shorten_index, "has 100 bytes; 8 slots and 40 entries need"),
        (_move_position, "the record at {anchor} ends at {end}, not at {before}"),
        (_move_anchor, "no intact record at {behind}, the anchor of the checkpoint"),
    ],
)
def test_recovery_rebuilds_what_contradicts_the_checkpoint(
    world: World, spoil: Callable[[World], None], reason: str
) -> None:
    end, anchor = world.store.log.end, world.starts[4]
    world.disk.kill()
    spoil(world)
    report = world.restart()
    expected = reason.format(anchor=anchor, end=end, before=end - 1, behind=anchor + 1)
    assert expected in report.rebuilt
    assert (report.records, report.scanned_bytes, report.damage) == (5, end, [])
    assert world.messages() == [0, 1, 2]
    assert world.messages(OTHER) == [3, 4]
    assert all(world.is_found(number) for number in range(5))
    assert world.restart().rebuilt == "", "once is enough"


def test_recovery_rebuilds_everything_on_request(world: World) -> None:
    report = world.restart(rebuild=True)
    assert (report.rebuilt, report.records) == ("it was requested", 5)
    assert world.messages() == [0, 1, 2]
    assert all(world.is_found(number) for number in range(5))


def test_recovery_repeats_an_interrupted_rebuild() -> None:
    """Whichever call the rebuild dies at, its partial result must not be taken for the state of the
    checkpoint."""
    call, has_failed, interrupted = 0, True, 0
    while has_failed:
        call += 1
        world = World()
        world.put(3)
        world.store.checkpoint()
        world.disk.kill()
        before = len(world.disk.calls)
        world.disk.fail_at(call, errno.EIO, onward=True)
        with contextlib.suppress(StoreFenced):
            world.restart(rebuild=True)
        has_failed = world.disk.failures > 0
        removals = [
            made for made in world.disk.calls[before : before + call - 1] if made.kind == "remove"
        ]
        world.disk.heal()
        rebuilt = world.restart().rebuilt
        if has_failed and removals:
            interrupted += 1
            assert rebuilt or world.disk.calls[before + call - 1].path == "store/checkpoint"
        assert world.messages() == [0, 1, 2]
        assert all(world.is_found(number) for number in range(3))
    assert interrupted


def test_recovery_rebuilds_when_the_log_starts_after_the_checkpoint(world: World) -> None:
    world.put(25)
    world.store.flush()
    world.disk.kill()
    world.disk.remove(f"store/commitlog/{0:020d}")
    report = world.restart()
    assert "the log starts after it" in report.rebuilt
    assert report.records == sum(start >= FILE_BYTES for start in world.starts)
    first = next(number for number, start in enumerate(world.starts) if start >= FILE_BYTES)
    assert world.messages() == list(range(first, 30)), "from the first that the log still has"
    assert world.store.min_offset(KEY) == first - 2, "in the ranks that they always had"


def test_recovery_drops_index_entries_beyond_the_checkpoint(world: World) -> None:
    world.put(2)
    report = world.restart()
    assert report.rebuilt == ""
    assert [world.is_found(number) for number in range(7)] == [True] * 7


def test_recovery_accepts_a_checkpoint_at_the_start_of_the_next_file(world: World) -> None:
    """The checkpoint may be after the blank end of a file."""
    world.put(25)
    world.store.checkpoint()
    first = next(start for start in world.starts if start >= FILE_BYTES)
    last_of_first_file = world.starts[world.starts.index(first) - 1]

    def move(found: Checkpoint) -> Checkpoint:
        return replace(found, derived=FILE_BYTES, anchor=last_of_first_file)

    world.disk.kill()
    world.change_checkpoint(move)
    assert "ends at" not in world.restart().rebuilt


# Directories that Java wrote


@pytest.mark.parametrize(("age", "is_served"), [(7, True), (6, False)])
def test_recovery_of_a_java_checkpoint_derives_the_flushed_end_from_its_time(
    world: World, age: int, is_served: bool
) -> None:
    """Message n is of second n + 1; number 5 is damaged. If 6 is older than the time of the
    checkpoint and a record of that time exists, 5 was flushed: damage. Otherwise it is unknown."""
    world.put(4)
    world.disk.kill()
    begin_ms = world.clock.now_ms() - 9000
    page = TIMES.pack(*[begin_ms + 1000 * (age + 1)] * 3)
    world.disk.open("store/checkpoint").pwrite(0, page.ljust(SECTOR, b"\0"))
    world.write(world.starts[5] + 100, b"!")
    report = world.restart()
    assert report.rebuilt == "there is no checkpoint of Tianzhou"
    assert (report.quarantine == "") == is_served
    assert world.messages() == ([0, 1, 2, 6, 7, 8] if is_served else [0, 1, 2])


# The rest


def test_recovery_reports_progress_up_to_the_total(world: World) -> None:
    world.disk.kill()
    steps: list[tuple[int, int]] = []
    MessageStore(
        world.disk,
        "store",
        CONFIG,
        world.clock,
        rebuild=True,
        progress=lambda done, total: steps.append((done, total)),
    )
    assert steps == [(world.store.log.end, FILE_BYTES), (FILE_BYTES, FILE_BYTES)]


def test_recovery_rewrites_bytes_that_may_not_be_synced() -> None:
    disk = SimDisk()
    log = CommitLog(disk, "log", file_bytes=FILE_BYTES, reserve_bytes=4096)
    log.append(chunk(b"a" * 3000, b"b" * 3000), queue_offsets=[0, 1], now_ms=1)
    before = len(disk.calls)
    rewrite_unsynced(log, PhysicalOffset(1000))
    assert [call[:4] for call in disk.calls[before:]] == [
        ("pwrite", log.segments[0].file.path, 1000, FILE_BYTES - 1000),
        ("pwrite", log.segments[1].file.path, 0, log.end - FILE_BYTES),
    ]
    assert log.segments[0].read(0, FILE_BYTES // 2).count(b"a") > 1000
    before = len(disk.calls)
    rewrite_unsynced(log, log.end)
    assert len(disk.calls) == before


def test_recovery_with_a_queue_newer_than_the_checkpoint_rebuilds_nothing() -> None:
    """Its units were written because they filled a page; an ordinary kill must raise no alarm."""
    world = World()
    world.put(5)
    world.store.flush()
    world.put(300, key=OTHER)
    world.store.queues.write_out()
    report = world.restart()
    assert report.rebuilt == ""
    assert world.messages(OTHER) == list(range(5, 305))[: len(world.messages(OTHER))]
    assert world.store.max_offset(OTHER) == 300
    assert world.store.incidents.open == []
