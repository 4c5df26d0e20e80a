import errno
import struct

import numpy as np
import pytest

from tianzhou.store.index_file import PAGE_SLOTS, SLICE_PAGES, SLOT_BYTES, SlotTable
from tianzhou.testing.sim.disk import SimDisk, SimFile

AT = 40
SLOTS = 4 * PAGE_SLOTS + 7


def make(slots: int = SLOTS) -> tuple[SimDisk, SimFile, SlotTable]:
    disk = SimDisk()
    file = disk.create("index", AT + SLOT_BYTES * slots)
    return disk, file, SlotTable.empty(file, AT, slots)


def put(table: SlotTable, heads: dict[int, int]) -> None:
    for slot, number in heads.items():
        table.put(slot, number)


def write_all(table: SlotTable) -> None:
    table.begin_write()
    while not table.write_some():
        pass


def test_slot_table_round_trips() -> None:
    _, file, table = make()
    put(table, {0: 1, 5: 2, SLOTS - 1: 3})
    table.put_many(np.array([1, 2 * PAGE_SLOTS]), np.array([4, 1 << 30]))
    write_all(table)
    again = SlotTable.decode(file, AT, file.pread(AT, SLOT_BYTES * SLOTS))
    assert again.values.tolist() == table.values.tolist()
    assert [again.heads[slot] for slot in (0, 1, 5, SLOTS - 1)] == [1, 4, 2, 3]
    assert file.pread(AT + SLOT_BYTES * 5, SLOT_BYTES) == struct.pack(">i", 2)
    assert file.size() == AT + SLOT_BYTES * SLOTS


def test_slot_table_writes_changed_pages_and_merges_neighbours() -> None:
    disk, _, table = make()
    put(table, {0: 1, PAGE_SLOTS: 2, 3 * PAGE_SLOTS: 3})
    before = len(disk.calls)
    write_all(table)
    pages = [(call.at, call.size) for call in disk.calls[before:]]
    page = SLOT_BYTES * PAGE_SLOTS
    assert pages == [(AT, 2 * page), (AT + 3 * page, page)]
    write_all(table)
    assert len(disk.calls) == before + 2, "nothing has changed since"


def test_slot_table_change_during_a_write_is_in_the_next_one() -> None:
    disk, file, table = make(slots=(SLICE_PAGES + 2) * PAGE_SLOTS)
    table.change_all()
    table.begin_write()
    assert not table.write_some()
    table.put(3, 9)
    assert table.write_some()
    assert file.pread(AT + SLOT_BYTES * 3, SLOT_BYTES) == bytes(4)
    before = len(disk.calls)
    write_all(table)
    assert len(disk.calls) == before + 1
    assert file.pread(AT + SLOT_BYTES * 3, SLOT_BYTES) == struct.pack(">i", 9)


def test_slot_table_rewrites_pages_whose_write_failed() -> None:
    disk, file, table = make()
    table.put(3, 9)
    table.begin_write()
    disk.fail_at(1, errno.EIO)
    with pytest.raises(OSError, match="Input/output"):
        table.write_some()
    assert table.write_some()
    assert file.pread(AT + SLOT_BYTES * 3, SLOT_BYTES) == struct.pack(">i", 9)
