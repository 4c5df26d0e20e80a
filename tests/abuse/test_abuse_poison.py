"""Flags that a client must not set: the stored record describes what it really contains."""

from collections.abc import Callable

import pytest

from tianzhou.broker import names
from tianzhou.record import flags
from tianzhou.record.batch import encode_batch
from tianzhou.store.verify import Directory, Findings
from tianzhou.testing.small_broker import ROOT, STORE, RecordingPeer, SmallBroker
from tianzhou.wire._generated_codes import RequestCode, ResponseCode
from tianzhou.wire._generated_headers_send import SendMessageRequest, SendMessageV2Request
from tianzhou.wire.codec import Header, encode_command
from tianzhou.wire.frame import SerialiseType
from tianzhou.wire.names import SCHEDULE_TOPIC

TOPIC, GROUP = "orders", "readers"
CLAIMS = (flags.BORN_HOST_V6, flags.STORE_HOST_V6, flags.LAYOUT_MASK)
PEERS = {"v4": "10.1.1.1", "v6": "2001:db8::1"}


def send(
    broker: SmallBroker,
    peer: RecordingPeer,
    sys_flag: int,
    *,
    body: bytes = b"body",
    code: int = RequestCode.SEND_MESSAGE_V2,
    topic: str = TOPIC,
    named: str = "",
    reconsume_times: int = 0,
    serialise_type: SerialiseType = SerialiseType.JSON,
) -> Header | None:
    kind = SendMessageRequest if code in (10, 324) else SendMessageV2Request
    fields = kind(
        producer_group="buyers",
        topic=topic,
        default_topic="TBW102",
        queue_id=0,
        sys_flag=sys_flag,
        born_timestamp_ms=1,
        flag=0,
        properties=f"UNIQ_KEY\x01U\x02{named}",
        reconsume_times=reconsume_times,
        batch=code == RequestCode.SEND_BATCH_MESSAGE,
    )
    header = Header(
        code=code, opaque=7, ext=fields.to_ext(), version=400, serialise_type=serialise_type
    )
    broker.received(peer, encode_command(header, body))
    broker.flush()
    return next((response for response in peer.answers() if response.opaque == 7), None)


def single(broker: SmallBroker, peer: RecordingPeer, sys_flag: int) -> Header | None:
    return send(broker, peer, sys_flag)


def single_v1(broker: SmallBroker, peer: RecordingPeer, sys_flag: int) -> Header | None:
    return send(broker, peer, sys_flag, code=RequestCode.SEND_MESSAGE)


def binary(broker: SmallBroker, peer: RecordingPeer, sys_flag: int) -> Header | None:
    return send(broker, peer, sys_flag, serialise_type=SerialiseType.BINARY)


def batch(broker: SmallBroker, peer: RecordingPeer, sys_flag: int) -> Header | None:
    body = encode_batch([(0, b"body", b"UNIQ_KEY\x01A\x02"), (0, b"body", b"KEYS\x01k\x02")])
    return send(broker, peer, sys_flag, body=body, code=RequestCode.SEND_BATCH_MESSAGE)


def delayed(broker: SmallBroker, peer: RecordingPeer, sys_flag: int) -> Header | None:
    response = send(broker, peer, sys_flag, named="DELAY\x011\x02")
    assert len(broker.messages(SCHEDULE_TOPIC)) == 1
    broker.run(seconds=3)
    return response


def timed(broker: SmallBroker, peer: RecordingPeer, sys_flag: int) -> Header | None:
    response = send(broker, peer, sys_flag, named="TIMER_DELAY_MS\x011500\x02")
    assert len(broker.messages(names.TIMER_TOPIC)) == 1
    broker.run(seconds=4)
    return response


def half(broker: SmallBroker, peer: RecordingPeer, sys_flag: int) -> Header | None:
    prepared = sys_flag | flags.TRANSACTION_PREPARED
    response = send(broker, peer, prepared, named="TRAN_MSG\x01true\x02PGROUP\x01buyers\x02")
    stored = broker.messages(names.HALF_TOPIC)[-1]
    decided = broker.ask(
        RequestCode.END_TRANSACTION,
        {
            "producerGroup": "buyers",
            "tranStateTableOffset": str(stored.queue_offset),
            "commitLogOffset": str(stored.physical_offset),
            "commitOrRollback": "8",
            "msgId": "U",
        },
    )
    assert decided is not None
    assert decided.code == 0
    return response


def sent_back(broker: SmallBroker, peer: RecordingPeer, sys_flag: int) -> Header | None:
    response = send(broker, peer, sys_flag)
    message = broker.messages(TOPIC)[-1]
    back = {"group": GROUP, "offset": str(message.physical_offset), "delayLevel": "1"}
    response = broker.ask(RequestCode.CONSUMER_SEND_MSG_BACK, back)
    assert response is not None
    assert response.code == 0
    broker.run(seconds=3)
    assert broker.bodies(f"%RETRY%{GROUP}") == [b"body"]
    return response


def reply(broker: SmallBroker, peer: RecordingPeer, sys_flag: int) -> Header | None:
    send(broker, peer, sys_flag, code=RequestCode.SEND_REPLY_MESSAGE_V2)
    return None


WAYS = (single, single_v1, binary, batch, delayed, timed, half, sent_back, reply)


def verify(broker: SmallBroker) -> Findings:
    broker.stop()
    directory = Directory(broker.disk, ROOT, STORE)
    found = directory.verify(lambda _done, _total: None)
    directory.close()
    return found


@pytest.mark.parametrize("claim", CLAIMS, ids=hex)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("family", PEERS)
def test_send_with_layout_bits_is_stored_with_correct_flags(
    way: Callable[[SmallBroker, RecordingPeer, int], Header | None], claim: int, family: str
) -> None:
    broker = SmallBroker()
    broker.send(TOPIC, b"first")
    before = broker.bodies(TOPIC)
    peer = RecordingPeer(PEERS[family], 4711)
    response = way(broker, peer, claim | 0x800)
    assert response is None or response.code == 0
    broker.send(TOPIC, b"last")
    bodies = broker.bodies(TOPIC)
    assert bodies[0] == before[0]
    assert bodies[-1] == b"last"
    assert b"body" in bodies
    (message, *_) = [view for view in broker.messages(TOPIC) if view.body == b"body"]
    assert message.born_host.address == PEERS[family]
    assert message.sys_flag & flags.LAYOUT_MASK == (flags.BORN_HOST_V6 if family == "v6" else 0)
    assert message.sys_flag & 0x800, "unknown bits are stored, as RocketMQ does"
    assert broker.store.damaged == set()
    broker.kill()
    assert broker.bodies(TOPIC) == bodies
    found = verify(broker)
    assert found.is_sound, (found.damage, found.problems)


@pytest.mark.parametrize("sys_flag", [flags.INNER_BATCH, -1, flags.INNER_BATCH | 1])
@pytest.mark.parametrize("way", [single, single_v1, binary, batch, reply])
def test_send_with_the_batch_record_flag_is_rejected(
    way: Callable[[SmallBroker, RecordingPeer, int], Header | None], sys_flag: int
) -> None:
    broker = SmallBroker()
    broker.send(TOPIC, b"first")
    response = way(broker, RecordingPeer(), sys_flag)
    assert response is None or response.code == ResponseCode.MESSAGE_ILLEGAL
    assert broker.bodies(TOPIC) == [b"first"]


@pytest.mark.parametrize(
    "sys_flag", [flags.TRANSACTION_PREPARED, flags.TRANSACTION_COMMIT, flags.TRANSACTION_ROLLBACK]
)
def test_batch_in_a_transaction_is_rejected(sys_flag: int) -> None:
    broker = SmallBroker()
    broker.send(TOPIC, b"first")
    response = batch(broker, RecordingPeer(), sys_flag)
    assert response is not None
    assert response.code == ResponseCode.MESSAGE_ILLEGAL
    assert "one by one" in (response.remark or "")


@pytest.mark.parametrize("times", [-(1 << 31), -1, (1 << 31) - 1])
def test_message_with_extreme_reconsume_times_can_be_sent_back(times: int) -> None:
    broker = SmallBroker()
    broker.send(TOPIC, b"first")
    send(broker, RecordingPeer(), 0, reconsume_times=times)
    message = broker.messages(TOPIC)[-1]
    assert message.reconsume_times == max(times, 0)
    for most in ("16", "2147483647"):
        back = {
            "group": GROUP,
            "offset": str(message.physical_offset),
            "delayLevel": "2147483647",
            "maxReconsumeTimes": most,
        }
        response = broker.ask(RequestCode.CONSUMER_SEND_MSG_BACK, back)
        assert response is not None
        assert response.code == 0
    broker.run(seconds=1)
    assert verify(broker).is_sound
