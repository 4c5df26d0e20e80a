import resource

import pytest

from tianzhou.base.kinds import PhysicalOffset, QueueOffset, queue_key
from tianzhou.store.consume_queue import MISSING, UNIT, Queues, open_files_max
from tianzhou.store.errors import StoreDamaged
from tianzhou.store.segments import file_name
from tianzhou.testing.sim.disk import SimDisk

FILE_UNITS = 4
A0, A1, B0 = queue_key("a", 0), queue_key("a", 1), queue_key("b", 0)
FAR = PhysicalOffset(1 << 62)


def open_queues(disk: SimDisk) -> Queues:
    return Queues(disk, "cq", FILE_UNITS)


def units(count: int, offset: int = 0) -> bytes:
    return b"".join(UNIT.pack(offset + 100 * rank, 100, 0) for rank in range(count))


@pytest.fixture
def disk() -> SimDisk:
    """Two topics: `a` with queues of 6 and 2 units, `b` with one of 3."""
    made = SimDisk()
    queues = open_queues(made)
    queues.obtain(A0).append(QueueOffset(0), units(6))
    queues.obtain(A1).append(QueueOffset(0), units(2, 1000))
    queues.obtain(B0).append(QueueOffset(0), units(3, 2000))
    queues.write_out()
    queues.close()
    return made


def ends(queues: Queues) -> dict[tuple[str, int], int]:
    return {queue.key: queue.end for queue in queues}


def test_queues_are_created_once_and_on_demand() -> None:
    queues = open_queues(SimDisk())
    assert queues.get(A0) is None
    made = queues.obtain(A0)
    assert queues.obtain(A0) is queues.get(A0) is made
    assert len(queues) == 1
    assert made.directory == "cq/a/0"


def test_queues_sync_new_directories_at_the_next_checkpoint() -> None:
    queues = open_queues(SimDisk())
    queues.obtain(A0).append(QueueOffset(0), units(1))
    queues.write_out()
    files, directories = queues.cache.take_dirty()
    assert files == {f"cq/a/0/{file_name(0)}"}
    assert {"cq", "cq/a", "cq/a/0"} <= directories


def test_queues_reopened_have_the_written_units(disk: SimDisk) -> None:
    queues = open_queues(disk)
    queues.load(below=FAR, clean=True)
    assert ends(queues) == {A0: 6, A1: 2, B0: 3}
    assert queues.census().units == 11
    assert sorted(queue.key for queue in queues.of_topic("a")) == [A0, A1]
    found = queues.get(B0)
    assert found is not None
    assert found.read(0, 3) == units(3, 2000)


def test_queues_cut_units_beyond_the_checkpoint(disk: SimDisk) -> None:
    queues = open_queues(disk)
    queues.load(below=PhysicalOffset(300), clean=False)
    assert ends(queues) == {A0: 3, A1: 0, B0: 0}
    again = open_queues(disk)
    again.load(below=FAR, clean=True)
    assert ends(again) == {A0: 3, A1: 0, B0: 0}, "on disk too"


def test_queues_reject_a_foreign_directory_name(disk: SimDisk) -> None:
    disk.make_dirs("cq/a/found")
    with pytest.raises(StoreDamaged, match=r"cq/a/found: is not a queue number"):
        open_queues(disk).load(below=FAR, clean=True)


def test_queues_read_only_create_no_directory() -> None:
    disk = SimDisk()
    Queues(disk, "cq", FILE_UNITS, create=False)
    assert not disk.exists("cq")


def test_queues_delete_topic_removes_exactly_its_queues(disk: SimDisk) -> None:
    queues = open_queues(disk)
    queues.load(below=FAR, clean=True)
    assert queues.remove_topic("a") == 2
    assert ends(queues) == {B0: 3}
    assert disk.list("cq") == ["b"]
    assert disk.calls[-1].kind == "sync_dir"
    assert queues.remove_topic("a") == 0


def test_queues_delete_topic_that_was_never_written_removes_it(disk: SimDisk) -> None:
    queues = open_queues(disk)
    queues.obtain(queue_key("c", 0)).append(QueueOffset(0), units(1))
    assert queues.remove_topic("c") == 1
    assert disk.list("cq") == ["a", "b"]


def test_queues_prepared_for_rebuild_keep_units_of_expired_messages_only(disk: SimDisk) -> None:
    queues = open_queues(disk)
    queues.keep_expired(PhysicalOffset(300))
    assert ends(queues) == {A0: 3}, "the others speak of messages that the log still has"
    assert disk.list("cq") == ["a"]
    assert disk.list("cq/a") == ["0"]


def test_queues_prepared_for_rebuild_without_expired_messages_keep_nothing(disk: SimDisk) -> None:
    queues = open_queues(disk)
    queues.load(below=FAR, clean=True)
    queues.keep_expired(PhysicalOffset(0))
    assert ends(queues) == {}
    assert disk.list("cq") == []


def test_queues_prepared_for_rebuild_skip_an_unreadable_queue(disk: SimDisk) -> None:
    disk.create("cq/a/0/garbage", 10)
    queues = open_queues(disk)
    queues.keep_expired(PhysicalOffset(1100))
    assert ends(queues) == {A1: 1}
    assert disk.list("cq/a") == ["1"]


def test_queues_prepared_for_rebuild_drop_gaps(disk: SimDisk) -> None:
    queues = open_queues(disk)
    queues.obtain(queue_key("c", 0)).append(QueueOffset(0), MISSING * 2)
    queues.write_out()
    queues.keep_expired(PhysicalOffset(0))
    assert ends(queues) == {}


def test_queues_prepared_for_rebuild_forget_units_in_memory(disk: SimDisk) -> None:
    queues = open_queues(disk)
    queues.obtain(queue_key("c", 0)).append(QueueOffset(0), units(1))
    queues.keep_expired(PhysicalOffset(300))
    assert ends(queues) == {A0: 3}


def test_queues_count_units_from_the_first_file() -> None:
    queues = open_queues(SimDisk())
    queues.obtain(A0).append(QueueOffset(9), units(2))
    assert queues.census().units == 3, "the file of rank 9 begins with rank 8"


@pytest.mark.parametrize(
    ("soft", "expected"), [(100_000, 256), (1_024, 256), (512, 128), (3, 1), (-1, 256)]
)
def test_open_files_max_is_a_quarter_of_a_low_limit(
    monkeypatch: pytest.MonkeyPatch, soft: int, expected: int
) -> None:
    def limit(_: int) -> tuple[int, int]:
        return (resource.RLIM_INFINITY if soft < 0 else soft), 100_000

    monkeypatch.setattr(resource, "getrlimit", limit)
    assert open_files_max() == expected
