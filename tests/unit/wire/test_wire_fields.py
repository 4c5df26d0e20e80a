"""Typed header fields: `wire/fields.py` and the classes generated over it."""

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
from tianzhou.wire.errors import HeaderFieldError
from tianzhou.wire.fields import ExtFields

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


def test_only_fields_with_a_value_are_written() -> None:
    answer = SendMessageResponse(msg_id="0A", queue_id=3, queue_offset=9, trace_on=True)
    assert answer.to_ext() == {
        "msgId": "0A",
        "queueId": "3",
        "queueOffset": "9",
        "TRACE_ON": "true",
    }


def test_short_and_long_names_mean_the_same() -> None:
    long = send(queue_id=-1)
    ext = long.to_ext()
    names = SendMessageV2Request.__struct_encode_fields__
    assert names == tuple("abcdefghijklmn")
    short = dict(zip(names, SendMessageRequest.__struct_encode_fields__, strict=True))
    again = SendMessageV2Request.from_ext({s: ext[w] for s, w in short.items() if w in ext})
    assert again.queue_id == -1
    assert again.to_ext()["b"] == "T"


def test_unknown_fields_are_ignored_and_text_is_kept_as_text() -> None:
    queue = QueueRequest.from_ext({"topic": "null", "queueId": "7", "ns": "x", "lo": "false"})
    assert queue == QueueRequest(topic="null", queue_id=7)


@pytest.mark.parametrize(
    ("text", "value"), [("true", True), ("1", True), ("false", False), ("0", False), ("TRUE", True)]
)
def test_booleans_come_in_several_spellings(text: str, value: bool) -> None:
    ext = send().to_ext() | {"batch": text}
    assert SendMessageRequest.from_ext(ext).batch is value


def test_old_clients_leave_the_transaction_check_out() -> None:
    ext = {
        "producerGroup": "g",
        "tranStateTableOffset": "1",
        "commitLogOffset": "2",
        "commitOrRollback": "8",
        "msgId": "x",
    }
    assert EndTransactionRequest.from_ext(ext).from_transaction_check is False


def test_a_missing_field_is_named() -> None:
    with pytest.raises(HeaderFieldError, match="QueueRequest needs the field queueId") as caught:
        QueueRequest.from_ext({"topic": "T"})
    assert caught.value.field == "queueId"


@pytest.mark.parametrize(
    "text", ["", "x", "1.5", "2147483648", "-2147483649", " 1", "9" * 5000, "٣", "true"]
)
def test_field_that_is_not_a_number_is_named_with_its_value(text: str) -> None:
    with pytest.raises(HeaderFieldError, match="field queueId is '") as caught:
        QueueRequest.from_ext({"topic": "T", "queueId": text})
    assert caught.value.field == "queueId"
    assert len(str(caught.value)) < 300


def test_the_culprit_is_found_behind_optional_fields_that_are_absent() -> None:
    ext = {"offset": "1", "group": "g", "delayLevel": "0", "unitMode": "perhaps"}
    with pytest.raises(HeaderFieldError, match="field unitMode is 'perhaps'"):
        ConsumerSendMsgBackRequest.from_ext(ext)


def test_field_name_that_is_not_text_is_rejected() -> None:
    ext = cast("dict[str, str]", {"topic": "T", "queueId": "1", 5: "x"})
    with pytest.raises(HeaderFieldError, match="QueueRequest: Expected `str`"):
        QueueRequest.from_ext(ext)


def test_a_bad_field_does_not_end_the_connection() -> None:
    with pytest.raises(ProtocolError) as caught:
        PullMessageRequest.from_ext({})
    assert not isinstance(caught.value, RemoteProtocolError)


@pytest.mark.parametrize(
    ("text", "number"),
    [("007", 7), ("+7", 7), ("-007", -7), ("+0", 0), ("-0", 0), ("0000000000000007", 7)],
)
def test_integer_spelled_as_only_java_does_is_read(text: str, number: int) -> None:
    read = QueueRequest.from_ext({"topic": "007", "queueId": text})
    assert (read.topic, read.queue_id) == ("007", number), "text stays as it is"


@pytest.mark.parametrize(
    "text",
    ["0x7", "7 ", "", "+", "--7", "٧", "7_0", "02147483648", "+02147483648", "0" * 65 + "7"],
)
def test_integer_that_java_rejects_is_rejected(text: str) -> None:
    with pytest.raises(HeaderFieldError, match="queueId"):
        QueueRequest.from_ext({"topic": "t", "queueId": text})


def example(kind: type[ExtFields]) -> ExtFields:
    """One value of any header class; "1" reads as text, as a number and as a boolean."""
    return kind.from_ext(dict.fromkeys(kind.__struct_encode_fields__, "1"))


@pytest.mark.parametrize("kind", ALL_CLASSES, ids=lambda kind: kind.__name__)
def test_every_class_goes_to_text_and_back(kind: type[ExtFields]) -> None:
    header = example(kind)
    assert kind.from_ext(header.to_ext()) == header
