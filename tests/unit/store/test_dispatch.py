import pytest
from small_store import FILE_BYTES, KEY, OTHER, chunk

from tianzhou.base.kinds import PhysicalOffset, QueueKey
from tianzhou.record import flags
from tianzhou.record.chunk import RecordChunk, stamp
from tianzhou.record.layout import AT_SYS_FLAG
from tianzhou.store import scan
from tianzhou.store.commit_log import CommitLog
from tianzhou.store.consume_queue import UNIT, Queues
from tianzhou.store.derive import QueueUnits
from tianzhou.store.dispatch import Dispatcher, FreshRecords
from tianzhou.store.key_index import KeyIndex
from tianzhou.testing.sim.clock import ManualClock
from tianzhou.testing.sim.disk import SimDisk

NOW = 1_700_000_000_000


class World:
    """A log that is written to directly, and what is dispatched from it."""

    def __init__(self) -> None:
        disk = SimDisk()
        self.log = CommitLog(disk, "log", file_bytes=FILE_BYTES, reserve_bytes=4096)
        self.queues = Queues(disk, "cq", 10)
        self.index = KeyIndex(disk, "index", ManualClock(), slots=8, entries=40)
        self.dispatcher = Dispatcher(self.log, self.queues, self.index, ())
        self.starts: list[int] = []
        self._ranks: dict[QueueKey, int] = {}

    def append(self, made: RecordChunk, *, offer: bool = False) -> None:
        ranks: list[int] = []
        for queue in made.queues:
            ranks.append(self._ranks.get(queue, 0) if queue else 0)
            if queue:
                self._ranks[queue] = ranks[-1] + 1
        pieces = self.log.append(made, queue_offsets=ranks, now_ms=NOW + len(self.starts))
        for piece in pieces:
            first = made.starts[piece.first]
            self.starts += [
                piece.offset + at - first for at in made.starts[piece.first : piece.end]
            ]
        if offer:
            assert len(pieces) == 1
            self.dispatcher.fresh.append(FreshRecords(pieces[0].offset, made.data, made.starts))

    def offsets(self, key: QueueKey = KEY) -> list[int]:
        """Where the messages of a queue stand, according to its units."""
        queue = self.queues.get(key)
        return [at for at, _, _ in UNIT.iter_unpack(queue.read(0, queue.end))] if queue else []

    def run(self, limit: int | None = None) -> list[QueueUnits]:
        return self.dispatcher.run(PhysicalOffset(self.log.end if limit is None else limit))


@pytest.fixture
def world() -> World:
    return World()


def count(runs: list[QueueUnits]) -> int:
    return sum(len(run.units) for run in runs) // UNIT.size


@pytest.mark.parametrize("offer", [False, True])
def test_dispatch_stops_at_the_given_limit(world: World, offer: bool) -> None:
    world.append(chunk(b"a", b"b", b"c"), offer=offer)
    assert world.run(0) == []
    assert world.offsets() == []
    assert count(world.run(world.starts[2])) == 2
    assert world.offsets() == world.starts[:2]
    assert world.dispatcher.position == world.starts[2]
    assert count(world.run()) == 1
    assert world.offsets() == world.starts
    assert world.run() == []


@pytest.mark.parametrize("offer", [False, True])
def test_dispatch_remembers_the_last_record(world: World, offer: bool) -> None:
    world.append(chunk(b"a"), offer=offer)
    world.append(chunk(b"b", b"c"), offer=offer)
    while world.run():
        pass
    dispatcher = world.dispatcher
    assert dispatcher.position == world.log.end
    assert dispatcher.anchor == world.starts[2]
    assert dispatcher.last_timestamp == NOW + 1


def test_dispatch_runs_list_what_became_visible(world: World) -> None:
    world.append(chunk(b"a", b"b"))
    world.append(chunk(b"c", key=OTHER))
    one, other = sorted(world.run())
    assert (one.queue, one.first, len(one.units)) == (KEY, 0, 40)
    assert (other.queue, other.first, len(other.units)) == (OTHER, 0, 20)
    world.append(chunk(b"d"))
    (run,) = world.run()
    assert (run.queue, run.first) == (KEY, 2)


def test_dispatch_of_offered_records_does_not_read_the_log(world: World) -> None:
    world.append(chunk(b"a"), offer=True)
    world.log.segments[0].file.pwrite(0, bytes(200))  # as if the log could not be read
    assert count(world.run()) == 1


def test_dispatch_merges_small_offers_into_one_slice(world: World) -> None:
    for body in (b"a", b"b", b"c"):
        world.append(chunk(body), offer=True)
    assert count(world.run()) == 3
    assert world.run() == []
    assert world.offsets() == world.starts


def test_dispatch_releases_offers_it_has_passed(world: World) -> None:
    for body in (b"a", b"b", b"c"):
        world.append(chunk(body), offer=True)
    world.run()
    world.append(chunk(b"d"))
    assert count(world.run()) == 1
    assert not world.dispatcher.fresh


def test_dispatch_slice_is_limited_in_count(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan, "SLICE_RECORDS", 3)
    world.append(chunk(*[b"x"] * 7))
    assert [count(world.run()) for _ in range(4)] == [3, 3, 1, 0]
    assert world.offsets() == world.starts


def test_dispatch_slice_is_limited_in_bytes(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    made = chunk(*[b"x" * 10] * 4)
    monkeypatch.setattr(scan, "SLICE_BYTES", made.starts[2] + 5)
    world.append(made)
    assert [count(world.run()) for _ in range(3)] == [2, 2, 0]


def test_dispatch_record_larger_than_a_slice_gets_its_own_slice(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scan, "SLICE_BYTES", 200)
    world.append(chunk(b"x" * 500, b"y" * 500))
    assert [count(world.run()) for _ in range(3)] == [1, 1, 0]
    assert world.offsets() == world.starts


def test_dispatch_skips_the_blank_end_of_a_file(world: World) -> None:
    world.append(chunk(b"a" * 3000, b"b" * 3000))
    assert [count(world.run()) for _ in range(3)] == [1, 1, 0]
    assert world.offsets() == [0, FILE_BYTES]
    assert world.dispatcher.anchor == FILE_BYTES


def test_dispatch_of_invisible_records_advances_the_position(world: World) -> None:
    world.append(chunk(b"half", sys_flag=flags.TRANSACTION_PREPARED))
    assert world.run() == []
    assert world.dispatcher.position == world.log.end
    assert len(world.queues) == 0


def test_dispatch_adds_keys_to_the_index(world: World) -> None:
    world.append(chunk(b"a", b"b", keys="red blue"))
    world.run()
    found = world.index.find("orders", "blue", begin_ms=0, end_ms=1 << 61, count_max=9)
    assert found == world.starts[::-1]


def test_dispatch_without_an_index_fills_queues(world: World) -> None:
    world.append(chunk(b"a", keys="red"))
    Dispatcher(world.log, world.queues, None, ()).run(world.log.end)
    assert world.offsets() == world.starts


def test_dispatch_of_overwritten_bytes_reports_damage_and_continues(world: World) -> None:
    world.append(chunk(b"a", b"b", b"c"))
    world.log.segments[0].file.pwrite(world.starts[1], b"\1" * 8)
    assert count(world.run()) == 1
    assert count(world.run()) == 1
    (damage,) = world.dispatcher.take_damage()
    assert damage[:2] == (world.starts[1], world.starts[2])
    assert "no record where one was appended (damaged)" in damage.reason
    assert world.dispatcher.position == world.log.end
    assert world.dispatcher.damage == []


def test_dispatch_without_a_valid_record_after_damage_goes_to_the_limit(world: World) -> None:
    world.append(chunk(b"a", b"b"))
    world.log.segments[0].file.pwrite(world.starts[1], b"\1" * 8)
    while world.run():
        pass
    (damage,) = world.dispatcher.take_damage()
    assert damage[:2] == (world.starts[1], world.log.end)
    assert world.dispatcher.position == world.log.end


@pytest.mark.usefixtures("unchecked_appends")
@pytest.mark.parametrize("count_of_others", [1, 40])
def test_dispatch_of_a_malformed_record_skips_that_record_only(
    world: World, count_of_others: int
) -> None:
    """Flag bits that claim long hosts, under a checksum that agrees: what a bug could write."""
    made = chunk(*[b"x"] * (2 * count_of_others + 1), keys="k")
    made.data[made.starts[count_of_others] + AT_SYS_FLAG + 3] |= flags.BORN_HOST_V6
    world.append(made)
    while world.run():
        pass
    (malformed,) = world.dispatcher.take_malformed()
    bad = world.starts[count_of_others]
    assert (malformed.offset, malformed.size) == (bad, made.ends[0])
    assert "claims" in malformed.reason
    in_queue = [0 if start == bad else start for start in world.starts]
    assert world.offsets() == in_queue, "the unit of a missing message has offset 0"
    found = world.index.find("orders", "k", begin_ms=0, end_ms=1 << 61, count_max=999)
    assert found == [start for start in reversed(world.starts) if start != bad]
    assert world.dispatcher.position == world.log.end


def test_dispatch_of_an_impossible_queue_offset_fills_no_gap(world: World) -> None:
    world.append(chunk(b"a"))
    world.run()
    made = chunk(b"far")
    stamp(made, 0, 1, queue_offsets=[1 << 40], physical_offset=world.log.end, store_timestamp=1)
    data = bytes(made.data)
    world.log.append_raw(data, timestamp=1)
    assert world.run() != []
    (malformed,) = world.dispatcher.take_malformed()
    assert malformed.size == len(data)
    assert "more than the log can have held" in malformed.reason
    assert world.offsets() == [0]
    assert world.dispatcher.position == world.log.end


def test_dispatch_position_never_decreases(world: World) -> None:
    world.dispatcher.skip_to(PhysicalOffset(100))
    with pytest.raises(AssertionError):
        world.dispatcher.skip_to(PhysicalOffset(99))
