from typing import Final

import pytest

from tianzhou.base.kinds import QueueOffset, queue_key
from tianzhou.store.consume_queue import UNIT, UNIT_BYTES, ConsumeQueue
from tianzhou.store.derive import QueueUnits
from tianzhou.store.file_cache import FileCache
from tianzhou.store.verify import QueueCheck
from tianzhou.testing.sim.disk import SimDisk

KEY: Final = queue_key("orders", 0)
FILE_UNITS: Final = 10


def run(first: int, *offsets: int) -> QueueUnits:
    units = b"".join(UNIT.pack(offset, 100, 7) for offset in offsets)
    return QueueUnits(KEY, QueueOffset(first), units)


def queue_of(*runs: QueueUnits) -> ConsumeQueue:
    queue = ConsumeQueue(FileCache(SimDisk(), 4), "cq/orders/0", KEY, FILE_UNITS)
    for one in runs:
        queue.append(one.first, one.units)
    return queue


def check_of(queue: ConsumeQueue | None) -> QueueCheck:
    return QueueCheck(queue, FILE_UNITS, lambda units: len(units) // UNIT_BYTES)


LIVES = [
    [run(0, 100, 200), run(2, 300)],
    [run(5, 600, 700)],
    [run(0, 100, 200), run(4, 900)],  # a gap, as behind damage
    [run(0, 100, 200), run(1, 150)],  # two records claim one rank
    [run(0, 100, 200, 300), run(0, 1000), run(1, 1100)],  # deleted, and created again
]


@pytest.mark.parametrize("runs", LIVES)
def test_queue_check_of_matching_units_is_correct(runs: list[QueueUnits]) -> None:
    queue = queue_of(*runs)
    check = check_of(queue)
    assert all(check.take(one) for one in runs)
    assert (check.is_wrong, check.pending, check.owed, check.end) == (False, 0, 0, queue.end)


def test_queue_check_counts_but_does_not_compare_units_of_a_deleted_topic() -> None:
    runs = LIVES[-1]
    check = check_of(queue_of(*runs[1:]))
    for one in runs:
        check.take(one)
    assert (check.deleted, check.count, check.is_wrong) == (3, 2, False)


def test_queue_check_of_different_units_is_wrong() -> None:
    check = check_of(queue_of(run(0, 100, 201)))
    check.take(run(0, 100, 200))
    assert check.is_wrong


def test_queue_check_of_missing_units_is_pending() -> None:
    check = check_of(queue_of(run(0, 100)))
    check.take(run(0, 100, 200, 300))
    assert (check.is_wrong, check.pending, check.owed) == (False, 2, 2)
    nothing = check_of(None)
    nothing.take(run(0, 100))
    assert (nothing.exists, nothing.pending) == (False, 1)


def test_queue_check_rejects_an_impossible_offset_like_the_queue() -> None:
    queue = queue_of(run(0, 100))
    far = run(1_000_000, 300)
    assert not queue.append(far.first, far.units)
    check = check_of(queue)
    check.take(run(0, 100))
    assert not check.take(far)
    assert (check.end, check.is_wrong, check.pending) == (1, False, 0)


def test_queue_check_accepts_an_offset_after_an_accepted_loss() -> None:
    queue = queue_of(run(0, 100))
    kept = QueueOffset(5_000)
    queue.append(kept, b"")  # as a start with an accepted loss does
    after = run(5_000, 300)
    assert queue.append(after.first, after.units)
    check = QueueCheck(queue, FILE_UNITS, lambda units: len(units) // UNIT_BYTES, kept=int(kept))
    check.take(run(0, 100))
    assert check.take(after)
    assert (check.end, check.is_wrong, check.pending) == (queue.end, False, 0)
