"""Sends in rows: single ones, batches, what is not plain; answers match what is stored."""

import errno
from dataclasses import replace
from itertools import count

import pytest

from tianzhou.record.batch import encode_batch
from tianzhou.record.ids import decode_offset_id
from tianzhou.record.message import MessageView
from tianzhou.store.config import FlushMode
from tianzhou.testing.small_broker import STORE, RecordingPeer, SmallBroker
from tianzhou.wire._generated_codes import RequestCode, ResponseCode
from tianzhou.wire._generated_headers_send import SendMessageRequest, SendMessageV2Request
from tianzhou.wire.codec import ONEWAY_FLAG, Header, encode_command
from tianzhou.wire.frame import SerialiseType

TOPIC = "orders"
_opaque = count(1000)


def frame(
    body: bytes,
    *,
    code: int = RequestCode.SEND_MESSAGE_V2,
    named: str = "UNIQ_KEY\x01U\x02",
    queue_id: int = 0,
    flag: int = 0,
    serialise_type: SerialiseType = SerialiseType.JSON,
) -> bytes:
    kind = SendMessageRequest if code == RequestCode.SEND_MESSAGE else SendMessageV2Request
    fields = kind(
        producer_group="producers",
        topic=TOPIC,
        default_topic="TBW102",
        queue_id=queue_id,
        sys_flag=0,
        born_timestamp_ms=1_700_000_000_000,
        flag=7,
        properties=named,
        batch=code == RequestCode.SEND_BATCH_MESSAGE,
    )
    header = Header(
        code=code,
        opaque=next(_opaque),
        ext=fields.to_ext(),
        flag=flag,
        version=400,
        serialise_type=serialise_type,
    )
    return encode_command(header, body)


def batch_of(*bodies: bytes, queue_id: int = 0, flag: int = 0) -> bytes:
    inner = [(rank, body, b"KEYS\x01k-%s\x02" % body) for rank, body in enumerate(bodies)]
    code = RequestCode.SEND_BATCH_MESSAGE
    return frame(encode_batch(inner), code=code, queue_id=queue_id, flag=flag)


def asked(broker: SmallBroker, *frames: bytes) -> list[Header]:
    """All frames in one read; the answers, by the number of their request."""
    peer = RecordingPeer()
    broker.received(peer, b"".join(frames))
    broker.flush()
    assert peer.waiting_count == 0, "the connection counts requests that were answered"
    return sorted(peer.answers(), key=lambda answer: answer.opaque)


def bodies(broker: SmallBroker, queue_id: int = 0) -> list[bytes]:
    return [bytes(message.body) for message in broker.messages(TOPIC, queue_id)]


@pytest.fixture(params=list(FlushMode), ids=lambda mode: mode.name)
def broker(request: pytest.FixtureRequest) -> SmallBroker:
    made = SmallBroker(store_config=replace(STORE, flush_mode=request.param))
    made.send(TOPIC, b"first")  # makes the topic, so that what follows may go the short way
    return made


def check(answer: Header, message: MessageView) -> None:
    assert answer.code == 0
    assert answer.ext["queueOffset"] == str(message.queue_offset)
    assert answer.ext["queueId"] == str(message.queue_id)
    assert decode_offset_id(answer.ext["msgId"]).physical_offset == message.physical_offset


@pytest.mark.parametrize("code", [RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2])
@pytest.mark.parametrize("serialise_type", list(SerialiseType))
def test_sends_in_one_read_are_stored_in_order_and_each_gets_a_response(
    broker: SmallBroker, code: int, serialise_type: SerialiseType
) -> None:
    rows = [frame(b"m%d" % n, code=code, serialise_type=serialise_type) for n in range(70)]
    answers = asked(broker, *rows)
    assert bodies(broker) == [b"first", *(b"m%d" % n for n in range(70))]
    for answer, message in zip(answers, broker.messages(TOPIC)[1:], strict=True):
        check(answer, message)
        assert message.flag == 7
        assert message.properties["CLUSTER"] == "DefaultCluster"


def test_batches_in_one_read_are_split_and_each_gets_one_response(broker: SmallBroker) -> None:
    answers = asked(broker, batch_of(b"a", b"b", b"c"), batch_of(b"d"), batch_of(b"e", b"f"))
    assert bodies(broker) == [b"first", b"a", b"b", b"c", b"d", b"e", b"f"]
    messages = broker.messages(TOPIC)[1:]
    assert [message.flag for message in messages] == [0, 1, 2, 0, 0, 1]
    assert [message.keys for message in messages] == [(f"k-{name}",) for name in "abcdef"]
    firsts = [0, 3, 4]
    ends = [3, 4, 6]
    for answer, first, end in zip(answers, firsts, ends, strict=True):
        ids = answer.ext["msgId"].split(",")
        places = [decode_offset_id(text).physical_offset for text in ids]
        assert places == [message.physical_offset for message in messages[first:end]]
        assert answer.ext["queueOffset"] == str(messages[first].queue_offset)


def test_sends_of_alternating_kinds_keep_their_order(broker: SmallBroker) -> None:
    answers = asked(
        broker,
        frame(b"1"),
        batch_of(b"2", b"3"),
        frame(b"4", named="DELAY\x013\x02UNIQ_KEY\x01D\x02"),
        frame(b"5"),
        frame(b"6", code=RequestCode.SEND_MESSAGE),
        batch_of(b"7"),
        frame(b"8", serialise_type=SerialiseType.BINARY),
    )
    assert [answer.code for answer in answers] == [0] * 7
    assert bodies(broker) == [b"first", b"1", b"2", b"3", b"5", b"6", b"7", b"8"]
    log = sorted(broker.messages(TOPIC), key=lambda message: message.physical_offset)
    assert [bytes(message.body) for message in log] == bodies(broker)


def test_send_that_is_invalid_is_rejected_alone(broker: SmallBroker) -> None:
    answers = asked(
        broker,
        frame(b"1"),
        frame(b"2", queue_id=99),
        batch_of(b"3"),
        frame(b"no batch", code=RequestCode.SEND_BATCH_MESSAGE),
        batch_of(b"4", queue_id=99),
        frame(b"5"),
    )
    assert [answer.code for answer in answers] == [
        0,
        ResponseCode.INVALID_PARAMETER,
        0,
        ResponseCode.MESSAGE_ILLEGAL,
        ResponseCode.INVALID_PARAMETER,
        0,
    ]
    assert bodies(broker) == [b"first", b"1", b"3", b"5"]


def test_send_oneway_gets_no_response(broker: SmallBroker) -> None:
    answers = asked(
        broker,
        frame(b"1", flag=ONEWAY_FLAG),
        batch_of(b"2", b"3", flag=ONEWAY_FLAG),
        frame(b"4", queue_id=99, flag=ONEWAY_FLAG),
    )
    assert answers == []
    assert bodies(broker) == [b"first", b"1", b"2", b"3"]


def test_send_with_sync_flush_responds_after_the_flush() -> None:
    broker = SmallBroker(store_config=replace(STORE, flush_mode=FlushMode.SYNC))
    broker.send(TOPIC, b"first")
    peer = RecordingPeer()
    broker.received(peer, frame(b"1") + batch_of(b"2", b"3"))
    assert peer.answers() == []
    assert peer.waiting_count > 0
    assert bodies(broker) == [b"first"], "readers must not see what a crash could undo"
    broker.flush()
    assert [answer.code for answer in peer.answers()] == [0, 0]
    assert bodies(broker) == [b"first", b"1", b"2", b"3"]


def test_send_with_a_slow_flush_responds_with_a_timeout_and_the_offset() -> None:
    config = replace(STORE, flush_mode=FlushMode.SYNC)
    broker = SmallBroker(store_config=config)
    broker.send(TOPIC, b"first")
    peer = RecordingPeer()
    broker.received(peer, frame(b"1") + batch_of(b"2"))
    broker.clock.advance(ms=config.sync_flush_timeout_ms + 1)
    broker.tick(flush=False)
    answers = peer.answers()
    assert [answer.code for answer in answers] == [ResponseCode.FLUSH_DISK_TIMEOUT] * 2
    assert [answer.ext["queueOffset"] for answer in answers] == ["1", "2"]
    # Who gets anything but SEND_OK learns whether its message may exist.
    assert all("is unknown" in (answer.remark or "") for answer in answers)


def test_send_after_the_topic_lost_its_permission_is_rejected(
    broker: SmallBroker,
) -> None:
    assert [answer.code for answer in asked(broker, frame(b"1"))] == [0]
    broker.slices.topics.permission.set(4)
    answers = asked(broker, frame(b"2"), batch_of(b"3"))
    assert [answer.code for answer in answers] == [ResponseCode.NO_PERMISSION] * 2
    assert bodies(broker) == [b"first", b"1"]


@pytest.mark.parametrize("code", [RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2])
@pytest.mark.parametrize("serialise_type", list(SerialiseType))
@pytest.mark.parametrize(
    ("named", "unique"),
    [
        ("UNIQ_KEY\x017F000001AB\x02", "7F000001AB"),
        ("TAGS\x01a\x02UNIQ_KEY\x017F", "7F"),
        ("MY_UNIQ_KEY\x01other\x02UNIQ_KEY\x01mine\x02", "mine"),
        ('UNIQ_KEY\x01"},"x":{"\x02', '"},"x":{"'),
        ("UNIQ_KEY\x01天舟\x02", "天舟"),
    ],
)
def test_send_response_has_the_unique_id_as_transaction_id(
    broker: SmallBroker, code: int, serialise_type: SerialiseType, named: str, unique: str
) -> None:
    (answer,) = asked(broker, frame(b"x", code=code, named=named, serialise_type=serialise_type))
    assert (answer.code, answer.ext["transactionId"]) == (0, unique)


@pytest.mark.parametrize("kind", [SendMessageRequest, SendMessageV2Request])
@pytest.mark.parametrize("serialise_type", list(SerialiseType))
def test_send_without_a_producer_group_is_stored(
    broker: SmallBroker,
    kind: type[SendMessageRequest] | type[SendMessageV2Request],
    serialise_type: SerialiseType,
) -> None:
    fields = kind(
        topic=TOPIC,
        default_topic="TBW102",
        queue_id=0,
        sys_flag=0,
        born_timestamp_ms=1,
        flag=0,
        properties="UNIQ_KEY\x01U\x02",
    )
    ext = {name: value for name, value in fields.to_ext().items() if value}
    assert not {"a", "producerGroup"} & ext.keys()
    is_v2 = kind is SendMessageV2Request
    code = RequestCode.SEND_MESSAGE_V2 if is_v2 else RequestCode.SEND_MESSAGE
    header = Header(code=code, opaque=next(_opaque), ext=ext, serialise_type=serialise_type)
    (answer,) = asked(broker, encode_command(header, b"no group"))
    assert answer.code == 0
    assert b"no group" in bodies(broker)


@pytest.mark.parametrize("serialise_type", list(SerialiseType))
def test_send_with_integers_in_java_spelling_is_stored(
    broker: SmallBroker, serialise_type: SerialiseType
) -> None:
    fields = SendMessageV2Request(
        producer_group="007",
        topic=TOPIC,
        default_topic="TBW102",
        queue_id=1,
        sys_flag=0,
        born_timestamp_ms=1,
        flag=0,
        properties="UNIQ_KEY\x01U\x02",
    )
    ext = fields.to_ext() | {"e": "0001", "g": "+0012", "h": "-007"}
    header = Header(
        code=RequestCode.SEND_MESSAGE_V2,
        opaque=next(_opaque),
        ext=ext,
        serialise_type=serialise_type,
    )
    (answer,) = asked(broker, encode_command(header, b"zeros"))
    assert (answer.code, answer.ext["queueId"]) == (0, "1")
    (stored,) = broker.messages(TOPIC, 1)
    assert (stored.born_timestamp, stored.flag) == (12, -7)


def test_send_whose_write_fails_is_unknown_and_later_ones_are_rejected() -> None:
    """SYSTEM_ERROR: recovery may find it. SERVICE_NOT_AVAILABLE: nothing was written."""
    broker = SmallBroker()
    broker.send("orders")
    broker.disk.fail_at(1, errno.EIO, onward=True)
    first = broker.send("orders")
    assert first.code == ResponseCode.SYSTEM_ERROR, first.remark
    assert "may be stored" in (first.remark or "")
    assert broker.send("orders").code == ResponseCode.SERVICE_NOT_AVAILABLE


@pytest.mark.parametrize(
    "named",
    [
        "DELAY\x013\x02",
        "TIMER_DELAY_SEC\x0130\x02",
        "TIMER_DELIVER_MS\x019\x02",
        "TRAN_MSG\x01true\x02",
    ],
)
@pytest.mark.parametrize("inside", [False, True])
def test_batch_with_a_delayed_message_is_rejected_as_a_whole(
    broker: SmallBroker, named: str, inside: bool
) -> None:
    """Its messages are stored where consumers see them at once."""
    bodies = encode_batch([(0, b"good", b""), (0, b"bad", named.encode() if inside else b"")])
    outer = "UNIQ_KEY\x01U\x02" + ("" if inside else named)
    (answer,) = asked(broker, frame(bodies, code=RequestCode.SEND_BATCH_MESSAGE, named=outer))
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL
    assert "one by one" in (answer.remark or "")
    assert broker.bodies(TOPIC) == [b"first"]


def test_batch_whose_bodies_contain_delay_properties_is_stored(broker: SmallBroker) -> None:
    (answer,) = asked(broker, batch_of(b"DELAY\x013\x02", b"TRAN_MSG\x01true\x02"))
    assert answer.code == ResponseCode.SUCCESS
