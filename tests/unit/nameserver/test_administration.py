"""Requests of administrators."""

import json

import pytest
from name_desk import Desk

from tianzhou.base.errors import TianzhouError
from tianzhou.net.rpc import RequestRejected
from tianzhou.wire._generated_codes import RequestCode
from tianzhou.wire.routes import QueueData, TopicRouteData, encode_routes


@pytest.fixture
def desk() -> Desk:
    return Desk()


def test_kv_config_is_put_read_and_deleted(desk: Desk) -> None:
    key = {"namespace": "n", "key": "k"}
    assert desk.refusal(RequestCode.GET_KV_CONFIG, key) == 22
    assert desk.refusal(RequestCode.GET_KVLIST_BY_NAMESPACE, key) == 22
    desk.ask(RequestCode.PUT_KV_CONFIG, key | {"value": "v"})
    assert desk.ask(RequestCode.GET_KV_CONFIG, key).ext == {"value": "v"}
    found = desk.ask(RequestCode.GET_KVLIST_BY_NAMESPACE, key).body
    assert json.loads(found) == {"table": {"k": "v"}}
    desk.ask(RequestCode.DELETE_KV_CONFIG, key)
    assert desk.refusal(RequestCode.GET_KV_CONFIG, key) == 22
    emptied = desk.ask(RequestCode.GET_KVLIST_BY_NAMESPACE, key)
    assert (emptied.code, json.loads(emptied.body)) == (0, {"table": {}})
    with pytest.raises(TianzhouError, match="namespace"):
        desk.ask(RequestCode.PUT_KV_CONFIG, {"key": "k", "value": "v"})


def test_write_permission_of_a_broker_is_wiped_and_added(desk: Desk) -> None:
    desk.register()
    name = {"brokerName": "broker-a"}
    wiped = desk.ask(RequestCode.WIPE_WRITE_PERM_OF_BROKER, name)
    assert wiped.ext == {"wipeTopicCount": "2"}
    assert desk.route()["queueDatas"][0]["perm"] == 4
    added = desk.ask(RequestCode.ADD_WRITE_PERM_OF_BROKER, name)
    assert added.ext == {"addTopicCount": "2"}
    assert desk.route()["queueDatas"][0]["perm"] == 6


def test_delete_topic_applies_to_all_clusters_or_one(desk: Desk) -> None:
    desk.register()
    desk.register(brokerName="broker-b", brokerAddr="10.0.0.2:1", clusterName="d")
    delete = RequestCode.DELETE_TOPIC_IN_NAMESRV
    desk.ask(delete, {"topic": "T", "clusterName": "d"})
    assert [row["brokerName"] for row in desk.route()["queueDatas"]] == ["broker-a"]
    desk.ask(delete, {"topic": "T", "clusterName": "none"})
    assert desk.route()
    desk.ask(delete, {"topic": "T"})
    with pytest.raises(RequestRejected):
        desk.route()


def test_register_topic_accepts_known_brokers_only(desk: Desk) -> None:
    desk.register()
    code, name = RequestCode.REGISTER_TOPIC_IN_NAMESRV, {"topic": "V"}

    def row(broker_name: str, perm: int = 6) -> bytes:
        data = QueueData(broker_name=broker_name, perm=perm, read_queue_nums=2)
        return encode_routes(TopicRouteData(queue_datas=(data,)))

    desk.ask(code, name, row("broker-a"))
    assert desk.route("V")["queueDatas"][0]["readQueueNums"] == 2
    desk.ask(code, name)
    assert desk.refusal(code, name, row("broker-x")) == 29
    assert desk.refusal(code, name, row("broker-a", perm=99)) == 29
    assert desk.refusal(code, {"topic": "a\n"}, row("broker-a")) == 29


def test_nameserver_config_is_returned_and_updated_within_bounds(desk: Desk) -> None:
    shown = desk.ask(RequestCode.GET_NAMESRV_CONFIG).body
    assert b"listenPort=9876\n" in shown
    update = RequestCode.UPDATE_NAMESRV_CONFIG
    desk.ask(update, {}, b"scanNotActiveBrokerInterval=20\nenableTopicList=false\n")
    assert desk.state.config.scan_interval_ms == 20
    assert desk.refusal(update, {}, b"listenPort=1\nenableTopicList=true") == 16
    assert desk.refusal(update, {}, b"kvConfigPath=/tmp/x") == 16
    assert desk.refusal(update, {}, b"scanNotActiveBrokerInterval=0") == 29
    assert desk.refusal(update, {}, b"\xff") == 29
    assert not desk.state.config.topic_list_enabled
    assert desk.events == ["config.changed"]


def test_kv_list_that_exceeds_a_frame_is_rejected(desk: Desk) -> None:
    # Each of these bytes is six in JSON.
    value = "\x01" * 250_000
    for key in range(15):
        ext = {"namespace": "n", "key": str(key), "value": value}
        desk.ask(RequestCode.PUT_KV_CONFIG, ext)
    assert desk.refusal(RequestCode.GET_KVLIST_BY_NAMESPACE, {"namespace": "n"}) == 1
