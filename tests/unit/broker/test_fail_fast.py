"""Sends that would wait too long are rejected before they are stored."""

from collections.abc import Callable
from dataclasses import replace
from itertools import count

import pytest
from administrator import Administrator

from tianzhou.broker.metrics import Samples
from tianzhou.record.batch import encode_batch
from tianzhou.store.config import FlushMode
from tianzhou.testing.small_broker import STORE, RecordingPeer, SmallBroker
from tianzhou.wire._generated_codes import RequestCode, ResponseCode
from tianzhou.wire._generated_headers_send import SendMessageRequest, SendMessageV2Request
from tianzhou.wire.codec import ONEWAY_FLAG, Header, encode_command
from tianzhou.wire.frame import SerialiseType

TOPIC = "orders"
BUSY = ResponseCode.SYSTEM_BUSY
_opaque = count(1)


def frame(
    body: bytes,
    *,
    code: int = RequestCode.SEND_MESSAGE_V2,
    serialise_type: SerialiseType = SerialiseType.JSON,
    named: str = "UNIQ_KEY\x01U\x02",
    flag: int = 0,
) -> bytes:
    kind = SendMessageRequest if code == RequestCode.SEND_MESSAGE else SendMessageV2Request
    is_batch = code == RequestCode.SEND_BATCH_MESSAGE
    fields = kind(
        producer_group="producers",
        topic=TOPIC,
        default_topic="TBW102",
        queue_id=0,
        sys_flag=0,
        born_timestamp_ms=1_700_000_000_000,
        flag=0,
        properties=named,
        batch=is_batch,
    )
    header = Header(
        code=code,
        opaque=next(_opaque),
        ext=fields.to_ext(),
        flag=flag,
        version=400,
        serialise_type=serialise_type,
    )
    return encode_command(header, encode_batch([(0, body, b"")]) if is_batch else body)


def asked(broker: SmallBroker, *frames: bytes, waited_s: float = 0.0) -> list[Header]:
    peer = RecordingPeer()
    peer.waited_s = waited_s
    broker.received(peer, b"".join(frames))
    broker.flush()
    return peer.answers()


def metric(broker: SmallBroker) -> dict[str, float]:
    (found,) = [one for one in broker.slices.metrics if one.name == "sends_rejected_busy"]
    samples = found.read()
    assert isinstance(samples, Samples)
    return {labels[0]: value for labels, value in samples.series if value}


def alarms(broker: SmallBroker) -> list[str]:
    return [one.text for one in broker.slices.base.alarms.current() if "busy" in one.kind]


@pytest.fixture
def broker() -> SmallBroker:
    made = SmallBroker()
    made.send(TOPIC, b"first")
    return made


KINDS: dict[str, Callable[[bytes], bytes]] = {
    "v2": frame,
    "v1": lambda body: frame(body, code=RequestCode.SEND_MESSAGE),
    "batch": lambda body: frame(body, code=RequestCode.SEND_BATCH_MESSAGE),
    "binary": lambda body: frame(body, serialise_type=SerialiseType.BINARY),
    "delayed": lambda body: frame(body, named="DELAY\x013\x02UNIQ_KEY\x01D\x02"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_send_that_waited_too_long_is_rejected_and_not_stored(
    broker: SmallBroker, kind: str
) -> None:
    end = broker.store.log.end
    answers = asked(broker, *(KINDS[kind](b"%d" % n) for n in range(3)), waited_s=0.312)
    assert [answer.code for answer in answers] == [BUSY] * 3
    remark = answers[0].remark
    assert remark is not None
    assert remark.startswith("[TIMEOUT_CLEAN_QUEUE]broker busy")
    for words in ("312 ms", "send_wait_max_ms", "waitTimeMillsInSendQueue", "nothing was stored"):
        assert words in remark
    assert broker.store.log.end == end
    assert metric(broker) == {"waited": 3}
    assert broker.slices.base.stats.refusals.by_code[BUSY] == 3


@pytest.mark.parametrize("kind", KINDS)
def test_send_that_waited_less_is_stored(broker: SmallBroker, kind: str) -> None:
    (answer,) = asked(broker, KINDS[kind](b"x"), waited_s=0.199)
    assert answer.code == 0
    assert metric(broker) == {}


def test_send_oneway_is_stored_however_long_it_waited(broker: SmallBroker) -> None:
    answers = asked(broker, frame(b"1"), frame(b"2", flag=ONEWAY_FLAG), frame(b"3"), waited_s=9.0)
    assert [answer.code for answer in answers] == [BUSY, BUSY]
    assert broker.bodies(TOPIC) == [b"first", b"2"]
    assert metric(broker) == {"waited": 2}


@pytest.mark.parametrize(
    "setting", ["waitTimeMillsInSendQueue=0", "brokerFastFailureEnable=false", "fail_fast=false"]
)
def test_fail_fast_is_switched_off_while_the_broker_runs(broker: SmallBroker, setting: str) -> None:
    assert asked(broker, frame(b"x"), waited_s=60)[0].code == BUSY
    answer = broker.ask(RequestCode.UPDATE_BROKER_CONFIG, {}, setting.encode())
    assert answer is not None
    assert answer.code == 0
    assert asked(broker, frame(b"y"), waited_s=60)[0].code == 0
    assert broker.bodies(TOPIC) == [b"first", b"y"]


def test_fail_fast_limit_changes_while_the_broker_runs(broker: SmallBroker) -> None:
    assert asked(broker, frame(b"x"), waited_s=0.1)[0].code == 0
    broker.ask(RequestCode.UPDATE_BROKER_CONFIG, {}, b"waitTimeMillsInSendQueue=50")
    assert asked(broker, frame(b"y"), waited_s=0.1)[0].code == BUSY


def test_fail_fast_alarm_lasts_a_minute_beyond_the_last_rejection(broker: SmallBroker) -> None:
    assert alarms(broker) == []
    asked(broker, frame(b"x"), waited_s=1.0)
    broker.clock.advance(ms=59_000)
    asked(broker, frame(b"x"), frame(b"y"), waited_s=2.0)
    broker.clock.advance(ms=59_000)
    (text,) = alarms(broker)
    assert "rejected 3 sends" in text
    assert "2000 ms" in text
    broker.clock.advance(ms=1_000)
    assert alarms(broker) == []
    asked(broker, frame(b"x"), waited_s=1.0)
    assert "rejected 1 sends" in alarms(broker)[0], "a new condition"


# Stored messages that wait for the disk or for replicas


def synced_broker() -> SmallBroker:
    made = SmallBroker(store_config=replace(STORE, flush_mode=FlushMode.SYNC))
    made.send(TOPIC, b"first")
    return made


def send(broker: SmallBroker, body: bytes) -> tuple[RecordingPeer, list[Header]]:
    """Send without a flush."""
    peer = RecordingPeer()
    broker.received(peer, frame(body))
    return peer, peer.answers()


def test_send_behind_a_stalled_disk_is_rejected_before_it_is_stored() -> None:
    synced = synced_broker()
    waiting, answers = send(synced, b"1")
    assert answers == []
    synced.clock.advance(ms=1_000)
    assert send(synced, b"2")[1] == [], "not longer than the limit"
    synced.clock.advance(ms=1)
    end = synced.store.log.end
    (answer,) = send(synced, b"3")[1]
    assert answer.code == BUSY
    remark = answer.remark
    assert remark is not None
    assert remark.startswith("[PCBUSY_CLEAN_QUEUE]broker busy")
    assert "1001 ms for the disk" in remark
    assert synced.store.log.end == end
    assert metric(synced) == {"disk": 1}
    synced.flush()
    assert [answer.code for answer in waiting.answers()] == [0], "it was stored before"
    assert asked(synced, frame(b"4"))[0].code == 0
    assert synced.bodies(TOPIC) == [b"first", b"1", b"2", b"4"]


def test_send_behind_a_stalled_disk_is_rejected_after_the_others_timed_out() -> None:
    synced = synced_broker()
    waiting, _ = send(synced, b"1")
    synced.clock.advance(ms=5_000)
    synced.tick(flush=False)
    assert [answer.code for answer in waiting.answers()] == [ResponseCode.FLUSH_DISK_TIMEOUT]
    (answer,) = send(synced, b"2")[1]
    assert answer.code == BUSY, "the disk did not move yet"
    synced.flush()
    assert asked(synced, frame(b"3"))[0].code == 0
    assert synced.bodies(TOPIC) == [b"first", b"1", b"3"]


def test_send_is_accepted_behind_a_stalled_disk_if_the_limit_is_off() -> None:
    synced = synced_broker()
    synced.ask(RequestCode.UPDATE_BROKER_CONFIG, {}, b"osPageCacheBusyTimeOutMills=0")
    send(synced, b"1")
    synced.clock.advance(ms=4_000)
    assert send(synced, b"2")[1] == []


def test_runtime_info_shows_rejections_and_the_longest_wait() -> None:
    synced = synced_broker()
    tool = Administrator(synced)

    def shown(name: str) -> str:
        return tool.ask(RequestCode.GET_BROKER_RUNTIME_INFO).json["table"][name]

    assert shown("sendThreadPoolQueueHeadWaitTimeMills") == "0"
    send(synced, b"1")
    synced.clock.advance(ms=1_500)
    send(synced, b"2")
    assert shown("sendThreadPoolQueueHeadWaitTimeMills") == "1500"
    assert shown("sendsRejectedBusy") == "1"


def test_fail_fast_settings_have_the_defaults_and_names_of_rocketmq() -> None:
    table = SmallBroker().slices.observe.runtime_config.table()
    assert table["waitTimeMillsInSendQueue"] == "200"
    assert table["osPageCacheBusyTimeOutMills"] == "1000"
    assert table["brokerFastFailureEnable"] == "true"
