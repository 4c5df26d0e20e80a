"""Consumers continue at a slave when the master is gone, and their offsets are not lost."""

from pathlib import Path

from ha_cluster import TOPIC, Group, Node, promote, until, until_equal

from tianzhou.client.consumer_options import ConsumerOptions
from tianzhou.client.core.assigned_queue import FlowLimits
from tianzhou.client.core.offsets import StartPosition
from tianzhou.client.options import ClientOptions
from tianzhou.client.sync import Admin, PullConsumer, PushConsumer
from tianzhou.net.blocking import BlockingPeer
from tianzhou.wire._generated_codes import RequestCode
from tianzhou.wire._generated_headers_pull import (
    PullMessageRequest,
    UpdateConsumerOffsetRequest,
)
from tianzhou.wire.tables import decode_consumer_offsets, decode_group_table, decode_topic_table

QUICK = ClientOptions(route_interval_s=0.5)
LITTLE_AHEAD = ConsumerOptions(
    start_from=StartPosition.FIRST,
    commit_interval_s=0.2,
    pull_count=16,
    flow=FlowLimits(queue_count=32),
)


def offsets_at(address: str, group: str) -> dict[int, int]:
    with BlockingPeer(address) as peer:
        _, body = peer.call(RequestCode.GET_ALL_CONSUMER_OFFSET)
    return decode_consumer_offsets(body).offset_table.get(f"{TOPIC}@{group}", {})


def topics_at(address: str) -> set[str]:
    with BlockingPeer(address) as peer:
        _, body = peer.call(RequestCode.GET_ALL_TOPIC_CONFIG)
    return set(decode_topic_table(body).topic_config_table)


def groups_at(address: str) -> set[str]:
    with BlockingPeer(address) as peer:
        _, body = peer.call(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
    return set(decode_group_table(body).subscription_group_table)


def where_next(address: str, tags: str = "*") -> int:
    """The broker from which the consumer reads next."""
    fields = PullMessageRequest(
        consumer_group="readers",
        topic=TOPIC,
        queue_id=0,
        queue_offset=0,
        max_msg_nums=4,
        sys_flag=4,
        commit_offset=0,
        suspend_timeout_ms=0,
        subscription=tags,
        sub_version=0,
    )
    with BlockingPeer(address) as peer:
        answer, body = peer.call(RequestCode.PULL_MESSAGE, fields.to_ext())
    assert bool(body) == (tags == "*")
    return int(answer.ext["suggestWhichBrokerId"])


def test_consumer_continues_at_the_slave_and_its_offsets_return_to_the_master(
    tmp_path: Path,
) -> None:
    with Group(tmp_path) as group:
        master, slave = group.master, group.add(1)
        master.start()
        slave.start()
        group.create_topic()
        sent = group.send(500)
        until_equal(master, slave)
        until(lambda: TOPIC in topics_at(slave.address), "the slave knows the topic")
        seen: list[str] = []
        with PushConsumer(
            "readers",
            nameserver=group.nameserver,
            subscribe={TOPIC: "*"},
            options=LITTLE_AHEAD,
            client=QUICK,
        ) as consumer:
            for message in consumer:
                seen.append(message.body.decode())
                if len(seen) == 100:
                    until(lambda: "readers" in groups_at(slave.address), "the group is known")
                    master.server.kill()
                if len(set(seen)) == len(sent):
                    break
        assert set(seen) == set(sent)
        read = offsets_at(slave.address, "readers")
        assert sum(read.values()) == len(sent)
        master.start()
        until(lambda: offsets_at(master.address, "readers") == read, "offsets came back")
        until_equal(master, slave)
        assert offsets_at(slave.address, "readers") == read


def test_slave_replicates_topics_groups_and_offsets(tmp_path: Path) -> None:
    with Group(tmp_path, accessMessageInMemoryMaxRatio="0") as group:
        master, slave = group.master, group.add(1, accessMessageInMemoryMaxRatio="40")
        master.start()
        slave.start()
        group.create_topic()
        group.send(80)  # some in each queue
        until_equal(master, slave)
        # A master that counts everything as old redirects readers to the slave, and that one back.
        until(lambda: TOPIC in topics_at(slave.address), "the slave knows the topic")
        until(lambda: where_next(master.address) == 1, "the master sends readers to the slave")
        assert where_next(master.address, tags="of-none") == 1  # it passes old messages as well
        assert where_next(slave.address) == 0
        with PullConsumer("readers", nameserver=group.nameserver) as consumer:
            for queue in consumer.queues(TOPIC):
                consumer.commit(queue, 7)
        wanted = dict.fromkeys(range(4), 7)
        until(lambda: offsets_at(slave.address, "readers") == wanted, "offsets are there")
        assert "readers" in groups_at(slave.address)
        with Admin(nameserver=group.nameserver) as admin:
            admin.topics.delete(TOPIC)
        until(lambda: TOPIC not in topics_at(slave.address), "the topic is gone")
        assert not (slave.data / "consumequeue" / TOPIC).exists()


def test_slave_fetches_an_unknown_topic_at_once(tmp_path: Path) -> None:
    """Long before the next full synchronisation: the master may be dead by then."""
    with Group(tmp_path, metadata_ms="600000") as group:
        master, slave = group.master, group.add(1)
        master.start()
        slave.start()
        group.create_topic()
        group.send(20)
        until(lambda: TOPIC in topics_at(slave.address), "the slave knows the topic")


def commit(address: str, offset: int, topic: str = TOPIC, **more: str) -> None:
    fields = UpdateConsumerOffsetRequest(
        consumer_group="readers", topic=topic, queue_id=0, commit_offset=offset
    )
    with BlockingPeer(address) as peer:
        answer, _ = peer.call(RequestCode.UPDATE_CONSUMER_OFFSET, fields.to_ext() | more)
    assert answer.code == 0, answer.remark


def commits_at_the_slave(group: Group, slave: Node) -> None:
    """The group was at 20 at the master, which dies; it continues to 60 at the slave, which is then
    killed as well and restarted."""
    master = group.master
    group.create_topic("a-deleted-one", queues=1)
    group.create_topic(queues=1)
    group.send(100)
    until_equal(master, slave)
    until(lambda: TOPIC in topics_at(slave.address), "the slave knows the topic")
    commit(master.address, 20)
    until(lambda: offsets_at(slave.address, "readers") == {0: 20}, "the slave knows the offset")
    master.server.kill()
    commit(slave.address, 1, topic="a-deleted-one")
    commit(slave.address, 60)
    saved = slave.data / "config" / "acceptedOffset.json"
    until(saved.exists, "the slave has saved it")
    slave.server.kill()
    slave.start()
    assert offsets_at(slave.address, "readers") == {0: 60}


QUICK_SAVES = {"flushConsumerOffsetInterval": "1000"}


def test_offset_committed_at_a_slave_reaches_the_master_that_returns(tmp_path: Path) -> None:
    """Although the slave was killed meanwhile, and the master had lost its offsets."""
    with Group(tmp_path, **QUICK_SAVES) as group:
        slave = group.add(1)
        group.master.start()
        slave.start()
        commits_at_the_slave(group, slave)
        for table in (group.master.data / "config").glob("consumerOffset.json*"):
            table.unlink()
        topics = group.master.data / "config" / "topics.json"
        topics.write_text(topics.read_text().replace("a-deleted-one", "another-one"))
        group.master.start()
        at = group.master.address
        until(lambda: offsets_at(at, "readers") == {0: 60}, "the master knows it")
        commit(at, 70)
        commit(at, 60, tzForwardOnly="true")  # a late report of a slave does not move a group back
        commit(at, 170, tzForwardOnly="true")  # nor beyond the end of the queue
        assert offsets_at(at, "readers") == {0: 70}
        until(lambda: offsets_at(slave.address, "readers") == {0: 70}, "the slave follows")
        with Admin(nameserver=group.nameserver) as admin:
            admin.offsets.reset_to_time("readers", TOPIC, time_ms=0)
        until(lambda: offsets_at(slave.address, "readers") == {0: 0}, "the reset is not undone")
        assert offsets_at(at, "readers") == {0: 0}


def test_reset_at_the_master_before_the_slave_hands_over_is_kept(tmp_path: Path) -> None:
    """The slave is down while the master returns and is reset: it learns of that too late."""
    with Group(tmp_path, **QUICK_SAVES) as group:
        slave = group.add(1)
        group.master.start()
        slave.start()
        commits_at_the_slave(group, slave)
        slave.server.kill()
        group.master.start()
        at = group.master.address
        with Admin(nameserver=group.nameserver) as admin:
            admin.offsets.reset_to_time("readers", TOPIC, time_ms=0)
        commit(
            at, 60, tzForwardOnly="true", tzResetSeen="0"
        )  # a report that was in flight during the reset
        assert offsets_at(at, "readers") == {0: 0}
        slave.start()
        until(lambda: offsets_at(slave.address, "readers") == {0: 0}, "the slave follows")
        assert offsets_at(at, "readers") == {0: 0}
        commit(at, 30)
        until(lambda: offsets_at(slave.address, "readers") == {0: 30}, "the slave follows on")
        assert offsets_at(at, "readers") == {0: 30}


def test_offset_committed_at_a_slave_is_kept_by_its_promotion(tmp_path: Path) -> None:
    with Group(tmp_path, **QUICK_SAVES) as group:
        slave = group.add(1)
        group.master.start()
        slave.start()
        commits_at_the_slave(group, slave)
        promote(group)
        assert offsets_at(slave.address, "readers") == {0: 60}
        group.master.start()
        at = group.master.address
        until(lambda: offsets_at(at, "readers") == {0: 60}, "the old master takes it over")
        commit(slave.address, 40)  # a consumer may move back at the master
        until(lambda: offsets_at(at, "readers") == {0: 40}, "the slave follows")
        assert offsets_at(slave.address, "readers") == {0: 40}
