"""Typed bodies: `wire/routes.py`, `wire/queues.py`, `wire/tables.py`."""

import json

import pytest

from tianzhou.wire import queues, routes, tables
from tianzhou.wire.errors import BodyError
from tianzhou.wire.fastjson import encode
from tianzhou.wire.names import PERM_READ
from tianzhou.wire.queues import MessageQueue
from tianzhou.wire.routes import BrokerData, QueueData, TopicRouteData

QUEUE = MessageQueue(broker_name="b", queue_id=0, topic="T")
QUEUE_TEXT = '{"brokerName":"b","queueId":0,"topic":"T"}'


def test_route_is_standard_json_with_both_spellings_of_the_flag() -> None:
    route = TopicRouteData(
        broker_datas=(BrokerData(broker_name="b", cluster="é", broker_addrs={0: "h:1", 1: "h:2"}),),
        queue_datas=(QueueData(broker_name="b", perm=6, read_queue_nums=4, topic_sys_flag=1),),
    )
    text = routes.encode_routes(route)
    assert text.decode("ascii") == (
        '{"brokerDatas":[{"brokerAddrs":{"0":"h:1","1":"h:2"},"brokerName":"b",'
        '"cluster":"\\u00e9","enableActingMaster":false}],"filterServerTable":{},'
        '"queueDatas":[{"brokerName":"b","perm":6,"readQueueNums":4,"topicSynFlag":1,'
        '"topicSysFlag":1,"writeQueueNums":0}]}'
    )
    assert routes.decode_route(text) == route


def test_route_of_an_old_java_nameserver_is_decoded() -> None:
    route = routes.decode_route(
        b'{"brokerDatas":[{"brokerAddrs":{0:"h:1"},"brokerName":"b","cluster":"c"}],'
        b'"filterServerTable":null,"orderTopicConf":"b:8","queueDatas":'
        b'[{"brokerName":"b","perm":6,"readQueueNums":4,"topicSynFlag":3,"writeQueueNums":4}]}'
    )
    assert route.broker_datas[0].broker_addrs == {0: "h:1"}
    assert route.queue_datas[0].topic_sys_flag == 3
    assert route.order_topic_conf == "b:8"


def test_cluster_table_with_bare_keys_is_decoded() -> None:
    table = routes.decode_cluster_table(
        b'{"brokerAddrTable":{"b":{"brokerAddrs":{0:"h:1"},"brokerName":"b","cluster":"c"}},'
        b'"clusterAddrTable":{"c":["b"]}}'
    )
    assert table.broker_addr_table["b"].broker_addrs == {0: "h:1"}
    assert routes.decode_cluster_table(routes.encode_routes(table)) == table


def test_topic_stats_have_queues_as_keys() -> None:
    stats = queues.TopicStats(offset_table={QUEUE: queues.TopicOffset(max_offset=3)})
    text = queues.encode_topic_stats(stats)
    row = '{"lastUpdateTimestamp":0,"maxOffset":3,"minOffset":0}'
    assert text.decode() == f'{{"offsetTable":{{{QUEUE_TEXT}:{row}}},"topicPutTps":0.0}}'
    assert queues.decode_topic_stats(text) == stats


def test_consume_stats_have_queues_as_keys() -> None:
    row = queues.OffsetWrapper(broker_offset=9, consumer_offset=4, last_timestamp=1)
    stats = queues.ConsumeStats(offset_table={QUEUE: row}, consume_tps=1.5)
    text = queues.encode_consume_stats(stats)
    assert QUEUE_TEXT.encode() + b":{" in text
    assert queues.decode_consume_stats(text) == stats


def test_queue_offsets_are_encoded_as_a_map_or_as_a_list_for_cpp() -> None:
    text = queues.encode_queue_offsets({QUEUE: 12})
    assert text.decode() == f'{{"offsetTable":{{{QUEUE_TEXT}:12}}}}'
    assert queues.decode_queue_offsets(text) == {QUEUE: 12}
    listed = json.loads(queues.encode_queue_offsets_as_list({QUEUE: 12}))
    assert listed == {
        "offsetTable": [{"brokerName": "b", "queueId": 0, "topic": "T", "offset": 12}]
    }


def test_queue_offsets_with_an_invalid_key_are_rejected() -> None:
    with pytest.raises(BodyError):
        queues.decode_queue_offsets(b'{"offsetTable":{"x":1}}')


def test_lock_bodies_round_trip() -> None:
    lock = queues.LockBatch(client_id="c", consumer_group="g", mq_set=(QUEUE,))
    assert queues.decode_lock_batch(encode(lock)) == lock
    locked = queues.LockedQueues(queues=(QUEUE,))
    assert encode(locked).decode() == f'{{"lockOKMQSet":[{QUEUE_TEXT}]}}'
    assert queues.decode_locked_queues(encode(locked)) == locked


def test_group_table_of_java_4_gets_the_defaults_of_java_5() -> None:
    table = tables.decode_group_table(
        b'{\n\t"dataVersion":{"counter":1,"timestamp":9},\n\t"subscriptionGroupTable":{"g":{'
        b'"brokerId":0,"consumeEnable":false,"groupName":"g","retryMaxTimes":3}}}'
    )
    group = table.subscription_group_table["g"]
    assert table.data_version == tables.DataVersion(counter=1, timestamp=9)
    assert (group.consume_enable, group.retry_max_times) == (False, 3)
    assert (group.consume_timeout_minute, group.group_retry_policy.type) == (15, "CUSTOMIZED")


def test_offset_tables_with_bare_keys_are_decoded() -> None:
    offsets = tables.decode_consumer_offsets(b'{"offsetTable":{"T@g":{0:12,1:7}}}')
    assert offsets.offset_table == {"T@g": {0: 12, 1: 7}}
    assert tables.decode_consumer_offsets(encode(offsets)) == offsets
    delays = tables.decode_delay_offsets(b'{\n\t"offsetTable":{1:0,2:5\n\t}\n}')
    assert delays.offset_table == {1: 0, 2: 5}


def test_registration_and_topic_bodies_round_trip() -> None:
    topic = tables.TopicConfig(topic_name="T", perm=PERM_READ, attributes={"a": "b"})
    body = tables.RegisterBrokerBody(
        topic_config_serialize_wrapper=tables.TopicConfigTable(topic_config_table={"T": topic})
    )
    assert tables.decode_register_broker(encode(body)) == body
    assert tables.decode_topic_config(encode(topic)) == topic
    assert tables.decode_topic_table(b'{"topicConfigTable":{}}').topic_config_table == {}
    several = tables.TopicConfigList(topic_config_list=(topic,))
    assert tables.decode_topic_config_list(encode(several)) == several


def test_small_tables_are_encoded_and_decoded() -> None:
    version = tables.DataVersion(counter=1, state_version=2, timestamp=3)
    assert encode(version) == b'{"counter":1,"stateVersion":2,"timestamp":3}'
    assert tables.decode_data_version(encode(version)) == version
    assert tables.decode_kv_table(b'{"table":{"k":"v"}}').table == {"k": "v"}
    topics = tables.decode_topic_list(b'{"topicList":["T"]}')
    assert encode(topics) == b'{"topicList":["T"]}'
    group = tables.SubscriptionGroupConfig(group_name="g")
    assert tables.decode_group_config(encode(group)) == group
