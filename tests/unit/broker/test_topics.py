"""The table of topics."""

import pytest

from tianzhou.base.errors import UsageError
from tianzhou.broker.config import BrokerConfig
from tianzhou.broker.topics import Topics
from tianzhou.net.exchange import Refused
from tianzhou.store.tables import Tables
from tianzhou.testing.sim.clock import ManualClock
from tianzhou.testing.sim.disk import SimDisk
from tianzhou.wire.tables import TopicConfig, TopicConfigTable


def made(disk: SimDisk | None = None, config: BrokerConfig | None = None) -> Topics:
    tables = Tables(disk or SimDisk(), "config")
    return Topics(tables.topics, config or BrokerConfig(), ManualClock(), 18)


def test_built_in_topics_are_there() -> None:
    topics = made()
    expected = {
        "TBW102": (8, 7), "SCHEDULE_TOPIC_XXXX": (18, 6), "DefaultCluster": (16, 7),
        "broker-a": (1, 7), "BenchmarkTest": (1024, 6), "RMQ_SYS_TRANS_HALF_TOPIC": (1, 6),
        "DefaultCluster_REPLY_TOPIC": (1, 6),
    }  # fmt: skip
    for name, (queues, perm) in expected.items():
        topic = topics.get(name)
        assert topic is not None, name
        assert (topic.write_queue_nums, topic.perm) == (queues, perm), name
        assert topics.is_system(name), name
    assert made(config=BrokerConfig(auto_create_topics=False)).get("TBW102") is None


def test_changes_are_saved_and_told_and_counted() -> None:
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


def test_a_new_topic_is_made_after_the_template() -> None:
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


def test_settings_can_change_while_it_runs() -> None:
    topics = made()
    topics.adopt(BrokerConfig(auto_create_topics=False, topics_max=len(topics)))
    assert topics.for_send("new", "TBW102", 4) is None
    with pytest.raises(Refused, match="topics_max"):
        topics.put(TopicConfig(topic_name="new"))


@pytest.mark.parametrize("count", [-1, 1025])
def test_too_many_queues(count: int) -> None:
    with pytest.raises(Refused, match="queues"):
        made().put(TopicConfig(topic_name="orders", read_queue_nums=count))


def test_a_table_edited_by_hand_is_not_trusted() -> None:
    disk = SimDisk()
    bad = TopicConfig(topic_name="../x")
    Tables(disk, "config").topics.save(TopicConfigTable(topic_config_table={"../x": bad}))
    with pytest.raises(UsageError):
        made(disk)
