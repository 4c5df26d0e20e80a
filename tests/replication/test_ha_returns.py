"""An old master that returns: pauses, partitions and kills around a promotion.

Every scenario ends with the same two checks: every message whose sender was told SEND_OK can be
read after the promotion, and no (queue, offset) was ever acknowledged for two messages.
"""

import time
from collections import Counter
from pathlib import Path

import pytest
from ha_cluster import TOPIC, Group, Node, in_sync, promote, read_all, until, until_equal

from tianzhou.admin.commands.replication import look_at
from tianzhou.client.sync import Producer
from tianzhou.record.message import Message

SAFE = {"flushDiskType": "SYNC_FLUSH", "slaveTimeout": "600"}
UNANSWERED_S = 4.0
"""Longer than a slave waits for the answer to its greeting."""


class Sent:
    """What senders were told."""

    def __init__(self, group: Group) -> None:
        self._group = group
        self._number = 0
        self.statuses: Counter[str] = Counter()
        self.acknowledged: dict[str, tuple[int, int]] = {}
        """By body: queue and offset of every SEND_OK."""

    def send(self, count: int) -> Counter[str]:
        """Messages of equal size, so that two logs that part may still have records at the same
        places; the statuses of these."""
        statuses: Counter[str] = Counter()
        with Producer("producers", nameserver=self._group.nameserver) as producer:
            for _ in range(count):
                self._number += 1
                body = f"{self._number:06d}".ljust(200, "x")
                result = producer.send(Message(TOPIC, body.encode()))
                statuses[result.status.name] += 1
                if result.status.name == "SEND_OK":
                    self.acknowledged[body] = (result.queue.queue_id, result.queue_offset)
        self.statuses += statuses
        return statuses

    def check(self) -> None:
        """Nothing acknowledged is gone, and no place was acknowledged twice."""
        until(lambda: not self.missing(), f"all is readable; lost {len(self.missing())}")
        places = Counter(self.acknowledged.values())
        assert max(places.values()) == 1, f"acknowledged twice: {places.most_common(3)}"

    def missing(self) -> set[str]:
        return self.acknowledged.keys() - set(read_all(self._group))


def safe_group(directory: Path) -> Group:
    """SYNC_FLUSH and SYNC_MASTER: the strictest of the four promises."""
    group = Group(directory, **SAFE)
    group.nodes[0] = group.master = group.add(0, brokerRole="SYNC_MASTER")
    return group


def part(group: Group, slave: Node, sent: Sent) -> None:
    """The master has a tail that no slave confirmed, and dies; the slave is promoted and its own
    log, with records at the same places, grows beyond that tail."""
    master = group.master
    until(lambda: in_sync(master.address) == 1, "the slave is in sync")
    assert sent.send(20).keys() == {"SEND_OK"}
    slave.server.kill()
    until(lambda: in_sync(master.address) == 0, "the slave is gone")
    assert sent.send(10).keys() == {"SLAVE_NOT_AVAILABLE"}
    master.server.kill()
    slave.start()
    promote(group)
    assert sent.send(40).keys() == {"SLAVE_NOT_AVAILABLE"}


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_old_master_whose_greeting_is_unanswered_never_follows_plainly(tmp_path: Path) -> None:
    with safe_group(tmp_path) as group:
        old, new, sent = group.master, group.add(1), Sent(group)
        old.start()
        new.start()
        group.create_topic(queues=1)
        part(group, new, sent)
        new.server.pause()
        old.start()
        until(lambda: "did not answer" in old.server.last_words(), "the greeting is unanswered")
        time.sleep(1)  # its next attempt waits in the backlog of the process that is stopped
        new.server.resume()
        until(lambda: in_sync(new.address) == 1, "the old master follows")
        assert sent.send(100).keys() == {"SEND_OK"}
        until_equal(new, old)
        assert [path.suffix for path in sorted((old.data / "set-aside").iterdir())] == [
            ".jsonl", ".log",
        ]  # fmt: skip
        new.server.kill()
        promote(group)
        sent.check()
        look = look_at(old.address)
        assert look is not None
        assert look.epoch == 3, "an epoch is never used twice"


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_old_master_takes_no_messages_while_the_later_one_is_dead(tmp_path: Path) -> None:
    """Otherwise slaves of both would confirm messages of two logs, under one epoch in the end."""
    with safe_group(tmp_path) as group:
        old, new, third, sent = group.master, group.add(1), group.add(2), Sent(group)
        for node in (old, new, third):
            node.start()
        group.create_topic(queues=1)
        until(lambda: in_sync(old.address) == 2, "both slaves are in sync")
        assert sent.send(20).keys() == {"SEND_OK"}
        third.server.kill()
        old.server.kill()
        assert promote(group)["epoch"] == 2
        new.server.kill()
        old.start()
        third.start()
        until(lambda: role_of(old) == "SLAVE", "the old master steps down")
        assert promote(group)["epoch"] == 3, "epoch 2 was used"
        master, slave = (old, third) if role_of(old) == "MASTER" else (third, old)
        until(lambda: in_sync(master.address) == 1, "the other one follows")
        assert sent.send(20).keys() == {"SEND_OK"}
        new.start()
        until(lambda: in_sync(master.address) == 2, "the one of epoch 2 follows")
        until_equal(master, new)
        until_equal(master, slave)
        sent.check()


def role_of(node: Node) -> str:
    look = look_at(node.address)
    return "" if look is None else look.role
