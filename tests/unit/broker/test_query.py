"""Messages are found by key, by unique id, by place in the log and in a queue."""

import pytest
from administrator import Administrator, Answer, join, make_topic

from tianzhou.record.message import decode_all
from tianzhou.testing.small_broker import SmallBroker
from tianzhou.wire._generated_codes import RequestCode, ResponseCode


@pytest.fixture
def broker() -> SmallBroker:
    made = SmallBroker()
    make_topic(made, "orders")
    for number in range(5):
        made.clock.advance(seconds=1)
        made.send("orders", b"%d" % number, {"KEYS": "all odd" if number % 2 else "all"})
    return made


def by_key(broker: SmallBroker, key: str, **more: str) -> Answer:
    ext = {"topic": "orders", "maxNum": "64", "beginTimestamp": "0"} | more
    ext.setdefault("endTimestamp", str(1 << 62))
    return Administrator(broker).ask(RequestCode.QUERY_MESSAGE, key=key, **ext)


def bodies(answer: Answer) -> list[bytes]:
    return [message.body for message in decode_all(answer.body)]


def test_query_by_key_returns_newest_first(broker: SmallBroker) -> None:
    answer = by_key(broker, "odd")
    assert bodies(answer) == [b"3", b"1"]
    assert answer.ext["indexLastUpdateTimestamp"] == str(broker.clock.now_ms())
    last = broker.messages("orders")[-1]
    assert answer.ext["indexLastUpdatePhyoffset"] == str(last.physical_offset)


def test_query_by_key_honours_time_and_count(broker: SmallBroker) -> None:
    now_ms = broker.clock.now_ms()
    assert bodies(by_key(broker, "all", maxNum="2")) == [b"4", b"3"]
    found = by_key(
        broker, "all", beginTimestamp=str(now_ms - 3000), endTimestamp=str(now_ms - 2000)
    )
    assert bodies(found) == [b"2", b"1"]
    assert len(bodies(by_key(broker, "all", maxNum="-1"))) == 1


def test_query_by_unique_id_finds_the_message(broker: SmallBroker) -> None:
    message = broker.messages("orders")[2]
    answer = by_key(broker, message.unique_id or "", maxNum="0", _UNIQUE_KEY_QUERY="true")
    assert bodies(answer) == [b"2"]


@pytest.mark.parametrize(("topic", "key"), [("orders", "none"), ("other", "all")])
def test_query_without_a_match_is_not_found(broker: SmallBroker, topic: str, key: str) -> None:
    answer = by_key(broker, key, topic=topic)
    assert answer.code == ResponseCode.QUERY_NOT_FOUND
    assert "indexLastUpdateTimestamp" in answer.ext


def test_query_without_a_required_field_names_it(broker: SmallBroker) -> None:
    answer = Administrator(broker).ask(RequestCode.QUERY_MESSAGE, topic="orders")
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "key" in answer.remark


def test_query_response_fits_one_frame() -> None:
    broker = SmallBroker()
    make_topic(broker, "orders")
    for _ in range(20):
        broker.send("orders", bytes(1_000_000), {"KEYS": "big"})
    answer = by_key(broker, "big")
    assert len(bodies(answer)) == 16


def test_query_by_log_offset_finds_the_message(broker: SmallBroker) -> None:
    tool, code = Administrator(broker), RequestCode.VIEW_MESSAGE_BY_ID
    message = broker.messages("orders")[3]
    answer = tool.ask(code, offset=str(message.physical_offset), topic="orders")
    assert bodies(answer) == [b"3"]
    for wrong in (message.physical_offset + 1, -1, 1 << 40):
        assert tool.ask(code, offset=str(wrong)).code == ResponseCode.SYSTEM_ERROR


def test_query_of_queue_entries_lists_them(broker: SmallBroker) -> None:
    join(broker, "readers", "orders")
    tool, code = Administrator(broker), RequestCode.QUERY_CONSUME_QUEUE
    ext = {"topic": "orders", "queueId": "0", "consumerGroup": "readers"}
    found = tool.ask(code, index="3", count="10", **ext).json
    assert (found["minQueueIndex"], found["maxQueueIndex"]) == (0, 5)
    messages = broker.messages("orders")[3:]
    assert [row["physicOffset"] for row in found["queueData"]] == [
        message.physical_offset for message in messages
    ]
    assert found["queueData"][0]["physicSize"] == messages[0].total_size
    assert found["subscriptionData"]["topic"] == "orders"
    few = tool.ask(code, index="-5", count="2", **ext).json
    assert few["queueData"][0]["physicOffset"] == 0
    assert tool.ask(code, index="99", count="2", **ext).json["queueData"] == []
    missing = tool.ask(code, index="0", count="1", topic="orders", queueId="9")
    assert missing.code == ResponseCode.SYSTEM_ERROR
