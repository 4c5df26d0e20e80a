"""Messages of a page, in one answer each: by id, key, time and place, and the newest."""

import pytest
from administrator import Administrator, Answer, make_topic

from tianzhou.broker.fetch import query as admin_messages
from tianzhou.record.message import decode_all
from tianzhou.testing.small_broker import SmallBroker
from tianzhou.wire._generated_codes import RequestCode, ResponseCode

UNIQUE = "7F0000010000AAAABBBBCCCCDDDD0001"


def look(
    broker: SmallBroker, by: str, *, count: int = 10, topic: str = "orders", **ext: str
) -> Answer:
    asked = {"topic": topic, "by": by, "count": str(count), **ext}
    return Administrator(broker).ask(RequestCode.VIEW_MESSAGES, **asked)


def bodies(broker: SmallBroker, by: str, *, count: int = 10, **ext: str) -> list[bytes]:
    answer = look(broker, by, count=count, **ext)
    assert answer.code == 0, answer.remark
    return [bytes(message.body) for message in decode_all(answer.body)]


@pytest.fixture
def broker() -> SmallBroker:
    """Six messages, one a second, in turn in two queues."""
    made = SmallBroker()
    make_topic(made, "orders", 2)
    make_topic(made, "refunds", 1)
    for number in range(6):
        made.send("orders", b"%d" % number, queue_id=number % 2, named={"KEYS": f"k{number % 3}"})
        made.clock.advance(ms=1000)
    return made


def test_search_by_time_returns_messages_of_all_queues_in_time_order(broker: SmallBroker) -> None:
    start = broker.clock.now_ms() - 6000
    assert bodies(broker, "time", beginTimestamp=str(start + 1000)) == [
        b"1",
        b"2",
        b"3",
        b"4",
        b"5",
    ]
    assert bodies(broker, "time", beginTimestamp=str(start + 1000), count=2) == [b"1", b"2"]
    begin, end = str(start + 1000), str(start + 3000)
    assert bodies(broker, "time", beginTimestamp=begin, endTimestamp=end) == [b"1", b"2"]


def test_search_for_newest_returns_the_last_messages_in_time_order(
    broker: SmallBroker,
) -> None:
    assert bodies(broker, "newest", count=3) == [b"3", b"4", b"5"]
    start = broker.clock.now_ms() - 6000
    assert bodies(broker, "newest", count=2, endTimestamp=str(start + 3000)) == [b"1", b"2"]
    assert bodies(broker, "newest", topic="refunds") == []


def test_search_by_key_returns_oldest_first(broker: SmallBroker) -> None:
    assert bodies(broker, "key", word="k1") == [b"1", b"4"]
    assert bodies(broker, "key", word="k1", count=1) == [b"4"]
    assert bodies(broker, "key", word="nothing") == []


def test_search_by_offset_finds_that_message_or_nothing(broker: SmallBroker) -> None:
    assert bodies(broker, "place", queueId="1", offset="2") == [b"5"]
    assert bodies(broker, "place", queueId="1", offset="3") == []
    assert bodies(broker, "place", queueId="1", offset="-1") == []
    assert bodies(broker, "place", queueId="7", offset="0") == []


def test_search_by_either_id_finds_messages_of_the_topic_only(broker: SmallBroker) -> None:
    broker.send("orders", b"named", named={"UNIQ_KEY": UNIQUE})
    broker.send("orders", b"again", named={"UNIQ_KEY": UNIQUE})
    assert bodies(broker, "id", word=UNIQUE) == [b"named"]
    (named, *_) = decode_all(look(broker, "id", word=UNIQUE).body)
    assert bodies(broker, "id", word=named.offset_id) == [b"named"]
    assert bodies(broker, "id", word=named.offset_id, topic="refunds") == []
    # The same place, under the name of another machine.
    elsewhere = "0A0A0A0A" + named.offset_id[8:]
    assert bodies(broker, "id", word=elsewhere) == []


def test_search_response_over_the_byte_limit_has_one_message(
    broker: SmallBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admin_messages, "BYTES_MAX", 1)
    assert bodies(broker, "newest") == [b"5"]
    assert bodies(broker, "key", word="k1") == [b"4"]


def test_search_with_invalid_arguments_is_rejected(broker: SmallBroker) -> None:
    answer = look(broker, "guess")
    assert (answer.code, "id, key, time, newest, place" in answer.remark) == (
        ResponseCode.INVALID_PARAMETER,
        True,
    )
    assert look(broker, "key", count=0, word="k1").code == ResponseCode.INVALID_PARAMETER
    answer = look(broker, "newest", topic="nowhere")
    assert (answer.code, "nowhere" in answer.remark) == (ResponseCode.TOPIC_NOT_EXIST, True)
