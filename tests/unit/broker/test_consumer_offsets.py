"""The table of consumer offsets."""

import pytest

from tianzhou.broker.groups.consumer_offsets import ConsumerOffsets
from tianzhou.store.tables import Tables
from tianzhou.testing.sim.clock import ManualClock
from tianzhou.testing.sim.disk import SimDisk
from tianzhou.wire.tables import ConsumerOffsetTable


def made(disk: SimDisk | None = None) -> ConsumerOffsets:
    return ConsumerOffsets(Tables(disk or SimDisk(), "config").consumer_offsets, ManualClock())


def test_consumer_offsets_last_value_wins_even_if_lower() -> None:
    offsets = made()
    offsets.put("g", "t", 0, 9)
    offsets.put("g", "t", 0, 4)
    assert offsets.get("g", "t", 0) == 4
    assert offsets.get("g", "t", 1) is None
    assert offsets.get("h", "t", 0) is None


def test_consumer_offsets_load_of_a_negative_offset_uses_zero_and_warns(
    caplog: pytest.LogCaptureFixture,
) -> None:
    disk = SimDisk()
    stored = ConsumerOffsetTable(offset_table={"t@g": {0: -7, 1: 5, 2: -(2**63)}})
    Tables(disk, "config").consumer_offsets.save(stored)
    assert made(disk).of("g", "t") == {0: 0, 1: 5, 2: 0}
    warned = [(one.message, vars(one)["offset"]) for one in caplog.records]
    assert warned == [("offset.negative", -7), ("offset.negative", -(2**63))]


def test_consumer_offsets_save_writes_only_changes() -> None:
    disk = SimDisk()
    offsets = made(disk)
    offsets.save()
    assert not disk.exists("config/consumerOffset.json")
    offsets.put("g", "t", 0, 9)
    assert made(disk).get("g", "t", 0) is None
    offsets.save()
    assert made(disk).get("g", "t", 0) == 9
    assert offsets.table().data_version.counter == 1
    offsets.save()
    assert offsets.table().data_version.counter == 1


def test_consumer_offsets_of_different_names_are_independent() -> None:
    offsets = made()
    for group, topic in (("g", "t"), ("gg", "t"), ("g", "tt")):
        offsets.put(group, topic, 0, 1)
    assert offsets.topics_of("g") == ["t", "tt"]
    assert offsets.groups_of("t") == ["g", "gg"]
    offsets.remove_topic("t")
    assert offsets.topics_of("g") == ["tt"]
    assert offsets.topics_of("gg") == []
    offsets.remove_group("g")
    assert offsets.table().offset_table == {}


def test_consumer_offsets_clone_is_independent() -> None:
    offsets = made()
    offsets.put("g", "t", 3, 7)
    offsets.clone("g", "h", "t")
    offsets.put("g", "t", 3, 8)
    assert offsets.of("h", "t") == {3: 7}


def test_consumer_offsets_remember_when_a_group_advanced() -> None:
    clock = ManualClock()
    offsets = ConsumerOffsets(Tables(SimDisk(), "config").consumer_offsets, clock)
    offsets.put("g", "t", 0, 9)
    moved_ms = clock.now_ms()
    clock.advance(ms=500)
    offsets.put("g", "t", 0, 9)  # the same offset again does not count as progress
    assert offsets.moved_ms("g", "t") == {0: moved_ms}
    offsets.put("g", "t", 0, 4)
    assert offsets.moved_ms("g", "t") == {0: moved_ms + 500}
    offsets.remove_group("g")
    assert offsets.moved_ms("g", "t") == {}


def test_consumer_offsets_first_commit_of_zero_records_its_time() -> None:
    offsets = made()
    offsets.put("g", "t", 0, 0)
    assert offsets.get("g", "t", 0) == 0
    assert set(offsets.moved_ms("g", "t")) == {0}
