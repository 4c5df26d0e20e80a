"""Requests of clients, and the table of all handlers."""

import json

import pytest
from name_desk import Desk, identity
from registering import topic

from tianzhou.nameserver.config import NameServerConfig
from tianzhou.nameserver.handlers import HANDLERS
from tianzhou.net.rpc import RequestRejected
from tianzhou.wire._generated_codes import SERVED_BY_NAMESERVER, RequestCode
from tianzhou.wire.tables import decode_topic_list

ORDER = "ORDER_TOPIC_CONFIG"


@pytest.fixture
def desk() -> Desk:
    return Desk()


def test_every_nameserver_request_code_has_a_handler() -> None:
    assert HANDLERS.keys() == SERVED_BY_NAMESERVER


# Routes


def test_route_response_quotes_broker_ids_for_new_clients_only(desk: Desk) -> None:
    desk.register(topic("T"), topic("0"))
    code = RequestCode.GET_ROUTEINFO_BY_TOPIC

    def body(version: int, **ext: str) -> bytes:
        return desk.ask(code, {"topic": "T"} | ext, version=version).body

    bare = b'"brokerAddrs":{0:"10.0.0.1:10911"}'
    quoted = b'"brokerAddrs":{"0":"10.0.0.1:10911"}'
    assert quoted in body(401)
    assert bare in body(400)
    assert bare in body(63)
    assert quoted in body(63, acceptStandardJsonOnly="true")
    assert body(63) == body(479).replace(quoted, bare)
    assert b" " not in body(63)
    assert b"\n" not in body(63)
    for other in (RequestCode.GET_BROKER_CLUSTER_INFO, RequestCode.GET_BROKER_MEMBER_GROUP):
        assert bare in desk.ask(other, identity(), version=399).body
        assert quoted in desk.ask(other, identity()).body


def test_cluster_info_for_old_clients_unquotes_broker_ids_only(desk: Desk) -> None:
    desk.register(brokerName="0", clusterName="1", brokerAddr="[::1]:10911")
    desk.register(brokerName="brokerAddrs", clusterName="2", brokerId="12", brokerAddr="10.0.0.2:1")
    found = desk.ask(RequestCode.GET_BROKER_CLUSTER_INFO, version=63).body
    assert b'{"0":{"brokerAddrs":{0:"[::1]:10911"}' in found
    assert b'"brokerAddrs":{"brokerAddrs":{12:"10.0.0.2:1"}' in found
    assert b'"clusterAddrTable":{"1":["0"],"2":["brokerAddrs"]}' in found


def test_route_of_an_unknown_topic_is_code_17_with_advice(desk: Desk) -> None:
    def remark() -> str:
        with pytest.raises(RequestRejected) as caught:
            desk.route("X")
        assert caught.value.code == 17
        return caught.value.remark

    assert "for the topic: X" in remark()
    assert "No broker is registered" in remark()
    desk.register()
    assert "updateTopic" in remark()


def test_route_has_the_order_config_if_enabled(desk: Desk) -> None:
    desk.register()
    desk.ask(RequestCode.PUT_KV_CONFIG, {"namespace": ORDER, "key": "T", "value": "broker-a:8"})
    assert "orderTopicConf" not in desk.route()
    desk.ask(RequestCode.UPDATE_NAMESRV_CONFIG, {}, b"orderMessageEnable=true")
    assert desk.route()["orderTopicConf"] == "broker-a:8"
    assert "orderTopicConf" not in desk.route("U")


def test_route_in_zone_mode_has_brokers_of_the_zone(desk: Desk) -> None:
    desk.register(__ZONE_NAME="east")
    desk.register(brokerName="broker-b", brokerAddr="10.0.0.2:10911", __ZONE_NAME="west")

    def names(**ext: str) -> list[str]:
        reply = desk.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "T"} | ext)
        return [data["brokerName"] for data in json.loads(reply.body)["brokerDatas"]]

    assert names(__ZONE_MODE="true", __ZONE_NAME="west") == ["broker-b"]
    assert len(names(__ZONE_MODE="true", __ZONE_NAME="north")) == 2
    assert len(names(__ZONE_MODE="false", __ZONE_NAME="west")) == 2
    assert len(names(__ZONE_MODE="true")) == 2


def test_route_is_rejected_until_brokers_had_time_to_register() -> None:
    desk = Desk(NameServerConfig(waits_for_service=True))
    desk.register()
    with pytest.raises(RequestRejected, match="not ready"):
        desk.route()
    desk.clock.advance(seconds=45)
    assert desk.route()


# Lists


def listed(desk: Desk, code: RequestCode, **ext: str) -> set[str]:
    names = decode_topic_list(desk.ask(code, ext).body).topic_list
    assert len(names) == len(set(names))
    return set(names)


def test_topic_lists_cover_all_topics_clusters_and_flags(desk: Desk) -> None:
    desk.register(topic("T", flag=1), topic("U", flag=2), topic("V", flag=3), topic("W"))
    desk.register(
        topic("X"), topic("T"), brokerName="broker-b", brokerAddr="10.0.0.2:1", clusterName="d"
    )
    assert listed(desk, RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER) == set("TUVWX")
    assert listed(desk, RequestCode.GET_TOPICS_BY_CLUSTER, cluster="d") == {"X", "T"}
    assert listed(desk, RequestCode.GET_TOPICS_BY_CLUSTER, cluster="e") == set()
    system = RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS
    assert listed(desk, system) == {"c", "broker-a", "d", "broker-b"}
    assert decode_topic_list(desk.ask(system).body).broker_addr == "10.0.0.1:10911"
    assert listed(desk, RequestCode.GET_UNIT_TOPIC_LIST) == {"T", "V"}
    assert listed(desk, RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST) == {"U", "V"}
    assert listed(desk, RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST) == {"U"}


def test_topic_and_cluster_lists_of_an_empty_nameserver_are_empty(desk: Desk) -> None:
    assert desk.ask(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS).body == b'{"topicList":[]}'
    assert json.loads(desk.ask(RequestCode.GET_BROKER_CLUSTER_INFO).body) == {
        "brokerAddrTable": {},
        "clusterAddrTable": {},
    }


def test_topic_list_is_rejected_if_disabled() -> None:
    desk = Desk(NameServerConfig(topic_list_enabled=False))
    assert desk.refusal(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, {}) == 1
