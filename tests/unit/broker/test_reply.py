"""Request and reply: handed to the requester, stored, and its sender told."""

import pytest

from tianzhou.record import properties
from tianzhou.testing.small_broker import RecordingPeer, SmallBroker, Told
from tianzhou.wire._generated_codes import RequestCode, ResponseCode
from tianzhou.wire._generated_headers_send import (
    PushReplyRequest,
    SendMessageRequest,
    SendMessageV2Request,
)
from tianzhou.wire.codec import Header

TOPIC = "DefaultCluster_REPLY_TOPIC"
REQUESTER = "10.9.9.9@77"


def connected(broker: SmallBroker) -> RecordingPeer:
    peer = RecordingPeer("10.9.9.9", 77)
    broker.heartbeat(peer, REQUESTER, producers=("askers",))
    return peer


def reply(
    broker: SmallBroker,
    peer: RecordingPeer,
    *,
    to: str = REQUESTER,
    is_v2: bool = True,
    topic: str = TOPIC,
) -> Header | None:
    named = {"CORRELATION_ID": "c1", "MSG_TYPE": "reply"} | ({"REPLY_TO_CLIENT": to} if to else {})
    kind = SendMessageV2Request if is_v2 else SendMessageRequest
    fields = kind(
        producer_group="answerers",
        topic=topic,
        default_topic="TBW102",
        queue_id=0,
        sys_flag=0,
        born_timestamp_ms=broker.clock.now_ms(),
        flag=3,
        properties=properties.encode(named).decode(),
    )
    code = RequestCode.SEND_REPLY_MESSAGE_V2 if is_v2 else RequestCode.SEND_REPLY_MESSAGE
    return broker.ask(code, fields.to_ext(), b"the answer", peer=peer)


def pushed(requester: RecordingPeer) -> Told:
    (told,) = requester.take_told()
    assert told.code == RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT
    return told


def answer(told: Told, code: int | None) -> None:
    assert told.on_answer is not None
    told.on_answer(None if code is None else Header(code=code, opaque=1, flag=1), b"")


@pytest.mark.parametrize("is_v2", [False, True])
def test_reply_reaches_the_requester_and_is_stored(is_v2: bool) -> None:
    broker = SmallBroker()
    requester, sender = connected(broker), RecordingPeer("10.3.3.3", 5)
    assert reply(broker, sender, is_v2=is_v2) is None, "the requester was not heard yet"
    told = pushed(requester)
    fields = PushReplyRequest.from_ext(told.ext)
    named = properties.decode((fields.properties or "").encode())
    assert named["CORRELATION_ID"] == "c1"
    assert named["PUSH_REPLY_TIME"] == str(broker.clock.now_ms())
    assert (fields.topic, fields.flag, fields.born_host) == (TOPIC, 3, "10.3.3.3:5")
    assert fields.store_host == "10.0.0.1:10911"
    assert told.body == b"the answer"
    answer(told, 0)
    (heard,) = sender.answers()
    assert heard.code == 0
    broker.flush()
    (stored,) = broker.messages(TOPIC)
    assert stored.body == b"the answer"
    assert stored.properties["CORRELATION_ID"] == "c1"
    assert heard.ext["msgId"] == stored.offset_id
    assert heard.ext["queueId"] == "0"
    assert heard.ext["queueOffset"] == "0"


@pytest.mark.parametrize("code", [None, 1])
def test_reply_that_the_requester_rejects_is_reported(code: int | None) -> None:
    broker = SmallBroker()
    requester, sender = connected(broker), RecordingPeer()
    reply(broker, sender)
    answer(pushed(requester), code)
    (heard,) = sender.answers()
    assert heard.code == ResponseCode.SYSTEM_ERROR
    assert REQUESTER in (heard.remark or "")
    broker.flush()
    assert broker.bodies(TOPIC) == [b"the answer"]


@pytest.mark.parametrize(("to", "reason"), [("nobody@1", "nobody@1"), ("", "REPLY_TO_CLIENT")])
def test_reply_to_an_unknown_requester_is_an_error(to: str, reason: str) -> None:
    broker = SmallBroker()
    heard = reply(broker, RecordingPeer(), to=to)
    assert heard is not None
    assert heard.code == ResponseCode.SYSTEM_ERROR
    assert reason in (heard.remark or "")
    broker.flush()
    assert broker.bodies(TOPIC) == [b"the answer"]


def test_reply_to_a_disconnected_requester_is_not_sent() -> None:
    broker = SmallBroker()
    requester = connected(broker)
    requester.close()
    heard = reply(broker, RecordingPeer())
    assert heard is not None
    assert heard.code == ResponseCode.SYSTEM_ERROR
    assert requester.take_told() == []


def test_reply_that_cannot_be_stored_still_reaches_its_requester() -> None:
    broker = SmallBroker()
    requester, sender = connected(broker), RecordingPeer()
    reply(broker, sender)
    told = pushed(requester)
    broker.store._fence.refusal = "full"
    answer(told, 0)
    (heard,) = sender.answers()
    assert (heard.code, heard.ext["msgId"]) == (0, "0")


def test_reply_to_an_internal_topic_is_rejected() -> None:
    broker = SmallBroker()
    requester = connected(broker)
    heard = reply(broker, RecordingPeer(), topic="SCHEDULE_TOPIC_XXXX")
    assert heard is not None
    assert heard.code == ResponseCode.NO_PERMISSION
    assert requester.take_told() == []


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"i": "REPLY_TO_CLIENT\x0110.9.9.9@77\x02a\x01b\x01c\x02"}, "separator"),
        ({"i": "KEYS\x01" + "k " * 100 + "\x02"}, "64 keys"),
        ({"f": "4"}, "sysFlag 0x4"),
        ({"f": "12"}, "sysFlag 0xc"),
    ],
)
def test_reply_that_is_an_invalid_send_is_rejected_and_not_delivered(
    changed: dict[str, str], said: str
) -> None:
    broker = SmallBroker()
    requester = connected(broker)
    fields = SendMessageV2Request(
        producer_group="answerers",
        topic=TOPIC,
        default_topic="TBW102",
        queue_id=0,
        sys_flag=0,
        born_timestamp_ms=0,
        flag=0,
        properties=f"REPLY_TO_CLIENT\x01{REQUESTER}\x02",
    )
    answered = broker.ask(RequestCode.SEND_REPLY_MESSAGE_V2, fields.to_ext() | changed, b"x")
    assert answered is not None
    assert (answered.code, said in (answered.remark or "")) == (ResponseCode.MESSAGE_ILLEGAL, True)
    assert requester.take_told() == []
    assert broker.bodies(TOPIC) == []
