"""Bodies of administration, as Java spells them."""

from tianzhou.wire import fastjson
from tianzhou.wire.admin_bodies import (
    BrokerStats,
    ConsumeTimeSpans,
    GroupList,
    HalfMessage,
    HalfMessages,
    ProducerClient,
    ProducerTable,
    QueueTimeSpan,
    QueueUnit,
    StatsWindow,
    TimedMessage,
    TimedMessages,
    decode_broker_stats,
    decode_client_status,
    decode_group_config_list,
    decode_group_list,
    decode_group_status,
    decode_half_messages,
    decode_producer_table,
    decode_running_info,
    decode_time_spans,
    decode_timed_messages,
    encode_broker_consume_stats,
    encode_correction_offsets,
    encode_group_status,
)
from tianzhou.wire.queues import ConsumeStats, MessageQueue, OffsetWrapper

QUEUE = MessageQueue(broker_name="b", queue_id=0, topic="T")
QUEUE_TEXT = b'{"brokerName":"b","queueId":0,"topic":"T"}'


def test_admin_bodies_use_the_spellings_of_java() -> None:
    producer = ProducerClient(
        client_id="c", language="JAVA", last_update_timestamp=1, remote_ip="h:1", version=2
    )
    assert fastjson.encode(producer) == (
        b'{"clientId":"c","language":"JAVA","lastUpdateTimestamp":1,"remoteIP":"h:1","version":2}'
    )
    unit = fastjson.encode(QueueUnit(physic_offset=1, physic_size=2, tags_code=3))
    assert b'"bitMap":null,"eval":false,"extendDataJson":null' in unit


def test_group_config_list_is_decoded() -> None:
    found = decode_group_config_list(b'{"groupConfigList":[{"groupName":"g","brokerId":"3"}]}')
    (group,) = found.group_config_list
    assert (group.group_name, group.broker_id) == ("g", 3)


def test_group_status_has_queues_as_keys() -> None:
    status = encode_group_status({"client": {QUEUE: 5}})
    assert status == (
        b'{"consumerTable":{"client":{' + QUEUE_TEXT + b':5}},"messageQueueTable":{}}'
    )
    assert decode_client_status(b'{"messageQueueTable":{' + QUEUE_TEXT + b":7}}") == {QUEUE: 7}
    stats = ConsumeStats(offset_table={QUEUE: OffsetWrapper(broker_offset=4)})
    text = encode_broker_consume_stats("h:1", [("g", [stats])], total_diff=4)
    assert b'"consumeStatsList":[{"g":[{"consumeTps":0.0,"offsetTable":{' + QUEUE_TEXT in text
    assert text.endswith(b'"totalDiff":4,"totalInflightDiff":0}')


def test_correction_offsets_are_encoded_with_quoted_keys() -> None:
    assert encode_correction_offsets({0: 5}) == b'{"correctionOffsets":{"0":5}}'


def test_admin_bodies_round_trip() -> None:
    producer = ProducerClient(
        client_id="c", language="JAVA", last_update_timestamp=1, remote_ip="h:1", version=2
    )
    producers = ProducerTable(data={"g": [producer]})
    assert decode_producer_table(fastjson.encode(producers)) == producers
    groups = GroupList(group_list=("a", "b"))
    assert decode_group_list(fastjson.encode(groups)) == groups
    span = QueueTimeSpan(
        consume_time_stamp=1, delay_time=2, max_time_stamp=3, message_queue=QUEUE, min_time_stamp=0
    )
    spans = ConsumeTimeSpans(consume_time_span_set=(span,))
    assert decode_time_spans(fastjson.encode(spans)) == spans
    stats = BrokerStats(stats_minute=StatsWindow(sum=1, tps=0.5, avgpt=2.0))
    assert decode_broker_stats(fastjson.encode(stats)) == stats
    assert decode_group_status(encode_group_status({"c": {QUEUE: 5}})) == {"c": {QUEUE: 5}}


def test_waiting_message_bodies_round_trip() -> None:
    half = HalfMessage(
        checks=1,
        group="g",
        msg_id="m",
        offset_msg_id="o",
        queue_offset=2,
        store_timestamp=3,
        topic="T",
    )
    halves = HalfMessages(messages=(half,), total=7)
    assert decode_half_messages(fastjson.encode(halves)) == halves
    timed = TimedMessage(
        deliver_timestamp=9, msg_id="m", offset_msg_id="o", store_timestamp=3, topic="T"
    )
    timers = TimedMessages(messages=(timed,), total=1)
    assert decode_timed_messages(fastjson.encode(timers)) == timers


def test_running_info_of_a_java_consumer_is_decoded() -> None:
    info = decode_running_info(
        b'{"jstack":"main","mqPopTable":{},"mqTable":{' + QUEUE_TEXT + b':{"cachedMsgCount":2,'
        b'"cachedMsgSizeInMiB":1,"commitOffset":5,"droped":false,"lastPullTimestamp":8,'
        b'"locked":true,"tryUnlockTimes":0}},"properties":{"PROP_CONSUMEORDERLY":"true"},'
        b'"statusTable":{"T":{"consumeRT":0.5}},"subscriptionSet":[{"classFilterMode":false,'
        b'"codeSet":[],"expressionType":"TAG","subString":"*","subVersion":1,"tagsSet":[],'
        b'"topic":"T"}],"userConsumerInfo":{}}'
    )
    assert info.stacks == "main"
    assert info.properties == {"PROP_CONSUMEORDERLY": "true"}
    held = info.queues[QUEUE]
    assert (held.cached_msg_count, held.cached_msg_size_in_mi_b, held.locked) == (2, 1, True)
    assert [one.topic for one in info.subscriptions] == ["T"]
