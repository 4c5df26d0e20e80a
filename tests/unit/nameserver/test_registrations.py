"""Requests of brokers."""

import json
from typing import Any

import msgspec
import pytest
from name_desk import Desk, body_of, identity
from registering import FakePeer, topic

from tianzhou.base.errors import TianzhouError
from tianzhou.net.rpc import Reply, RequestRejected
from tianzhou.wire import registration
from tianzhou.wire._generated_codes import RequestCode
from tianzhou.wire.tables import (
    DataVersion,
    RegisterBrokerBody,
    TopicConfigTable,
    decode_topic_list,
)


@pytest.fixture
def desk() -> Desk:
    return Desk()


def test_registration_creates_a_route_and_is_logged(desk: Desk) -> None:
    assert desk.register() == Reply()
    assert desk.route()["brokerDatas"][0]["brokerAddrs"] == {"0": "10.0.0.1:10911"}
    assert desk.events == ["broker.registered"]


def test_registration_with_a_wrong_checksum_is_rejected_unless_it_is_0(desk: Desk) -> None:
    body = body_of(topic("T"), topic("U"))
    desk.register(body=body, bodyCrc32=str(registration.checksum(body)))
    desk.register(body=body, bodyCrc32="0")
    with pytest.raises(RequestRejected, match="bodyCrc32"):
        desk.register(body=body, bodyCrc32=str(registration.checksum(body) ^ 1))


def test_registration_in_compressed_form_is_detected_without_the_header(desk: Desk) -> None:
    table = TopicConfigTable(topic_config_table={n: topic(n) for n in ("T", "U")})
    body = registration.encode_compressed(RegisterBrokerBody(topic_config_serialize_wrapper=table))
    desk.register(body=body, compressed="false")
    assert desk.route()["queueDatas"][0]["readQueueNums"] == 4


def test_registration_of_a_single_topic_of_an_unknown_broker_is_rejected(desk: Desk) -> None:
    with pytest.raises(RequestRejected, match="register broker failed") as caught:
        desk.register(topic("T"))
    assert caught.value.code == 1


def test_registration_of_an_outdated_broker_gets_a_success_response(desk: Desk) -> None:
    newer = DataVersion(state_version=2)
    table = TopicConfigTable(data_version=newer)
    body = registration.encode_registration(
        RegisterBrokerBody(topic_config_serialize_wrapper=table)
    )
    desk.register(body=body)
    assert desk.register(brokerAddr="10.0.0.2:10911") == Reply()
    assert desk.events == ["broker.registered", "broker.outdated"]
    assert desk.state.routes.addresses_of("broker-a") == {0: "10.0.0.1:10911"}
    slave = {"brokerId": "1", "brokerAddr": "10.0.0.3:10911"}
    desk.register(body=body, also=slave)
    assert desk.register(also=slave | {"brokerAddr": "10.0.0.4:10911"}) == Reply()


def test_registration_response_to_a_slave_has_the_master_addresses(desk: Desk) -> None:
    slave = {"brokerId": "1", "brokerAddr": "10.0.0.2:10911"}
    assert desk.register(also=slave).ext == {}
    desk.register()
    assert desk.register(also=slave).ext == {
        "haServerAddr": "10.0.0.1:10912",
        "masterAddr": "10.0.0.1:10911",
    }


def registered_as(epoch: int) -> bytes:
    table = TopicConfigTable(data_version=DataVersion(state_version=epoch))
    return registration.encode_registration(
        RegisterBrokerBody(topic_config_serialize_wrapper=table)
    )


def test_registration_of_an_old_master_is_outdated_after_the_new_one_left(desk: Desk) -> None:
    old = {"tzEpoch": "1", "tzEpochToken": "aa"}
    new = {"tzEpoch": "2", "tzEpochToken": "bb", "brokerAddr": "10.0.0.2:10911"}
    desk.register(body=registered_as(1), also=old)
    desk.register(body=registered_as(2), also=new)
    desk.state.routes.closed(desk.peer)
    assert desk.state.routes.broker_count == 0
    answer = desk.register(body=registered_as(1), also=old)
    assert answer.ext == {"tzEpoch": "2", "tzFreeId": "1", "tzEpochSeen": "2"}
    assert desk.state.routes.broker_count == 0, "it may not take messages"
    slave = {"brokerId": "1", "brokerAddr": "10.0.0.3:10911", "tzEpoch": "1"}
    assert desk.register(body=registered_as(1), also=slave).ext == {"tzEpochSeen": "2"}


def test_registration_response_to_a_slave_has_the_greeting_flag(desk: Desk) -> None:
    slave = {"brokerId": "1", "brokerAddr": "10.0.0.2:10911"}
    desk.register(tzEpoch="1")
    assert desk.register(also=slave).ext["tzMasterGreets"] == "true"
    desk.register()
    assert "tzMasterGreets" not in desk.register(also=slave).ext


def test_registration_response_has_the_order_config(desk: Desk) -> None:
    desk.ask(
        RequestCode.PUT_KV_CONFIG,
        {"namespace": "ORDER_TOPIC_CONFIG", "key": "T", "value": "broker-a:8"},
    )
    assert json.loads(desk.register().body) == {"table": {"T": "broker-a:8"}}


@pytest.mark.parametrize(
    "ext",
    [
        {"brokerName": 'a"'},
        {"brokerName": ""},
        {"clusterName": "a b"},
        {"brokerAddr": "169.254.169.254:80"},
        {"brokerAddr": "0.0.0.0:10911"},
        {"brokerAddr": "0.0.0.0:10911", "tzAddressByDial": "true"},
        {"haServerAddr": "nowhere"},
        {"brokerId": "-1"},
        {"brokerId": "x"},
        {"__ZONE_NAME": "{"},
    ],
)
def test_registration_with_invalid_fields_is_rejected(desk: Desk, ext: dict[str, str]) -> None:
    with pytest.raises(TianzhouError):
        desk.register(also=ext)
    assert desk.state.routes.broker_count == 0


def test_registration_of_topics_with_invalid_names_adds_no_route(desk: Desk) -> None:
    desk.register(topic("T"), topic("U"), topic("bad\nname"), topic("c"))
    listed = desk.ask(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER).body
    assert decode_topic_list(listed).topic_list == ("T", "U", "c")


@pytest.mark.parametrize(
    ("asked", "timeout_s"), [("0", 120), ("5000", 5), ("1", 1), (str(2**62), 3600)]
)
def test_registration_timeout_is_bounded(desk: Desk, asked: str, timeout_s: int) -> None:
    desk.register(heartbeatTimeoutMillis=asked)
    assert desk.state.routes.evict(timeout_s) == []
    assert len(desk.state.routes.evict(timeout_s + 0.1)) == 1


def test_unregister_removes_the_broker_once(desk: Desk) -> None:
    desk.register()
    desk.ask(RequestCode.UNREGISTER_BROKER, identity())
    desk.ask(RequestCode.UNREGISTER_BROKER, identity())
    assert desk.state.routes.broker_count == 0
    assert desk.events == ["broker.registered", "broker.unregistered"]


def test_broker_heartbeat_keeps_the_registration(desk: Desk) -> None:
    desk.register()
    desk.clock.advance(seconds=119)
    desk.ask(RequestCode.BROKER_HEARTBEAT, identity())
    assert desk.state.routes.evict(200) == []


def test_query_data_version_reports_whether_it_changed(desk: Desk) -> None:
    def ask(counter: int) -> tuple[str, Any]:
        body = msgspec.json.encode({"counter": counter, "timestamp": 0})
        reply = desk.ask(RequestCode.QUERY_DATA_VERSION, identity(), body)
        return reply.ext["changed"], json.loads(reply.body) if reply.body else None

    assert ask(1) == ("true", None)
    desk.register()
    desk.clock.advance(seconds=119)
    held = {"counter": 1, "stateVersion": 0, "timestamp": 0}
    assert ask(2) == ("true", held)
    assert len(desk.state.routes.evict(121)) == 1
    desk.register()
    desk.clock.advance(seconds=119)
    assert ask(1) == ("false", held)
    assert desk.state.routes.evict(119 + 121) == []


def test_broker_member_group_lists_the_members(desk: Desk) -> None:
    desk.register()
    desk.register(brokerId="1", brokerAddr="10.0.0.2:10911")
    reply = desk.ask(RequestCode.GET_BROKER_MEMBER_GROUP, identity())
    assert json.loads(reply.body)["brokerMemberGroup"] == {
        "brokerAddrs": {"0": "10.0.0.1:10911", "1": "10.0.0.2:10911"},
        "brokerName": "broker-a",
        "cluster": "c",
    }
    empty = desk.ask(RequestCode.GET_BROKER_MEMBER_GROUP, identity(brokerName="x"))
    assert json.loads(empty.body)["brokerMemberGroup"]["brokerAddrs"] == {}


# Address by dial


def test_address_of_a_local_broker_is_returned_as_dialled(desk: Desk) -> None:
    near = FakePeer(remote="127.0.0.1:5000", local="127.0.0.1:9876")
    desk.register(brokerAddr="0.0.0.0:10911", tzAddressByDial="true", peer=near)
    desk.peer.local = "192.168.1.5:9876"
    assert desk.route()["brokerDatas"][0]["brokerAddrs"] == {"0": "192.168.1.5:10911"}
    for code in (
        RequestCode.GET_BROKER_CLUSTER_INFO,
        RequestCode.GET_BROKER_MEMBER_GROUP,
        RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS,
    ):
        assert b"192.168.1.5:10911" in desk.ask(code, identity()).body
    slave = desk.register(brokerId="1", brokerAddr="10.0.0.2:10911")
    assert slave.ext["masterAddr"] == "192.168.1.5:10911"


@pytest.mark.parametrize(
    ("remote", "ext"),
    [
        ("127.0.0.1:5000", {}),
        ("127.0.0.1:5000", {"tzAddressByDial": "false"}),
        ("10.0.0.1:5000", {"tzAddressByDial": "true"}),
    ],
)
def test_address_of_a_remote_broker_is_unchanged(
    desk: Desk, remote: str, ext: dict[str, str]
) -> None:
    desk.register(peer=FakePeer(remote=remote, local="127.0.0.1:9876"), also=ext)
    assert desk.route()["brokerDatas"][0]["brokerAddrs"] == {"0": "10.0.0.1:10911"}
