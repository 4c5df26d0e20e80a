"""Synchronous replication between real processes: a response is true."""

import os
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from ha_cluster import (
    GROUP,
    TOPIC,
    Group,
    cluster_rows,
    in_sync,
    promote,
    until,
    until_equal,
)

from tianzhou.admin.commands.replication import look_at
from tianzhou.client.sync import Producer, PullConsumer
from tianzhou.record.message import Message
from tianzhou.testing.chaos.processes import TIANZHOU

PAIR = '{"accessKey":"cluster","secretKey":"12345678"}'
SYNC = {"brokerRole": "SYNC_MASTER", "slaveTimeout": "600"}


def statuses(group: Group, count: int) -> list[str]:
    """The send status of each message."""
    with Producer("producers", nameserver=group.nameserver) as producer:
        return [producer.send(Message(TOPIC, b"x" * 300)).status.name for _ in range(count)]


def test_send_status_tells_whether_a_slave_has_the_message(tmp_path: Path) -> None:
    """Also in the strictest configuration: both disks have the message before the response."""
    with Group(tmp_path, flushDiskType="SYNC_FLUSH") as group:
        master = group.nodes[0] = group.master = group.add(0, **SYNC)
        slave = group.add(1)
        master.start()
        group.create_topic()
        assert set(statuses(group, 3)) == {"SLAVE_NOT_AVAILABLE"}
        slave.start()
        until(lambda: in_sync(master.address) == 1, "the slave is in sync")
        assert set(statuses(group, 100)) == {"SEND_OK"}
        look, copy = look_at(master.address), look_at(slave.address)
        assert look is not None
        assert copy is not None
        assert look.confirmed == look.end == copy.flushed
        slave.server.pause()
        assert statuses(group, 1) == ["FLUSH_SLAVE_TIMEOUT"]
        first, second = cluster_rows(group)
        assert (first["in_sync"], first["copies_needed"]) == ([0, 1], 2)
        assert first["confirmed"] == second["end"] == first["end"] - second["lag_bytes"]
        assert (second["lag_ms"] > 0, second["following"]) == (True, "does not respond")
        slave.server.resume()
        until(lambda: set(statuses(group, 1)) == {"SEND_OK"}, "the slave is back")
        slave.server.kill()
        until(lambda: in_sync(master.address) == 0, "the slave is gone")
        assert set(statuses(group, 2)) == {"SLAVE_NOT_AVAILABLE"}
        until(lambda: visible(group) == 3 + 100 + 1 + 1 + 2, "consumers get those too")
        slave.start()
        until_equal(master, slave)


def configure(group: Group, pair: str = "", **changes: str) -> str:
    """Run the command as an operator does; returns its error."""
    sets = [part for name, value in changes.items() for part in ("--set", f"{name}={value}")]
    done = subprocess.run(
        [TIANZHOU, "broker", "config", GROUP, "-n", group.nameserver, *sets],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env=os.environ | {"TIANZHOU_CREDENTIALS": pair},
    )
    return done.stderr


def test_number_of_confirming_replicas_can_change_at_run_time(tmp_path: Path) -> None:
    with Group(tmp_path) as group:
        master = group.nodes[0] = group.master = group.add(0, **SYNC, minInSyncReplicas="1")
        slave = group.add(1)
        master.start()
        slave.start()
        group.create_topic()
        until(lambda: in_sync(master.address) == 1, "the slave is in sync")
        assert set(statuses(group, 3)) == {"SEND_OK"}
        assert configure(group, inSyncReplicas="3") == ""
        until(lambda: in_sync(master.address) == 1, "the slave is back")
        assert set(statuses(group, 3)) == {"SLAVE_NOT_AVAILABLE"}
        assert configure(group, inSyncReplicas="2", slaveTimeout="30000") == ""
        until(lambda: in_sync(master.address) == 1, "the slave is back")
        assert set(statuses(group, 3)) == {"SEND_OK"}
        slave.server.pause()
        with ThreadPoolExecutor(1) as sending:
            waiting = sending.submit(statuses, group, 1)
            until(lambda: unconfirmed(master.address) > 0, "a sender waits for the slave")
            assert not waiting.done()
            assert (
                configure(group, inSyncReplicas="1") == ""
            )  # and the second replica is no longer needed
            assert waiting.result(120) == ["SEND_OK"]
        assert "copies.changed copies=1 before=2" in master.server.last_words()
        until(lambda: "copies_lowered" in master.server.last_words(), "an alarm says so")
        slave.server.resume()
        until_equal(master, slave)
        assert configure(group, inSyncReplicas="2") == ""
        until(lambda: in_sync(master.address) == 1, "the slave is back")
        assert set(statuses(group, 3)) == {"SEND_OK"}
        assert "must be from 1 to 16" in configure(group, inSyncReplicas="0")
        assert "brokerRole cannot change while the broker runs" in configure(
            group, brokerRole="ASYNC_MASTER"
        )
        look, copy = look_at(master.address), look_at(slave.address)
        assert look is not None
        assert copy is not None
        assert (look.copies_needed, copy.copies_needed) == (2, 2)


def test_number_of_confirming_replicas_is_never_below_the_settings(tmp_path: Path) -> None:
    """Nor by a client without the cluster's credentials; a promoted slave keeps the limit."""
    with Group(tmp_path, innerClientAuthenticationCredentials=PAIR) as group:
        master = group.nodes[0] = group.master = group.add(0, **SYNC)
        slave = group.add(1)
        master.start()
        slave.start()
        group.create_topic()
        until(lambda: in_sync(master.address) == 1, "the slave is in sync")
        assert "signature of this cluster" in configure(group, inSyncReplicas="3")
        assert "can't be lowered to 1" in configure(group, PAIR, inSyncReplicas="1")
        assert configure(group, PAIR, inSyncReplicas="3") == ""
        assert configure(group, PAIR, inSyncReplicas="2") == ""
        until(lambda: in_sync(master.address) == 1, "the slave is back")
        master.server.kill()
        with pytest.raises(AssertionError, match="signature of this cluster"):
            promote(group)
        promote(group, pair=PAIR)
        assert "can't be lowered to 1" in configure(group, PAIR, inSyncReplicas="1")
        assert set(statuses(group, 1)) == {"SLAVE_NOT_AVAILABLE"}


def unconfirmed(address: str) -> int:
    look = look_at(address)
    assert look is not None
    return look.end - look.confirmed


def visible(group: Group) -> int:
    with PullConsumer("readers", nameserver=group.nameserver) as consumer:
        return sum(consumer.end(queue) for queue in consumer.queues(TOPIC))


def test_promoted_slave_waits_for_replicas_like_its_master(tmp_path: Path) -> None:
    with Group(tmp_path) as group:
        master = group.nodes[0] = group.master = group.add(0, **SYNC)
        slave = group.add(1, slaveTimeout="600")
        master.start()
        slave.start()
        group.create_topic()
        until(lambda: in_sync(master.address) == 1, "the slave is in sync")
        assert set(statuses(group, 20)) == {"SEND_OK"}
        master.server.kill()
        promote(group)
        assert set(statuses(group, 2)) == {"SLAVE_NOT_AVAILABLE"}
        master.start()
        until(lambda: in_sync(slave.address) == 1, "the old master follows")
        assert set(statuses(group, 20)) == {"SEND_OK"}
        until_equal(slave, master)
