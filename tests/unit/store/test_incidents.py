"""Incidents are stored on disk, once each, until an operator acknowledges them."""

import pytest

from tianzhou.store.errors import StoreDamaged
from tianzhou.store.incidents import KEPT_MAX, LOG_DAMAGED, Incident, Incidents
from tianzhou.testing.sim.disk import SimDisk
from tianzhou.testing.sim.disk_faults import lost


def damage(number: int, *, found_ms: int = 5) -> Incident:
    return Incident(kind=LOG_DAMAGED, text=f"damage {number}", found_ms=found_ms, place=str(number))


def after_power_loss(disk: SimDisk) -> Incidents:
    return Incidents(SimDisk(lost(disk)), "config")


def test_incident_reported_survives_power_loss() -> None:
    disk = SimDisk()
    Incidents(disk, "config").report([damage(1)])
    assert after_power_loss(disk).open == [damage(1)]


def test_incident_found_again_is_reported_once() -> None:
    disk = SimDisk()
    found = Incidents(disk, "config")
    found.report([damage(1)])
    before = len(disk.calls)
    found.report([damage(1, found_ms=9)])
    assert found.open == [damage(1)]
    assert len(disk.calls) == before


def test_incident_acknowledged_stays_closed() -> None:
    disk = SimDisk()
    found = Incidents(disk, "config")
    found.report([damage(1), damage(2)])
    assert found.acknowledge(77) == [damage(1), damage(2)]
    found.report([damage(1)])
    assert found.open == after_power_loss(disk).open == []
    found.report([damage(3)])
    assert after_power_loss(disk).open == [damage(3)]


def test_incidents_acknowledge_of_nothing_writes_nothing() -> None:
    disk = SimDisk()
    assert Incidents(disk, "config").acknowledge(1) == []
    assert disk.calls == []


def test_incidents_beyond_the_limit_are_counted() -> None:
    disk = SimDisk()
    found = Incidents(disk, "config")
    for number in range(KEPT_MAX + 10):
        found.report([damage(number)])
    assert (len(found.open), found.left_out) == (KEPT_MAX, 10)
    found.acknowledge(1)
    for number in range(1000, 1000 + KEPT_MAX):
        found.report([damage(number)])
    found.acknowledge(2)
    assert (after_power_loss(disk).open, after_power_loss(disk).left_out) == ([], 0)
    assert disk.open("config/incidents.json").size() < 200 * KEPT_MAX


def test_incidents_kept_queue_ends_grow_until_the_topic_is_deleted() -> None:
    disk = SimDisk()
    found = Incidents(disk, "config")
    found.keep_ends({"a": {0: 5, 1: 7}, "b": {0: 1}}, skipped=3)
    found.keep_ends({"a": {0: 4, 1: 9}}, skipped=0)
    assert found.queue_ends == {"a": {0: 5, 1: 9}, "b": {0: 1}}
    found.forget_topic("a")
    found.forget_topic("unknown")
    assert after_power_loss(disk).queue_ends == {"b": {0: 1}}
    assert after_power_loss(disk).skipped == 0


@pytest.mark.parametrize("data", [b"{", b"[]", b'{"incidents": 3}'])
def test_incidents_file_unreadable_is_named(data: bytes) -> None:
    disk = SimDisk()
    disk.make_dirs("config")
    disk.create("config/incidents.json", 0).pwrite(0, data)
    with pytest.raises(StoreDamaged, match=r"config/incidents\.json"):
        Incidents(disk, "config")
