"""Consumers go on with a slave when the master is gone, and their offsets are not lost."""

from pathlib import Path

from ha_cluster import TOPIC, Group, until, until_equal

from tianzhou.client.consumer_options import ConsumerOptions
from tianzhou.client.core.offsets import Start
from tianzhou.client.core.window import FlowLimits
from tianzhou.client.options import ClientOptions
from tianzhou.client.sync import Admin, PullConsumer, PushConsumer
from tianzhou.net.blocking import BlockingPeer
from tianzhou.wire._generated_codes import RequestCode
from tianzhou.wire._generated_headers_pull import PullMessageRequest
from tianzhou.wire.tables import decode_consumer_offsets, decode_group_table, decode_topic_table

QUICK = ClientOptions(route_interval_s=0.5)
LITTLE_AHEAD = ConsumerOptions(
    start_from=Start.FIRST, commit_interval_s=0.2, pull_count=16,
    flow=FlowLimits(queue_count=32),
)  # fmt: skip


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


def where_next(address: str) -> int:
    """From which broker of the group to read on."""
    fields = PullMessageRequest(
        consumer_group="readers", topic=TOPIC, queue_id=0, queue_offset=0, max_msg_nums=4,
        sys_flag=4, commit_offset=0, suspend_timeout_ms=0, subscription="*", sub_version=0,
    )  # fmt: skip
    with BlockingPeer(address) as peer:
        answer, body = peer.call(RequestCode.PULL_MESSAGE, fields.to_ext())
    assert body
    return int(answer.ext["suggestWhichBrokerId"])


def test_a_consumer_goes_on_at_the_slave_and_its_offsets_come_back(tmp_path: Path) -> None:
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
            "readers", nameserver=group.nameserver, subscribe={TOPIC: "*"}, options=LITTLE_AHEAD,
            client=QUICK,
        ) as consumer:  # fmt: skip
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


def test_topics_groups_and_offsets_follow_the_master(tmp_path: Path) -> None:
    with Group(tmp_path, accessMessageInMemoryMaxRatio="0") as group:
        master, slave = group.master, group.add(1, accessMessageInMemoryMaxRatio="40")
        master.start()
        slave.start()
        group.create_topic()
        group.send(80)  # some into each queue
        until_equal(master, slave)
        # A master that calls everything old sends readers away; the slave, which does not, back.
        until(lambda: TOPIC in topics_at(slave.address), "the slave knows the topic")
        until(lambda: where_next(master.address) == 1, "the master sends readers to the slave")
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


def test_a_slave_asks_at_once_for_a_topic_whose_messages_it_gets(tmp_path: Path) -> None:
    """Long before the next round of everything: the master may be dead by then."""
    with Group(tmp_path, metadata_ms="600000") as group:
        master, slave = group.master, group.add(1)
        master.start()
        slave.start()
        group.create_topic()
        group.send(20)
        until(lambda: TOPIC in topics_at(slave.address), "the slave knows the topic")
