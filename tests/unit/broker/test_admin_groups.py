"""Groups as administrators make, change, look at, forbid and delete them."""

import pytest
from administrator import Administrator, Answer, join, make_topic

from tianzhou.broker.config import BrokerConfig
from tianzhou.testing.small_broker import SmallBroker
from tianzhou.wire import fastjson
from tianzhou.wire._generated_codes import RequestCode, ResponseCode
from tianzhou.wire.tables import SubscriptionGroupConfig


def make_group(broker: SmallBroker, name: str, **more: object) -> Answer:
    body = fastjson.encode({"groupName": name} | more)
    return Administrator(broker).ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body)


def group_of(broker: SmallBroker, name: str) -> SubscriptionGroupConfig | None:
    return broker.slices.groups.clients.groups.get(name)


def test_create_and_update_group_survive_a_restart() -> None:
    broker = SmallBroker(config=BrokerConfig(auto_create_groups=False))
    assert make_group(broker, "readers").code == 0
    assert make_group(broker, "readers", retryMaxTimes=3, consumeEnable=False).code == 0
    broker.restart()
    group = group_of(broker, "readers")
    assert group is not None
    assert (group.retry_max_times, group.consume_enable) == (3, False)


@pytest.mark.parametrize("name", ["", "a b", "x" * 121, "é", "TOOLS_CONSUMER", "CID_RMQ_SYS_x"])
def test_create_group_with_a_reserved_name_is_rejected(name: str) -> None:
    broker = SmallBroker()
    assert make_group(broker, name).code == ResponseCode.INVALID_PARAMETER
    answer = Administrator(broker).ask(RequestCode.DELETE_SUBSCRIPTIONGROUP, groupName=name)
    assert answer.code == ResponseCode.INVALID_PARAMETER


@pytest.mark.parametrize(
    "wrong", [{"retryQueueNums": -1}, {"retryMaxTimes": 1 << 40}, {"attributes": {"+a": "b"}}]
)
def test_create_group_with_invalid_values_is_rejected(wrong: dict[str, object]) -> None:
    broker = SmallBroker()
    assert make_group(broker, "readers", **wrong).code == ResponseCode.INVALID_PARAMETER
    assert group_of(broker, "readers") is None


def test_create_groups_is_all_or_nothing() -> None:
    broker = SmallBroker()
    code = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST
    bad = fastjson.encode({"groupConfigList": [{"groupName": "a"}, {"groupName": "b c"}]})
    assert Administrator(broker).ask(code, bad).code == ResponseCode.INVALID_PARAMETER
    assert group_of(broker, "a") is None
    good = fastjson.encode({"groupConfigList": [{"groupName": "a"}, {"groupName": "b"}]})
    assert Administrator(broker).ask(code, good).code == 0
    assert group_of(broker, "b") is not None


def test_create_group_beyond_the_limit_is_rejected() -> None:
    broker = SmallBroker(config=BrokerConfig(groups_max=16))
    codes = [make_group(broker, f"g{n}").code for n in range(16)]
    assert codes[0] == 0
    assert codes[-1] == ResponseCode.SYSTEM_BUSY


@pytest.mark.parametrize(("clean", "left"), [("true", None), ("false", 7)])
def test_delete_group_keeps_offsets_unless_clean_offset_is_set(
    clean: str, left: int | None
) -> None:
    broker = SmallBroker()
    make_group(broker, "readers")
    broker.slices.groups.tables.offsets.put("readers", "orders", 0, 7)
    answer = Administrator(broker).ask(
        RequestCode.DELETE_SUBSCRIPTIONGROUP, groupName="readers", cleanOffset=clean
    )
    assert answer.code == 0
    assert group_of(broker, "readers") is None
    assert broker.slices.groups.tables.offsets.get("readers", "orders", 0) == left


def test_get_group_config_returns_its_settings() -> None:
    broker = SmallBroker()
    make_group(broker, "readers", retryMaxTimes=5)
    tool = Administrator(broker)
    shown = tool.ask(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, group="readers").json
    assert shown["retryMaxTimes"] == 5


def test_get_group_config_of_an_unknown_group_obeys_auto_create() -> None:
    broker = SmallBroker()
    tool, code = Administrator(broker), RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG
    assert tool.ask(code, group="fresh").json["groupName"] == "fresh"
    assert group_of(broker, "fresh") is not None
    assert tool.ask(code, group="no/name").code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
    strict = SmallBroker(config=BrokerConfig(auto_create_groups=False))
    missing = Administrator(strict).ask(code, group="fresh")
    assert missing.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
    assert group_of(strict, "fresh") is None


def test_get_all_group_configs_returns_the_table_or_a_page() -> None:
    broker = SmallBroker()
    tool, code = Administrator(broker), RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG
    names = sorted(tool.ask(code).json["subscriptionGroupTable"])
    assert "TOOLS_CONSUMER" in names
    page = tool.ask(code, groupSeq="2", maxGroupNum="3")
    assert page.ext["totalGroupNum"] == str(len(names))
    assert list(page.json["subscriptionGroupTable"]) == names[2:5]
    again = tool.ask(code, groupSeq="2", maxGroupNum="1", dataVersion='{"counter":99}')
    assert list(again.json["subscriptionGroupTable"]) == names[:1]


def test_forbid_topic_rejects_the_group_until_it_is_undone() -> None:
    broker = SmallBroker()
    make_group(broker, "readers")
    tool, code = Administrator(broker), RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN

    def readable(**more: str) -> bool:
        return tool.ask(code, group="readers", topic="orders", **more).json["readable"]

    assert readable()
    assert not readable(readable="false")
    broker.restart()
    assert not readable()
    table = tool.ask(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG).json
    assert table["forbiddenTable"] == {"readers": {"orders": 4}}
    assert readable(readable="true")
    assert broker.slices.groups.clients.groups.table().forbidden_table == {}


def test_forbid_topic_of_an_unknown_group_or_no_topic_is_rejected() -> None:
    tool, code = Administrator(SmallBroker()), RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN
    assert tool.ask(code, group="x").code == ResponseCode.INVALID_PARAMETER
    unknown = tool.ask(code, group="x", topic="t", readable="false")
    assert unknown.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST


def test_query_topics_and_subscriptions_of_a_group() -> None:
    broker = SmallBroker()
    make_topic(broker, "orders")
    broker.slices.groups.tables.offsets.put("readers", "orders", 0, 1)
    join(broker, "readers", "orders")
    tool = Administrator(broker)
    assert tool.ask(RequestCode.QUERY_TOPICS_BY_CONSUMER, group="readers").json == {
        "topicList": ["orders"]
    }
    code = RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER
    found = tool.ask(code, group="readers", topic="orders").json
    assert found["subscriptionData"]["subString"] == "*"
    assert tool.ask(code, group="x", topic="orders").json["subscriptionData"] is None


@pytest.mark.parametrize("topic", ["a/b", "x" * 200_000, "a b"])
def test_forbid_topic_with_an_invalid_name_is_rejected(topic: str) -> None:
    broker = SmallBroker()
    broker.slices.groups.tables.groups.put(SubscriptionGroupConfig(group_name="g"))
    ext = {"group": "g", "topic": topic, "readable": "false"}
    answer = broker.ask(RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN, ext)
    assert answer is not None
    assert answer.code == ResponseCode.INVALID_PARAMETER
    assert broker.slices.groups.tables.groups.forbidden == {}


def test_forbid_topic_beyond_the_limit_is_rejected() -> None:
    broker = SmallBroker(config=BrokerConfig(topics_max=16))
    broker.slices.groups.tables.groups.put(SubscriptionGroupConfig(group_name="g"))
    codes: list[int] = []
    for number in range(17):
        ext = {"group": "g", "topic": f"t{number}", "readable": "false"}
        answer = broker.ask(RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN, ext)
        assert answer is not None
        codes.append(answer.code)
    assert codes == [0] * 16 + [ResponseCode.SYSTEM_BUSY]
