"""Heartbeats and lists of clients: `wire/heartbeat.py`."""

import pytest

from tianzhou.wire import heartbeat
from tianzhou.wire.errors import BodyError
from tianzhou.wire.fastjson import encode
from tianzhou.wire.heartbeat import (
    ConsumeFromWhere,
    ConsumerData,
    ConsumeType,
    HeartbeatData,
    MessageModel,
    ProducerData,
    SubscriptionData,
)


def test_heartbeat_is_encoded_like_java_and_round_trips() -> None:
    beat = HeartbeatData(
        client_id="1.2.3.4@5",
        producer_data_set=(ProducerData(group_name="p"),),
        consumer_data_set=(
            ConsumerData(
                group_name="g",
                subscription_data_set=(SubscriptionData(topic="T", tags_set=("a",)),),
            ),
        ),
    )
    text = encode(beat)
    assert text.startswith(b'{"clientID":"1.2.3.4@5","consumerDataSet":[{"consumeFromWhere":')
    assert b'"messageModel":"CLUSTERING"' in text
    assert heartbeat.decode_heartbeat(text) == beat


def test_heartbeat_of_a_cpp_client_is_decoded() -> None:
    beat = heartbeat.decode_heartbeat(
        b'{"clientID":"c","consumerDataSet":[{"consumeFromWhere":4,"consumeType":0,'
        b'"groupName":"g","messageModel":0,"subscriptionDataSet":[{"subString":"*",'
        b'"subVersion":"1794766181339","topic":"T"}]}]}\n'
    )
    (consumer,) = beat.consumer_data_set
    assert consumer.consume_from_where is ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET
    assert consumer.consume_type is ConsumeType.CONSUME_ACTIVELY
    assert consumer.message_model is MessageModel.BROADCASTING
    assert consumer.subscription_data_set[0].sub_version == 1794766181339
    assert heartbeat.decode_heartbeat(b'{"clientID":"c"}') == HeartbeatData(client_id="c")


def test_heartbeat_of_a_go_client_is_decoded() -> None:
    beat = heartbeat.decode_heartbeat(
        b'{"clientID":"c","producerDataSet":null,"consumerDataSet":[{"groupName":"g",'
        b'"subscriptionDataSet":[{"topic":"T","codeSet":["65","-7"],"tagsSet":null}]}]}'
    )
    (subscription,) = beat.consumer_data_set[0].subscription_data_set
    assert subscription == SubscriptionData(topic="T", code_set=(65, -7))


@pytest.mark.parametrize("value", [b"9", b"-1", b'"CONSUME_SOMEHOW"', b"[]"])
def test_heartbeat_with_an_unknown_enum_value_is_rejected(value: bytes) -> None:
    with pytest.raises(BodyError, match="consumeType"):
        heartbeat.decode_heartbeat(
            b'{"clientID":"c","consumerDataSet":[{"groupName":"g","consumeType":' + value + b"}]}"
        )


def test_client_lists_are_decoded() -> None:
    assert heartbeat.decode_consumer_list(b'{"consumerIdList":["a","b"]}').consumer_id_list == (
        "a",
        "b",
    )
    consumers = heartbeat.decode_consumer_connections(
        b'{"connectionSet":[{"clientAddr":"h:1","clientId":"c","language":"JAVA","version":479}],'
        b'"consumeType":1,"messageModel":"CLUSTERING","subscriptionTable":{"T":{"topic":"T"}}}'
    )
    assert consumers.consume_type is ConsumeType.CONSUME_PASSIVELY
    assert heartbeat.decode_consumer_connections(encode(consumers)) == consumers
    producers = heartbeat.decode_producer_connections(
        b'{"connectionSet":[{"clientAddr":"h:1","clientId":"c"}]}'
    )
    assert producers.connection_set[0].language == "OTHER"
