"""A log is made a beginning of another one, and nothing is thrown away on the way."""

import json

import msgspec
import pytest
from ha_stores import FILE_BYTES, bodies, copy_to, open_store, put, welcome_of

from tianzhou.base.kinds import PhysicalOffset
from tianzhou.record.walk import walk
from tianzhou.replication.errors import PeerRefused
from tianzhou.replication.ha_epochs import appointed, first
from tianzhou.replication.ha_frames import Welcome
from tianzhou.replication.ha_state import (
    GroupState,
    check_master,
    matches,
    probe_of,
    settle_log,
    state_table,
)
from tianzhou.testing.sim.disk import SimDisk

FIRST = first("aa")


def test_settle_log_quarantines_and_lists_messages_of_the_old_master() -> None:
    disk = SimDisk()
    old, new = open_store(disk), open_store()
    put(old, *(b"%d" % n * 100 for n in range(30)))
    copy_to(new, old)
    marks = appointed(FIRST, new.log.end, token="bb", epoch=2)
    put(old, *(b"lost %d " % n * 100 for n in range(9)))
    parted, ended = int(new.log.end), int(old.log.end)
    new.begin_writing()
    put(new, b"found")
    settle_log(old, FIRST, welcome_of(new, marks), from_last_file=False)
    assert old.log.end == parted
    copy_to(old, new)
    assert bodies(old) == bodies(new)
    name = f"data/set-aside/{parted:020d}-{ended:020d}"
    log, listed = disk.open(f"{name}.log"), disk.open(f"{name}.jsonl")
    assert log.size() == ended - parted
    rows = [json.loads(line) for line in listed.pread(0, listed.size()).splitlines()]
    assert [row["queueOffset"] for row in rows] == list(range(30, 39))
    assert {(row["topic"], row["messageId"]) for row in rows} == {("orders", "U1")}
    data = log.pread(0, log.size())
    room = FILE_BYTES - parted % FILE_BYTES
    assert len(walk(data, 0, min(len(data), room)).starts) > 0


def test_settle_log_keeps_an_equal_or_shorter_log() -> None:
    master, slave = open_store(), open_store()
    put(master, *(b"%d" % n * 100 for n in range(30)))
    copy_to(slave, master)
    settle_log(slave, FIRST, welcome_of(master, FIRST), from_last_file=False)
    assert slave.log.end == master.log.end
    put(master, b"more")
    settle_log(slave, FIRST, welcome_of(master, FIRST), from_last_file=False)
    assert slave.log.end < master.log.end


@pytest.mark.parametrize("from_last_file", [False, True])
def test_settle_log_of_an_empty_log_starts_at_the_oldest_or_last_file(from_last_file: bool) -> None:
    master, slave = open_store(), open_store()
    put(master, *(b"%d" % n * 100 for n in range(60)))
    assert len(master.log.segments) > 2
    settle_log(slave, (), welcome_of(master, FIRST), from_last_file=from_last_file)
    assert slave.log.end == (master.log.segments[-1].start if from_last_file else 0)
    copy_to(slave, master)
    assert bodies(slave) == bodies(master)[-len(bodies(slave)) :]


def test_settle_log_that_ends_before_the_master_starts_is_restarted() -> None:
    master, slave = open_store(), open_store()
    put(master, b"old" * 100)
    copy_to(slave, master)
    put(master, *(b"%d" % n * 100 for n in range(60)))
    start = master.log.segments[2].start
    told = welcome_of(master, FIRST)
    moved = msgspec.structs.replace(told, min=int(start))
    settle_log(slave, FIRST, moved, from_last_file=False)
    assert slave.log.min_offset == slave.log.end == start


def test_check_master_rejects_masters_that_cannot_be_followed() -> None:
    master, slave = open_store(), open_store()
    put(slave, b"x")
    later = appointed(FIRST, PhysicalOffset(0), token="bb", epoch=2)
    with pytest.raises(PeerRefused, match="epoch 1; this broker followed one of epoch 2"):
        check_master(slave, later, welcome_of(master, FIRST))
    with pytest.raises(PeerRefused, match="commit_log_file_bytes"):
        check_master(slave, FIRST, Welcome(file_bytes=1024))
    with pytest.raises(PeerRefused, match="does not say why"):
        settle_log(slave, FIRST, welcome_of(master, FIRST), from_last_file=False)


def test_probe_recognises_the_end_of_a_log() -> None:
    one, other = open_store(), open_store()
    assert probe_of(one) is None
    put(one, *(b"%d" % n * 100 for n in range(20)))
    copy_to(other, one)
    put(one, b"more")
    probe = probe_of(other)
    assert probe is not None
    assert matches(one, probe)
    stranger = open_store()
    put(stranger, *(b"%d" % n * 101 for n in range(30)))
    assert not matches(stranger, probe)


def test_group_state_survives_power_loss() -> None:
    disk = SimDisk()
    store = open_store(disk)
    table = state_table(store.files, store.paths.tables)
    assert table.load().role == ""
    state = GroupState(role="SLAVE", broker_id=3, marks=FIRST)
    table.save(state)
    assert table.load() == state
