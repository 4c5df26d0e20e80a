"""An old master that returns: pauses, partitions and kills around a promotion.

Every scenario ends with the same two checks: every message acknowledged with SEND_OK can be read
after the promotion, and no (queue, offset) was ever acknowledged for two messages.
"""

import time
from collections.abc import Callable
from pathlib import Path

import pytest
from ha_cluster import Group, Node, in_sync, promote, until, until_equal
from sent import Load, Sent

from tianzhou.admin.commands.replication import look_at
from tianzhou.net.blocking import BlockingPeer
from tianzhou.testing.chaos.proxy import Proxies
from tianzhou.wire._generated_codes import RequestCode

SAFE = {"flushDiskType": "SYNC_FLUSH", "slaveTimeout": "600"}


def safe_group(directory: Path, *within: str) -> Group:
    """SYNC_FLUSH and SYNC_MASTER: the strictest of the four guarantees."""
    group = Group(directory, **SAFE)
    group.nodes[0] = group.master = group.add(0, brokerRole="SYNC_MASTER", within=within)
    return group


def diverge(group: Group, slave: Node, sent: Sent) -> None:
    """Let the logs diverge: the master dies with a tail that no slave confirmed; the slave is
    promoted, and its own log, with records at the same places, grows beyond that tail."""
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
def test_old_master_without_a_response_to_its_greeting_never_follows(
    tmp_path: Path,
) -> None:
    with safe_group(tmp_path) as group:
        old, new, sent = group.master, group.add(1), Sent(group)
        old.start()
        new.start()
        group.create_topic(queues=1)
        diverge(group, new, sent)
        new.server.pause()
        old.start()
        until(lambda: "did not answer" in old.server.last_words(), "the greeting is unanswered")
        time.sleep(1)  # its next attempt waits in the backlog of the stopped process
        new.server.resume()
        until(lambda: in_sync(new.address) == 1, "the old master follows")
        assert sent.send(100).keys() == {"SEND_OK"}
        until_equal(new, old)
        assert [path.suffix for path in sorted((old.data / "set-aside").iterdir())] == [
            ".jsonl",
            ".log",
        ]
        new.server.kill()
        promote(group)
        sent.check()
        look = look_at(old.address)
        assert look is not None
        assert look.epoch == 3, "an epoch is never used twice"


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_old_master_rejects_sends_while_the_newer_one_is_dead(tmp_path: Path) -> None:
    """Otherwise slaves of both would confirm messages of two logs, eventually in one epoch."""
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


# Faults around a promotion, while messages are sent


def kill(old: Node, new: Node, _: Proxies) -> Callable[[], None]:
    old.server.kill()
    promote_directly(new)
    return old.start


def pause(old: Node, new: Node, _: Proxies) -> Callable[[], None]:
    """It resumes as a master, with requests in its buffers."""
    old.server.pause()
    promote_directly(new)
    return old.server.resume


def cut(_: Node, new: Node, proxies: Proxies) -> Callable[[], None]:
    """The old master serves clients and cannot reach its slave, which is promoted."""
    for link in proxies.links:
        link.cut()
    promote_directly(new)
    return proxies.heal


def promote_directly(node: Node) -> None:
    """As an operator who bypasses the command, which does not demote masters that respond."""
    with BlockingPeer(node.address) as peer:
        answer, _ = peer.call(RequestCode.PROMOTE_BROKER, {"aboveEpoch": "0"})
    assert answer.code == 0, answer.remark


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("strike", [kill, pause, cut])
def test_acknowledged_messages_survive_promotions_and_returns(
    strike: Callable[[Node, Node, Proxies], Callable[[], None]], tmp_path: Path
) -> None:
    with Proxies() as proxies, safe_group(tmp_path) as group:
        first = group.master
        link = proxies.link("slave to master", first.ha_address)
        second, sent = group.add(1, haMasterAddress=link.address), Sent(group)
        first.start()
        second.start()
        group.create_topic(queues=2)
        until(lambda: in_sync(first.address) == 1, "the slave is in sync")
        with Load(sent) as load:
            load.wait_acknowledged(50)
            heal = strike(first, second, proxies)
            until(lambda: role_of(second) == "MASTER", "the slave is the master")
            time.sleep(1)  # both may accept messages now
            heal()
            until(lambda: in_sync(second.address) == 1, "the old master follows", wait_s=60)
            load.wait_acknowledged(50)
        until_equal(second, first)
        sent.check()
        second.server.kill()
        promote(group)
        sent.check()
        look = look_at(first.address)
        assert look is not None
        assert look.epoch == 3


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_master_that_was_replaced_acknowledges_nothing_with_a_slave_that_still_follows_it(
    tmp_path: Path,
) -> None:
    """Of two slaves one is promoted while the master hangs. When the master resumes, it has enough
    slaves, and no NameServer responds for a while."""
    with safe_group(tmp_path) as group:
        first, second, third, sent = group.master, group.add(1), group.add(2), Sent(group)
        for node in (first, second, third):
            node.start()
        group.create_topic(queues=2)
        until(lambda: in_sync(first.address) == 2, "both slaves are in sync")
        with Load(sent) as load:
            load.wait_acknowledged(50)
            first.server.pause()
            promote_directly(second)
            group.names.pause()
            first.server.resume()
            time.sleep(3)  # more than the master waits for NameServers
            group.names.resume()
            until(lambda: in_sync(second.address) == 2, "both follow the new master", wait_s=60)
            load.wait_acknowledged(50)
        until_equal(second, first)
        until_equal(second, third)
        sent.check()
