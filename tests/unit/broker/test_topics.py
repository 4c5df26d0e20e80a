"""The table of topics."""

from collections.abc import Callable

import pytest

from tianzhou.base.errors import UsageError
from tianzhou.broker.config import BrokerConfig
from tianzhou.broker.topics.topics import Topics
from tianzhou.net.rpc import RequestRejected
from tianzhou.store.tables import Tables
from tianzhou.testing.sim.clock import ManualClock
from tianzhou.testing.sim.disk import SimDisk
from tianzhou.testing.small_broker import SmallBroker
from tianzhou.wire import fastjson
from tianzhou.wire._generated_codes import RequestCode
from tianzhou.wire.heartbeat import ConsumerData, HeartbeatData
from tianzhou.wire.tables import TopicConfig, TopicConfigTable


def made(disk: SimDisk | None = None, config: BrokerConfig | None = None) -> Topics:
    tables = Tables(disk or SimDisk(), "config")
    return Topics(tables.topics, config or BrokerConfig(), ManualClock(), 18)


def test_topics_include_the_built_in_ones() -> None:
    topics = made()
    expected = {
        "TBW102": (8, 7),
        "SCHEDULE_TOPIC_XXXX": (18, 6),
        "DefaultCluster": (16, 7),
        "broker-a": (1, 7),
        "BenchmarkTest": (1024, 6),
        "RMQ_SYS_TRANS_HALF_TOPIC": (1, 6),
        "DefaultCluster_REPLY_TOPIC": (1, 6),
    }
    for name, (queues, perm) in expected.items():
        topic = topics.get(name)
        assert topic is not None, name
        assert (topic.write_queue_nums, topic.perm) == (queues, perm), name
        assert topics.is_system(name), name
    assert made(config=BrokerConfig(auto_create_topics=False)).get("TBW102") is None


def test_topics_change_is_saved_announced_and_counted() -> None:
    disk = SimDisk()
    topics = made(disk)
    told: list[int] = []
    topics.changed.append(lambda: told.append(topics.version.counter))
    topics.put(TopicConfig(topic_name="orders"))
    topics.put(TopicConfig(topic_name="orders"))  # nothing new
    assert told == [1]
    assert made(disk).get("orders") == TopicConfig(topic_name="orders")
    assert topics.remove("orders")
    assert not topics.remove("orders")
    assert told == [1, 2]
    assert made(disk).get("orders") is None


def test_topics_auto_create_follows_the_template() -> None:
    topics = made()
    for asked, queues in ((4, 4), (0, 8), (99, 8)):
        topic = topics.for_send(f"t{asked}", "TBW102", asked)
        assert topic is not None
        assert (topic.write_queue_nums, topic.perm) == (queues, 6)
    assert topics.for_send("x", "t4", 4) is None  # not a template
    assert topics.for_send("x", "nothing", 4) is None
    retry = topics.for_send("%RETRY%g", "TBW102", 4)
    assert retry is not None
    assert retry.write_queue_nums == 1


def test_topics_follow_changed_settings() -> None:
    topics = made()
    topics.adopt(BrokerConfig(auto_create_topics=False, topics_max=len(topics)))
    assert topics.for_send("new", "TBW102", 4) is None
    with pytest.raises(RequestRejected, match="topics_max"):
        topics.put(TopicConfig(topic_name="new"))


@pytest.mark.parametrize("count", [-1, 1025])
def test_topics_reject_too_many_queues(count: int) -> None:
    with pytest.raises(RequestRejected, match="queues"):
        made().put(TopicConfig(topic_name="orders", read_queue_nums=count))


def test_topics_table_edited_by_hand_is_validated() -> None:
    disk = SimDisk()
    bad = TopicConfig(topic_name="../x")
    Tables(disk, "config").topics.save(TopicConfigTable(topic_config_table={"../x": bad}))
    with pytest.raises(UsageError):
        made(disk)


# What heartbeats create


class LaterTopics:
    """Topics whose `later` stands for the flush thread."""

    def __init__(self) -> None:
        self.disk, self.later = SimDisk(), list[Callable[[], None]]()
        tables = Tables(self.disk, "config")
        tables.run_later(self.later.append)
        self.topics = Topics(tables.topics, BrokerConfig(), ManualClock(), 18)

    def run_later(self) -> None:
        while self.later:
            self.later.pop(0)()


def syncs(disk: SimDisk) -> int:
    return sum(call.kind.startswith("sync") for call in disk.calls)


def test_ensure_all_without_wait_leaves_one_save_to_the_flush_thread() -> None:
    world = LaterTopics()
    for number in range(100):
        world.topics.ensure_all({f"%RETRY%group-{number}": 1}, wait=False)
    assert world.topics.get("%RETRY%group-99") is not None
    assert not world.disk.calls
    world.run_later()
    assert [call.path for call in world.disk.calls].count("config/topics.json.tmp") <= 4
    assert made(world.disk).get("%RETRY%group-99") is not None


@pytest.mark.parametrize("use", ["for_send", "ensure"])
def test_topic_that_gets_a_message_before_its_save_is_saved_at_once(use: str) -> None:
    world = LaterTopics()
    world.topics.put(TopicConfig(topic_name="orders"))
    world.topics.ensure_all({"%RETRY%g": 1}, wait=False)
    before = syncs(world.disk)
    world.topics.for_send("orders", "TBW102", 4)
    assert syncs(world.disk) == before  # others do not wait for the disk
    if use == "for_send":
        world.topics.for_send("%RETRY%g", "TBW102", 4)
    else:
        world.topics.ensure("%RETRY%g", queues=1)
    assert made(world.disk).get("%RETRY%g") is not None
    saved = syncs(world.disk)
    world.topics.for_send("%RETRY%g", "TBW102", 4)
    world.run_later()  # finds that nothing is left to write
    assert syncs(world.disk) == saved


def test_heartbeats_of_new_groups_sync_nothing_in_the_loop() -> None:
    broker, later = SmallBroker(SimDisk()), list[Callable[[], None]]()
    broker.store.tables.run_later(later.append)
    before = syncs(broker.disk)
    for number in range(10):
        consumer = ConsumerData(group_name=f"group-{number}")
        beat = HeartbeatData(client_id=f"c-{number}", consumer_data_set=(consumer,))
        answer = broker.ask(RequestCode.HEART_BEAT, {}, fastjson.encode(beat))
        assert answer is not None
        assert answer.code == 0
    assert broker.slices.groups.tables.groups.get("group-9") is not None
    assert broker.slices.topics.topics.get("%RETRY%group-9") is not None
    assert syncs(broker.disk) == before
    for write in later:
        write()
    broker.kill()
    assert broker.slices.groups.tables.groups.get("group-9") is not None
    assert broker.slices.topics.topics.get("%RETRY%group-9") is not None


def test_retry_topic_that_gets_a_message_survives_a_kill_at_once() -> None:
    broker = SmallBroker(SimDisk())
    broker.store.tables.run_later(lambda _write: None)  # the flush thread does not come to it
    broker.slices.groups.tables.groups.obtain_all(["g"])
    broker.slices.topics.topics.ensure_all({"%RETRY%g": 1}, wait=False)
    assert broker.send("%RETRY%g").code == 0
    broker.kill()
    assert broker.slices.topics.topics.get("%RETRY%g") is not None
