"""Who is connected, and questions that are passed on to consumers."""

from administrator import Administrator, join, make_topic

from tianzhou.testing.small_broker import RecordingPeer, SmallBroker
from tianzhou.wire import fastjson
from tianzhou.wire._generated_codes import RequestCode, ResponseCode
from tianzhou.wire.codec import Header
from tianzhou.wire.queues import MessageQueue

OK = Header(code=0, opaque=1, ext={"extra": "1"})


def with_consumers() -> tuple[SmallBroker, RecordingPeer, RecordingPeer]:
    broker = SmallBroker()
    make_topic(broker, "orders")
    first = join(broker, "readers", "orders", client_id="one", port=1)
    second = join(broker, "readers", "orders", client_id="two", port=2)
    first.take_told()
    return broker, first, second


def test_consumer_connection_list_has_the_members_of_a_group() -> None:
    broker, _, _ = with_consumers()
    tool, code = Administrator(broker), RequestCode.GET_CONSUMER_CONNECTION_LIST
    found = tool.ask(code, consumerGroup="readers").json
    assert found["connectionSet"] == [
        {"clientAddr": "10.1.1.1:1", "clientId": "one", "language": "JAVA", "version": 479},
        {"clientAddr": "10.1.1.1:2", "clientId": "two", "language": "JAVA", "version": 479},
    ]
    assert found["consumeFromWhere"] == "CONSUME_FROM_FIRST_OFFSET"
    assert found["consumeType"] == "CONSUME_PASSIVELY"
    assert found["messageModel"] == "CLUSTERING"
    assert found["subscriptionTable"]["orders"]["subString"] == "*"
    assert tool.ask(code, consumerGroup="x").code == ResponseCode.CONSUMER_NOT_ONLINE


def test_producer_connection_list_of_one_group_and_of_all() -> None:
    broker = SmallBroker()
    broker.heartbeat(RecordingPeer(), "p1", producers=("writers",))
    tool = Administrator(broker)
    found = tool.ask(RequestCode.GET_PRODUCER_CONNECTION_LIST, producerGroup="writers").json
    assert [row["clientId"] for row in found["connectionSet"]] == ["p1"]
    missing = tool.ask(RequestCode.GET_PRODUCER_CONNECTION_LIST, producerGroup="x")
    assert missing.code == ResponseCode.SYSTEM_ERROR
    (row,) = tool.ask(RequestCode.GET_ALL_PRODUCER_INFO).json["data"]["writers"]
    assert (row["clientId"], row["remoteIP"]) == ("p1", "10.1.1.1:4711")
    assert row["lastUpdateTimestamp"] == broker.clock.now_ms()


def test_consumer_status_is_requested_from_that_consumer() -> None:
    broker, first, second = with_consumers()
    tool, code = Administrator(broker), RequestCode.GET_CONSUMER_RUNNING_INFO
    assert tool.begin(code, consumerGroup="readers", clientId="two", jstackEnable="true") == []
    assert first.take_told() == []
    (told,) = second.take_told()
    assert told.code == code
    assert told.ext["jstackEnable"] == "true"
    assert told.on_answer is not None
    told.on_answer(OK, b'{"properties":{}}')
    (answer,) = tool.taken()
    assert (answer.code, answer.body, answer.ext) == (0, b'{"properties":{}}', {"extra": "1"})


def test_consumer_status_of_a_silent_consumer_is_an_error() -> None:
    broker, first, _ = with_consumers()
    tool = Administrator(broker)
    tool.begin(RequestCode.GET_CONSUMER_RUNNING_INFO, consumerGroup="readers", clientId="one")
    (told,) = first.take_told()
    assert told.on_answer is not None
    told.on_answer(None, b"")
    (answer,) = tool.taken()
    assert answer.code == ResponseCode.CONSUME_MSG_TIMEOUT
    assert "one" in answer.remark


def test_consumer_status_for_a_disconnected_tool_is_dropped() -> None:
    broker, first, _ = with_consumers()
    tool = Administrator(broker)
    tool.begin(RequestCode.GET_CONSUMER_RUNNING_INFO, consumerGroup="readers", clientId="one")
    tool.close()
    (told,) = first.take_told()
    assert told.on_answer is not None
    told.on_answer(OK, b"")
    assert tool.taken() == []


def test_consumer_status_is_requested_from_group_members_only() -> None:
    broker, first, _ = with_consumers()
    stranger = join(broker, "others", "orders", client_id="spy", port=3)
    tool = Administrator(broker)
    for code in (RequestCode.GET_CONSUMER_RUNNING_INFO, RequestCode.CONSUME_MESSAGE_DIRECTLY):
        for group, client in (("readers", "spy"), ("others", "one"), ("x", "one")):
            answer = tool.ask(code, consumerGroup=group, clientId=client, msgId="0" * 32)
            assert answer.code == ResponseCode.SYSTEM_ERROR
    assert first.take_told() == stranger.take_told() == []


def test_consume_directly_delivers_the_message() -> None:
    broker, first, _ = with_consumers()
    broker.send("orders", b"again")
    (message,) = broker.messages("orders")
    tool, code = Administrator(broker), RequestCode.CONSUME_MESSAGE_DIRECTLY
    ext = {"consumerGroup": "readers", "clientId": "one", "brokerName": "?", "more": "kept"}
    assert tool.begin(code, msgId=message.offset_id.lower(), **ext) == []
    (told,) = first.take_told()
    assert told.body == broker.store.log.read(0, message.total_size)
    assert (told.ext["brokerName"], told.ext["more"]) == ("broker-a", "kept")
    assert told.on_answer is not None
    told.on_answer(OK, b'{"consumeResult":"CR_SUCCESS"}')
    (answer,) = tool.taken()
    assert answer.json == {"consumeResult": "CR_SUCCESS"}


def test_consume_directly_with_a_foreign_or_invalid_id_is_rejected() -> None:
    broker, first, _ = with_consumers()
    broker.send("orders")
    (message,) = broker.messages("orders")
    tool, code = Administrator(broker), RequestCode.CONSUME_MESSAGE_DIRECTLY
    for wrong in ("", "zz", "7F000001000078BF" + message.offset_id[16:], message.unique_id or ""):
        answer = tool.ask(code, consumerGroup="readers", clientId="one", msgId=wrong)
        assert answer.code == ResponseCode.SYSTEM_ERROR
    assert first.take_told() == []


def test_offsets_in_memory_are_requested_from_every_member() -> None:
    broker, first, second = with_consumers()
    tool, code = Administrator(broker), RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS
    assert tool.begin(code, topic="orders", group="readers") == []
    queue = MessageQueue(broker_name="broker-a", queue_id=0, topic="orders")
    body = b'{"messageQueueTable":{' + fastjson.encode(queue) + b":7}}"
    (told,) = first.take_told()
    assert told.code == RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT
    assert told.on_answer is not None
    told.on_answer(OK, body)
    assert tool.taken() == []
    (told,) = second.take_told()
    assert told.on_answer is not None
    told.on_answer(OK, b"nonsense")
    (answer,) = tool.taken()
    assert answer.json["consumerTable"] == {"one": {fastjson.encode(queue).decode(): 7}}


def test_offsets_in_memory_of_one_member_or_of_an_empty_group() -> None:
    broker, first, second = with_consumers()
    tool, code = Administrator(broker), RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS
    tool.begin(code, topic="orders", group="readers", clientAddr="two")
    assert first.take_told() == []
    (told,) = second.take_told()
    assert told.on_answer is not None
    told.on_answer(None, b"")
    (answer,) = tool.taken()
    assert answer.json["consumerTable"] == {}
    nobody = tool.ask(code, topic="orders", group="x")
    assert nobody.code == ResponseCode.CONSUMER_NOT_ONLINE
