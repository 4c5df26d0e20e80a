"""Topics as administrators make, change, look at and delete them."""

import pytest
from administrator import Administrator, Answer, join, make_topic

from tianzhou.base.kinds import queue_key
from tianzhou.broker.config import BrokerConfig
from tianzhou.broker.topics.admin import altered_attributes, parse_attributes
from tianzhou.net.rpc import RequestRejected
from tianzhou.testing.small_broker import SmallBroker
from tianzhou.wire import fastjson
from tianzhou.wire._generated_codes import RequestCode, ResponseCode
from tianzhou.wire.queues import MessageQueue, decode_topic_stats
from tianzhou.wire.tables import TopicConfig, TopicConfigList, decode_topic_config


def config_of(broker: SmallBroker, name: str) -> TopicConfig:
    topic = broker.slices.topics.topics.get(name)
    assert topic is not None
    return topic


def delete(broker: SmallBroker, name: str) -> Answer:
    return Administrator(broker).ask(RequestCode.DELETE_TOPIC_IN_BROKER, topic=name)


def test_create_and_update_topic_survive_a_restart() -> None:
    broker = SmallBroker()
    assert make_topic(broker, "orders", 3).code == 0
    assert make_topic(broker, "orders", 5, perm="4", order="true").code == 0
    broker.restart()
    topic = config_of(broker, "orders")
    assert (topic.read_queue_nums, topic.write_queue_nums) == (5, 5)
    assert (topic.perm, topic.order) == (4, True)


def test_update_topic_applies_to_the_next_send() -> None:
    broker = SmallBroker()
    make_topic(broker, "orders")
    assert broker.send("orders").code == 0
    make_topic(broker, "orders", perm="4")
    assert broker.send("orders").code == ResponseCode.NO_PERMISSION


@pytest.mark.parametrize(
    "name",
    [
        "",
        "a b",
        "orders\n",
        "über",
        "x" * 128,
        "a/b",
        "..",
        "TBW102",
        "SCHEDULE_TOPIC_XXXX",
        "RMQ_SYS_TRANS_HALF_TOPIC",
        "rmq_sys_mine",
        "DefaultCluster",
        "broker-a",
    ],
)
def test_create_topic_with_a_reserved_name_is_rejected(name: str) -> None:
    broker = SmallBroker()
    before = dict(broker.slices.topics.topics.all())
    assert make_topic(broker, name).code == ResponseCode.INVALID_PARAMETER
    assert delete(broker, name).code == ResponseCode.INVALID_PARAMETER
    assert broker.slices.topics.topics.all() == before


@pytest.mark.parametrize(
    "wrong",
    [
        {"readQueueNums": "-1"},
        {"writeQueueNums": "1025"},
        {"perm": "8"},
        {"perm": "-1"},
        {"topicFilterType": "NONE"},
        {"attributes": "+queue.type=BatchCQ"},
        {"attributes": "+colour=red"},
        {"attributes": "+message.type=LETTER"},
    ],
)
def test_create_topic_with_invalid_values_is_rejected(wrong: dict[str, str]) -> None:
    broker = SmallBroker()
    assert make_topic(broker, "orders", **wrong).code == ResponseCode.INVALID_PARAMETER
    assert broker.slices.topics.topics.get("orders") is None


def test_update_topic_sets_and_removes_attributes() -> None:
    broker = SmallBroker()
    make_topic(broker, "orders", attributes="+message.type=FIFO,+cleanup.policy=DELETE")
    assert config_of(broker, "orders").attributes == {
        "message.type": "FIFO",
        "cleanup.policy": "DELETE",
    }
    make_topic(broker, "orders", attributes="-cleanup.policy")
    assert config_of(broker, "orders").attributes == {"message.type": "FIFO"}


def test_create_topics_is_all_or_nothing() -> None:
    broker = SmallBroker()
    good = TopicConfig(topic_name="a"), TopicConfig(topic_name="b", write_queue_nums=1)
    code = RequestCode.UPDATE_AND_CREATE_TOPIC_LIST
    bad = fastjson.encode(TopicConfigList(topic_config_list=(*good, TopicConfig(topic_name="c d"))))
    assert Administrator(broker).ask(code, bad).code == ResponseCode.INVALID_PARAMETER
    assert broker.slices.topics.topics.get("a") is None
    body = fastjson.encode(TopicConfigList(topic_config_list=good))
    assert Administrator(broker).ask(code, body).code == 0
    assert config_of(broker, "b").write_queue_nums == 1


def test_create_topic_beyond_the_limit_is_rejected() -> None:
    broker = SmallBroker(config=BrokerConfig(topics_max=16))
    codes = [make_topic(broker, f"t{n}").code for n in range(16)]
    assert codes[0] == 0
    assert codes[-1] == ResponseCode.SYSTEM_BUSY


def test_delete_topic_removes_settings_offsets_and_queues() -> None:
    broker = SmallBroker()
    make_topic(broker, "orders")
    broker.send("orders")
    broker.slices.groups.tables.offsets.put("readers", "orders", 0, 1)
    assert delete(broker, "orders").code == 0
    broker.restart()
    assert broker.slices.topics.topics.get("orders") is None
    assert broker.slices.groups.tables.offsets.get("readers", "orders", 0) is None
    assert broker.store.max_offset(queue_key("orders", 0)) == 0
    make_topic(broker, "orders")
    assert broker.messages("orders") == []
    broker.send("orders", b"new")
    assert broker.bodies("orders") == [b"new"]


def test_delete_topic_that_does_not_exist_succeeds() -> None:
    assert delete(SmallBroker(), "nothing").code == 0


def test_get_topic_config_returns_its_settings() -> None:
    broker = SmallBroker()
    make_topic(broker, "orders", 3)
    answer = Administrator(broker).ask(RequestCode.GET_TOPIC_CONFIG, topic="orders", lo="true")
    assert decode_topic_config(answer.body) == config_of(broker, "orders")
    missing = Administrator(broker).ask(RequestCode.GET_TOPIC_CONFIG, topic="x")
    assert missing.code == ResponseCode.TOPIC_NOT_EXIST


def test_get_all_topic_configs_returns_the_table_or_a_page() -> None:
    broker = SmallBroker()
    tool = Administrator(broker)
    whole = tool.ask(RequestCode.GET_ALL_TOPIC_CONFIG)
    names = sorted(whole.json["topicConfigTable"])
    assert names == sorted(broker.slices.topics.topics.all())
    version = fastjson.encode(broker.slices.topics.topics.version).decode()
    seen: list[str] = []
    while len(seen) < len(names):
        page = tool.ask(
            RequestCode.GET_ALL_TOPIC_CONFIG,
            topicSeq=str(len(seen)),
            maxTopicNum="5",
            dataVersion=version,
        )
        assert page.ext["totalTopicNum"] == str(len(names))
        seen += page.json["topicConfigTable"]
    assert seen == names


def test_get_all_topic_configs_of_an_old_version_pages_from_the_start() -> None:
    broker = SmallBroker()
    page = Administrator(broker).ask(
        RequestCode.GET_ALL_TOPIC_CONFIG,
        topicSeq="3",
        maxTopicNum="1",
        dataVersion='{"counter":99,"timestamp":1}',
    )
    assert list(page.json["topicConfigTable"]) == [min(broker.slices.topics.topics.all())]


def test_topic_stats_of_an_empty_topic_list_its_queues() -> None:
    broker = SmallBroker()
    make_topic(broker, "orders", 2)
    code = RequestCode.GET_TOPIC_STATS_INFO
    empty = decode_topic_stats(Administrator(broker).ask(code, topic="orders").body)
    assert [(q.queue_id, row.max_offset) for q, row in empty.offset_table.items()] == [
        (0, 0),
        (1, 0),
    ]
    broker.send("orders", queue_id=1)
    answer = Administrator(broker).ask(code, topic="orders")
    assert b'{"brokerName":"broker-a","queueId":1,"topic":"orders"}:{' in answer.body
    row = decode_topic_stats(answer.body).offset_table[
        MessageQueue(broker_name="broker-a", queue_id=1, topic="orders")
    ]
    assert (row.min_offset, row.max_offset) == (0, 1)
    assert row.last_update_timestamp == broker.clock.now_ms()
    assert Administrator(broker).ask(code, topic="x").code == ResponseCode.TOPIC_NOT_EXIST


def test_system_topic_list_excludes_user_topics() -> None:
    broker = SmallBroker()
    make_topic(broker, "orders")
    found = Administrator(broker).ask(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER).json
    assert "SCHEDULE_TOPIC_XXXX" in found["topicList"]
    assert "orders" not in found["topicList"]


def test_query_groups_of_a_topic_includes_offline_and_online_ones() -> None:
    broker = SmallBroker()
    make_topic(broker, "orders")
    broker.slices.groups.tables.offsets.put("before", "orders", 0, 1)
    join(broker, "now", "orders")
    found = Administrator(broker).ask(RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, topic="orders").json
    assert found == {"groupList": ["before", "now"]}


def test_clean_unused_topic_removes_queues_of_unknown_topics() -> None:
    broker = SmallBroker()
    make_topic(broker, "orders")
    make_topic(broker, "kept")
    broker.send("orders")
    broker.send("kept")
    broker.slices.topics.topics.remove("orders")
    assert Administrator(broker).ask(RequestCode.CLEAN_UNUSED_TOPIC).code == 0
    assert broker.store.queues.of_topic("orders") == []
    assert broker.bodies("kept") == [b"body"]


def test_attributes_text_is_parsed_into_changes() -> None:
    assert parse_attributes("+a=b, -c ,d=e,,") == {"+a": "b", "-c": "", "d": "e"}
    assert parse_attributes(None) == parse_attributes("") == {}


def test_attributes_changes_apply_to_the_current_values() -> None:
    current = {"message.type": "NORMAL"}
    assert altered_attributes(current, {"+message.type": "FIFO"}) == {"message.type": "FIFO"}
    assert altered_attributes(current, {"cleanup.policy": "DELETE"}) == current | {
        "cleanup.policy": "DELETE"
    }
    assert altered_attributes(current, {"-message.type": ""}) == {}
    assert altered_attributes(current, {"-queue.type": ""}) == current
    assert current == {"message.type": "NORMAL"}


@pytest.mark.parametrize("change", [{"+colour": "red"}, {"-colour": ""}, {"+queue.type": "x"}])
def test_attributes_that_are_unknown_are_rejected(change: dict[str, str]) -> None:
    with pytest.raises(RequestRejected):
        altered_attributes({}, change)
