"""Asynchronous replication between real processes: same bytes, whichever is killed and when."""

from pathlib import Path

from ha_cluster import Group, until_equal

from tianzhou.testing.chaos.processes import FILE_BYTES


def test_slave_has_the_same_bytes_after_kills_of_both(tmp_path: Path) -> None:
    with Group(tmp_path) as group:
        master, slave = group.master, group.add(1)
        master.start()
        group.create_topic()
        group.send(300, size=1000)
        slave.start()  # replicates from the oldest data, over several files
        until_equal(master, slave)
        group.send(100)
        slave.server.kill()
        group.send(400, size=1000)
        slave.start()
        until_equal(master, slave)
        master.server.kill()
        master.start()
        group.send(300)
        until_equal(master, slave)
        assert len(master.log_bytes()) > 2
        assert all(len(data) == FILE_BYTES for data in slave.log_bytes().values())
