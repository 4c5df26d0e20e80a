"""Members that differ: wrong clocks, and the version before the greeting was required."""

import json
import subprocess
import time
from datetime import timedelta
from pathlib import Path

import pytest
from differing import HOUR_S, version_before, with_clock
from ha_cluster import TOPIC, Group, in_sync, promote, read_all, until, until_equal
from sent import Load, Sent

from tianzhou.client import TransactionState
from tianzhou.client.sync import Producer, PullConsumer
from tianzhou.net.blocking import BlockingPeer
from tianzhou.record.message import Message
from tianzhou.testing.chaos.processes import TIANZHOU
from tianzhou.wire._generated_codes import RequestCode

SAFE = {"flushDiskType": "SYNC_FLUSH", "slaveTimeout": "1000"}


def last_stored_s(group: Group) -> float:
    """The store time of the last message of some queue, from the master."""
    with PullConsumer("readers", nameserver=group.nameserver) as consumer:
        queue = consumer.queues(TOPIC)[0]
        found = consumer.pull(queue, consumer.end(queue) - 1)
    return found.messages[-1].store_timestamp / 1000


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize("skew_s", [-HOUR_S, HOUR_S])
def test_members_with_different_clocks_lose_and_repeat_nothing(skew_s: int, tmp_path: Path) -> None:
    """Store times jump by two hours at each promotion, forwards and back."""
    with Group(tmp_path, **SAFE, messageDelayLevel="1s") as group:
        first = group.nodes[0] = group.master = group.add(
            0, brokerRole="SYNC_MASTER", within=with_clock(skew_s)
        )
        second, sent = group.add(1, within=with_clock(-skew_s)), Sent(group)
        first.start()
        second.start()
        group.create_topic(queues=2)
        until(lambda: in_sync(first.address) == 1, "the slave is in sync")
        for master, slave in ((first, second), (second, first)):
            assert sent.send(50).keys() == {"SEND_OK"}
            ahead_s = skew_s if master is first else -skew_s
            assert abs(last_stored_s(group) - time.time() - ahead_s) < 60, "its clock is wrong"
            master.server.kill()
            promote(group)
            master.start()
            until(lambda at=slave.address: in_sync(at) == 1, "the old master follows")
            assert sent.send(50).keys() == {"SEND_OK"}
            until_equal(slave, master)
            sent.check()
        delayed = f"delayed by a clock that is {skew_s} s ahead"
        with Producer("producers", nameserver=group.nameserver) as producer:
            producer.send(Message(TOPIC, delayed.encode(), delay_level=1))
        until(lambda: delayed in read_all(group), "the master delivers by its own clock")


def test_slave_with_an_expired_log_keeps_timers_for_its_promotion(tmp_path: Path) -> None:
    """The slave's clock is three hours ahead and its retention two: its whole log is expired, and
    the timed message is due when it is promoted."""
    with Group(tmp_path, fileReservedTime="2") as group:
        slave = group.add(1, within=with_clock(3 * HOUR_S))
        group.master.start()
        slave.start()
        group.create_topic(queues=1)
        with Producer(
            "producers", nameserver=group.nameserver, check=lambda _: TransactionState.UNKNOWN
        ) as producer:
            group.send(200, size=2000)
            producer.send(Message(TOPIC, b"timed", delay=timedelta(minutes=70)))
            with producer.transaction(Message(TOPIC, b"undecided")) as left:
                left.leave_undecided()
            group.send(400, size=2000, first=200)
        until_equal(group.master, slave)
        progress = slave.data / "config" / "timerProgress.json"
        until(
            lambda: progress.exists() and json.loads(progress.read_text())["scanned"] == 1,
            "the slave knows how far the timer came",
        )
        before = slave.log_bytes().keys()
        with BlockingPeer(slave.address) as peer:

            def has_expired() -> bool:
                answer, _ = peer.call(RequestCode.DELETE_EXPIRED_COMMITLOG)
                assert answer.code == 0, answer.remark
                return slave.log_bytes().keys() < before

            until(has_expired, "files in front of the timed message expired")
        group.master.server.kill()
        promote(group)
        until(lambda: "timed" in read_all(group), "the promoted slave delivers it", wait_s=60)
        shown = subprocess.run(
            [TIANZHOU, "transaction", "list", "-n", group.nameserver, "--json"],
            capture_output=True,
            text=True,
            timeout=300,
            check=True,
        )
        assert len(json.loads(shown.stdout)) == 1


# The previous version


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("is_old_first", [True, False], ids=["old-master", "old-slave"])
def test_members_of_two_versions_replicate_and_take_over_for_each_other(
    is_old_first: bool, tmp_path: Path
) -> None:
    """As in a rolling upgrade: with either as the master, and with a pause in which an old slave
    takes a new master for a RocketMQ broker."""
    old, new = version_before(tmp_path / "before"), list[str]()
    with Group(tmp_path / "group", **SAFE) as group:
        first = group.nodes[0] = group.master = group.add(
            0, brokerRole="SYNC_MASTER", within=old if is_old_first else new
        )
        second, sent = group.add(1, within=new if is_old_first else old), Sent(group)
        first.start()
        second.start()
        group.create_topic(queues=2)
        until(lambda: in_sync(first.address) == 1, "the slave is in sync")
        with Load(sent) as load:
            load.wait_acknowledged(50)
            second.server.kill()
            first.server.pause()
            second.start()
            until(
                lambda: "did not answer" in second.server.last_words(), "the greeting is unanswered"
            )
            time.sleep(1)  # its next attempt waits in the backlog of the stopped process
            first.server.resume()
            until(lambda: in_sync(first.address) == 1, "the slave follows again", wait_s=60)
            load.wait_acknowledged(50)
        until_equal(first, second)
        first.server.kill()
        promote(group)
        sent.check()
        first.start()
        until(lambda: in_sync(second.address) == 1, "the old master follows")
        assert sent.send(50).keys() == {"SEND_OK"}
        second.server.kill()
        promote(group)
        sent.check()
