"""Typed header fields: `ExtFields` and the classes generated over it."""

from typing import cast

import pytest

from tianzhou.base.errors import ProtocolError, RemoteProtocolError
from tianzhou.wire._generated_headers import (
    REQUEST_HEADERS,
    RESPONSE_HEADERS,
    ConsumerSendMsgBackRequest,
    EndTransactionRequest,
    PullMessageRequest,
    QueueRequest,
    SendMessageRequest,
    SendMessageResponse,
    SendMessageV2Request,
)
from tianzhou.wire.codec import ExtFields
from tianzhou.wire.errors import HeaderFieldError

ALL_CLASSES = sorted(
    {*REQUEST_HEADERS.values(), *RESPONSE_HEADERS.values()}, key=lambda kind: kind.__name__
)


def send(queue_id: int = 1) -> SendMessageRequest:
    return SendMessageRequest(
        producer_group="g",
        topic="T",
        default_topic="TBW102",
        queue_id=queue_id,
        sys_flag=0,
        born_timestamp_ms=5,
        flag=0,
    )


def test_to_ext_omits_fields_without_a_value() -> None:
    answer = SendMessageResponse(msg_id="0A", queue_id=3, queue_offset=9, trace_on=True)
    assert answer.to_ext() == {
        "msgId": "0A",
        "queueId": "3",
        "queueOffset": "9",
        "TRACE_ON": "true",
    }


def test_send_v2_fields_equal_the_long_names() -> None:
    long = send(queue_id=-1)
    ext = long.to_ext()
    names = SendMessageV2Request.__struct_encode_fields__
    assert names == tuple("abcdefghijklmn")
    short = dict(zip(names, SendMessageRequest.__struct_encode_fields__, strict=True))
    again = SendMessageV2Request.from_ext({s: ext[w] for s, w in short.items() if w in ext})
    assert again.queue_id == -1
    assert again.to_ext()["b"] == "T"


def test_from_ext_ignores_unknown_fields_and_keeps_text() -> None:
    queue = QueueRequest.from_ext({"topic": "null", "queueId": "7", "ns": "x", "lo": "false"})
    assert queue == QueueRequest(topic="null", queue_id=7)


@pytest.mark.parametrize(
    ("text", "value"), [("true", True), ("1", True), ("false", False), ("0", False), ("TRUE", True)]
)
def test_from_ext_accepts_several_spellings_of_a_boolean(text: str, value: bool) -> None:
    ext = send().to_ext() | {"batch": text}
    assert SendMessageRequest.from_ext(ext).batch is value


def test_from_ext_accepts_an_omitted_transaction_check() -> None:
    ext = {
        "producerGroup": "g",
        "tranStateTableOffset": "1",
        "commitLogOffset": "2",
        "commitOrRollback": "8",
        "msgId": "x",
    }
    assert EndTransactionRequest.from_ext(ext).from_transaction_check is False


def test_from_ext_error_names_a_missing_field() -> None:
    with pytest.raises(HeaderFieldError, match="QueueRequest needs the field queueId") as caught:
        QueueRequest.from_ext({"topic": "T"})
    assert caught.value.field == "queueId"


@pytest.mark.parametrize(
    "text", ["", "x", "1.5", "2147483648", "-2147483649", " 1", "9" * 5000, "٣", "true"]
)
def test_from_ext_error_names_an_invalid_number_with_its_value(text: str) -> None:
    with pytest.raises(HeaderFieldError, match="field queueId is '") as caught:
        QueueRequest.from_ext({"topic": "T", "queueId": text})
    assert caught.value.field == "queueId"
    assert len(str(caught.value)) < 300


def test_from_ext_error_names_the_field_after_absent_optional_ones() -> None:
    ext = {"offset": "1", "group": "g", "delayLevel": "0", "unitMode": "perhaps"}
    with pytest.raises(HeaderFieldError, match="field unitMode is 'perhaps'"):
        ConsumerSendMsgBackRequest.from_ext(ext)


def test_from_ext_rejects_a_field_name_that_is_not_text() -> None:
    ext = cast("dict[str, str]", {"topic": "T", "queueId": "1", 5: "x"})
    with pytest.raises(HeaderFieldError, match="QueueRequest: Expected `str`"):
        QueueRequest.from_ext(ext)


def test_from_ext_error_does_not_close_the_connection() -> None:
    with pytest.raises(ProtocolError) as caught:
        PullMessageRequest.from_ext({})
    assert not isinstance(caught.value, RemoteProtocolError)


@pytest.mark.parametrize(
    ("text", "number"),
    [("007", 7), ("+7", 7), ("-007", -7), ("+0", 0), ("-0", 0), ("0000000000000007", 7)],
)
def test_from_ext_accepts_integers_in_java_spelling(text: str, number: int) -> None:
    read = QueueRequest.from_ext({"topic": "007", "queueId": text})
    assert (read.topic, read.queue_id) == ("007", number), "text stays as it is"


@pytest.mark.parametrize(
    "text",
    ["0x7", "7 ", "", "+", "--7", "٧", "7_0", "02147483648", "+02147483648", "0" * 65 + "7"],
)
def test_from_ext_rejects_integers_that_java_rejects(text: str) -> None:
    with pytest.raises(HeaderFieldError, match="queueId"):
        QueueRequest.from_ext({"topic": "t", "queueId": text})


def example(kind: type[ExtFields]) -> ExtFields:
    """One value of any header class; "1" reads as text, as a number and as a boolean."""
    return kind.from_ext(dict.fromkeys(kind.__struct_encode_fields__, "1"))


@pytest.mark.parametrize("kind", ALL_CLASSES, ids=lambda kind: kind.__name__)
def test_every_header_class_round_trips(kind: type[ExtFields]) -> None:
    header = example(kind)
    assert kind.from_ext(header.to_ext()) == header
