"""Bodies of administration, as Java spells them."""

from tianzhou.wire import fastjson
from tianzhou.wire.admin_bodies import (
    ProducerClient,
    QueueUnit,
    decode_client_status,
    decode_group_config_list,
    encode_broker_consume_stats,
    encode_correction_offsets,
    encode_group_status,
)
from tianzhou.wire.queues import ConsumeStats, MessageQueue, OffsetWrapper

QUEUE = MessageQueue(broker_name="b", queue_id=0, topic="T")
QUEUE_TEXT = b'{"brokerName":"b","queueId":0,"topic":"T"}'


def test_odd_spellings() -> None:
    producer = ProducerClient(
        client_id="c", language="JAVA", last_update_timestamp=1, remote_ip="h:1", version=2
    )
    assert fastjson.encode(producer) == (
        b'{"clientId":"c","language":"JAVA","lastUpdateTimestamp":1,"remoteIP":"h:1","version":2}'
    )
    unit = fastjson.encode(QueueUnit(physic_offset=1, physic_size=2, tags_code=3))
    assert b'"bitMap":null,"eval":false,"extendDataJson":null' in unit


def test_groups_in_a_list() -> None:
    found = decode_group_config_list(b'{"groupConfigList":[{"groupName":"g","brokerId":"3"}]}')
    (group,) = found.group_config_list
    assert (group.group_name, group.broker_id) == ("g", 3)


def test_queues_are_keys_as_java_wants_them() -> None:
    status = encode_group_status({"client": {QUEUE: 5}})
    assert status == (
        b'{"consumerTable":{"client":{' + QUEUE_TEXT + b':5}},"messageQueueTable":{}}'
    )
    assert decode_client_status(b'{"messageQueueTable":{' + QUEUE_TEXT + b":7}}") == {QUEUE: 7}
    stats = ConsumeStats(offset_table={QUEUE: OffsetWrapper(broker_offset=4)})
    text = encode_broker_consume_stats("h:1", [("g", [stats])], total_diff=4)
    assert b'"consumeStatsList":[{"g":[{"consumeTps":0.0,"offsetTable":{' + QUEUE_TEXT in text
    assert text.endswith(b'"totalDiff":4,"totalInflightDiff":0}')


def test_corrections() -> None:
    assert encode_correction_offsets({0: 5}) == b'{"correctionOffsets":{"0":5}}'
