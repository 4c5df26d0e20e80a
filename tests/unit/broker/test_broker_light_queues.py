"""Light queues at a broker: which messages enter them, who reads them, and what is refused."""

from dataclasses import replace

import pytest
from transactional import COMMIT, ROLLBACK, decide, send_half

from tianzhou.base.kinds import queue_key
from tianzhou.broker import names
from tianzhou.broker.config import BrokerConfig
from tianzhou.record.batch import encode_batch
from tianzhou.record.message import decode_all
from tianzhou.testing.small_broker import STORE, RecordingPeer, SmallBroker
from tianzhou.wire._generated_codes import RequestCode, ResponseCode
from tianzhou.wire._generated_headers_pull import PullMessageRequest
from tianzhou.wire._generated_headers_send import SendMessageV2Request
from tianzhou.wire.codec import Header, encode_command

ON = BrokerConfig(light_queues=True, multi_dispatch=True)
DISPATCH, OFFSETS = "INNER_MULTI_DISPATCH", "INNER_MULTI_QUEUE_OFFSET"
A, B = "%LMQ%a", "%LMQ%b"
TO_BOTH = {DISPATCH: f"{A},{B}"}
COMMIT_OFFSET, SUSPEND, SUBSCRIPTION = 1, 2, 4


@pytest.fixture
def broker() -> SmallBroker:
    return SmallBroker(config=ON)


def pull(
    broker: SmallBroker, topic: str, offset: int = 0, *, commit: int = 0, wait_ms: int = 0
) -> RecordingPeer:
    flags = SUBSCRIPTION | (SUSPEND if wait_ms else 0) | (COMMIT_OFFSET if commit >= 0 else 0)
    fields = PullMessageRequest(
        consumer_group="readers",
        topic=topic,
        queue_id=0,
        queue_offset=offset,
        max_msg_nums=32,
        sys_flag=flags,
        commit_offset=max(commit, 0),
        suspend_timeout_ms=wait_ms,
        subscription="*",
        sub_version=0,
        expression_type="TAG",
    )
    peer = RecordingPeer()
    header = Header(code=RequestCode.PULL_MESSAGE, opaque=7, ext=fields.to_ext())
    broker.received(peer, encode_command(header))
    return peer


def answer(broker: SmallBroker, topic: str, offset: int = 0, *, commit: int = 0) -> Header:
    (found,) = pull(broker, topic, offset, commit=commit).answers()
    return found


def asked(broker: SmallBroker, code: int, ext: dict[str, str]) -> Header:
    found = broker.ask(code, ext)
    assert found is not None
    return found


def offsets_of(broker: SmallBroker, topic: str = "orders") -> list[dict[str, int]]:
    return [dict(message.light_queues) for message in broker.messages(topic)]


def test_send_with_light_queues_is_read_from_its_topic_and_each_queue(broker: SmallBroker) -> None:
    broker.send("orders", b"plain")
    assert broker.send("orders", b"both", TO_BOTH).code == 0
    broker.send("orders", b"one", {DISPATCH: B})
    assert broker.bodies("orders") == [b"plain", b"both", b"one"]
    assert (broker.bodies(A), broker.bodies(B)) == ([b"both"], [b"both", b"one"])
    assert offsets_of(broker) == [{}, {A: 0, B: 0}, {B: 1}]


def test_pull_of_a_light_queue_is_that_of_a_topic_with_one_queue(broker: SmallBroker) -> None:
    broker.send("orders", b"1", TO_BOTH)
    broker.send("orders", b"2", TO_BOTH)
    found = answer(broker, B, 1)
    assert (found.code, found.remark) == (0, "FOUND")
    assert (found.ext["nextBeginOffset"], found.ext["maxOffset"]) == ("2", "2")
    for code, offset in ((RequestCode.GET_MAX_OFFSET, "2"), (RequestCode.GET_MIN_OFFSET, "0")):
        assert asked(broker, code, {"topic": B, "queueId": "0"}).ext["offset"] == offset


def test_pull_of_a_light_queue_waits_for_its_first_message(broker: SmallBroker) -> None:
    peer = pull(broker, A, wait_ms=10_000)
    assert peer.answers() == []
    broker.send("orders", b"1", {DISPATCH: A})
    (found,) = peer.answers()
    assert found.code == 0


def test_light_queues_that_are_off_are_ignored_as_in_rocketmq() -> None:
    for config in (
        BrokerConfig(),
        replace(ON, multi_dispatch=False),
        replace(ON, light_queues=False),
    ):
        broker = SmallBroker(config=config)
        assert broker.send("orders", b"1", TO_BOTH | {OFFSETS: "5,6"}).code == 0
        (message,) = broker.messages("orders")
        assert message.properties[DISPATCH] == f"{A},{B}"
        assert OFFSETS not in message.properties
        assert broker.bodies(A) == []


def test_pull_of_a_light_queue_says_that_light_queues_are_off() -> None:
    found = answer(SmallBroker(), A)
    assert found.code == ResponseCode.TOPIC_NOT_EXIST
    assert "light queues are off (light_queues)" in (found.remark or "")


def test_offsets_that_a_client_sends_are_replaced(broker: SmallBroker) -> None:
    broker.send("orders", b"1", TO_BOTH)
    broker.send("orders", b"2", {DISPATCH: A, OFFSETS: "900"})
    broker.send("orders", b"3", {OFFSETS: "0"})
    assert offsets_of(broker) == [{A: 0, B: 0}, {A: 1}, {}]
    assert broker.bodies(A) == [b"1", b"2"]


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ("orders", "'orders' in INNER_MULTI_DISPATCH is not a light queue"),
        ("%LMQ%a,", "'' in INNER_MULTI_DISPATCH is not a light queue"),
        ("%LMQ%../../x", "is not made of letters, digits"),
        ("%LMQ%", "no name besides its prefix"),
        ("%LMQ%" + "x" * 123, "has 128 bytes; at most 127"),
        ("%LMQ%a,%LMQ%a", "named twice"),
        (",".join(f"%LMQ%{n}" for n in range(129)), "128 light queues, not 129"),
    ],
)
def test_send_with_invalid_light_queues_is_rejected(
    broker: SmallBroker, value: str, why: str
) -> None:
    found = broker.send("orders", b"1", {DISPATCH: value})
    assert found.code == ResponseCode.MESSAGE_ILLEGAL
    assert why in (found.remark or "")
    assert broker.bodies("orders") == []


def test_send_whose_properties_leave_no_room_for_offsets_is_rejected(broker: SmallBroker) -> None:
    found = broker.send("orders", b"1", TO_BOTH | {"long": "x" * 32_400})
    assert found.code == ResponseCode.MESSAGE_ILLEGAL
    assert "with the offsets in 2 light queues" in (found.remark or "")


def test_number_of_light_queues_is_limited() -> None:
    broker = SmallBroker(config=replace(ON, light_queues_max=2))
    assert broker.send("orders", b"1", TO_BOTH).code == 0
    found = broker.send("orders", b"2", {DISPATCH: f"{A},%LMQ%c"})
    assert found.code == ResponseCode.SYSTEM_ERROR
    assert "there are 2 light queues already, so %LMQ%c cannot be created" in (found.remark or "")
    assert broker.send("orders", b"3", {DISPATCH: A}).code == 0
    assert broker.bodies(A) == [b"1", b"3"]
    assert broker.bodies("orders") == [b"1", b"3"]


def test_batch_with_light_queues_puts_each_message_into_its_own(broker: SmallBroker) -> None:
    broker.send("orders", b"first")
    texts = (f"{DISPATCH}\x01{A}\x02", "", f"{DISPATCH}\x01{A},{B}\x02{OFFSETS}\x019,9\x02")
    body = encode_batch([(0, b"%d" % n, text.encode()) for n, text in enumerate(texts)])
    assert send_batch(broker, body).code == 0
    assert broker.bodies("orders") == [b"first", b"0", b"1", b"2"]
    assert (broker.bodies(A), broker.bodies(B)) == ([b"0", b"2"], [b"2"])


def test_batch_with_an_invalid_light_queue_is_rejected(broker: SmallBroker) -> None:
    body = encode_batch([(0, b"1", f"{DISPATCH}\x01orders\x02".encode())])
    assert send_batch(broker, body).code == ResponseCode.MESSAGE_ILLEGAL


def send_batch(broker: SmallBroker, body: bytes) -> Header:
    fields = SendMessageV2Request(
        producer_group="producers",
        topic="orders",
        default_topic="TBW102",
        queue_id=0,
        sys_flag=0,
        born_timestamp_ms=0,
        flag=0,
        properties="UNIQ_KEY\x01BATCH\x02",
        batch=True,
    )
    return asked_with(broker, RequestCode.SEND_BATCH_MESSAGE, fields.to_ext(), body)


def asked_with(broker: SmallBroker, code: int, ext: dict[str, str], body: bytes) -> Header:
    found = broker.ask(code, ext, body)
    assert found is not None
    return found


def test_delayed_message_enters_its_light_queues_when_it_is_delivered(broker: SmallBroker) -> None:
    broker.send("orders", b"now", TO_BOTH)
    broker.send("orders", b"later", TO_BOTH | {"DELAY": "1"})
    assert broker.bodies(A) == [b"now"]
    broker.run(seconds=2)
    assert (broker.bodies(A), broker.bodies(B)) == ([b"now", b"later"], [b"now", b"later"])


def test_timed_message_enters_its_light_queues_when_it_is_delivered(broker: SmallBroker) -> None:
    broker.send("orders", b"later", TO_BOTH | {"TIMER_DELAY_MS": "3000"})
    broker.run(seconds=1)
    assert broker.bodies(A) == []
    broker.run(seconds=4)
    assert broker.bodies(A) == broker.bodies("orders") == [b"later"]


def test_half_message_is_in_no_light_queue_until_it_is_committed(broker: SmallBroker) -> None:
    half = send_half(broker, b"kept", **TO_BOTH)
    lost = send_half(broker, b"lost", **TO_BOTH)
    assert broker.bodies(A) == []
    decide(broker, half, COMMIT)
    decide(broker, lost, ROLLBACK)
    assert (broker.bodies(A), broker.bodies(B)) == ([b"kept"], [b"kept"])


def test_delivery_over_the_limit_leaves_out_new_light_queues_only() -> None:
    """The message itself must not be lost, and must not block the messages behind it."""
    broker = SmallBroker(config=replace(ON, light_queues_max=2))
    assert broker.send("orders", b"later", {DISPATCH: f"{A},%LMQ%c", "DELAY": "1"}).code == 0
    assert broker.send("orders", b"now", TO_BOTH).code == 0
    broker.run(seconds=2)
    assert broker.bodies("orders") == [b"now", b"later"]
    assert broker.bodies(A) == [b"now", b"later"]
    assert broker.bodies("%LMQ%c") == []
    assert broker.store.light_queue_count == 2


def test_retry_of_a_message_is_in_no_light_queue(broker: SmallBroker) -> None:
    broker.send("orders", b"1", TO_BOTH)
    (message,) = broker.messages(A)
    ext = {"offset": str(message.physical_offset), "group": "g", "delayLevel": "1"}
    assert asked(broker, RequestCode.CONSUMER_SEND_MSG_BACK, ext).code == 0
    broker.run(seconds=2)
    assert broker.bodies(names.retry_topic("g")) == [b"1"]
    assert broker.bodies(A) == [b"1"]
    broker.kill()
    assert broker.bodies(A) == [b"1"]


def test_light_queue_is_not_a_topic(broker: SmallBroker) -> None:
    found = broker.send(A, b"1")
    assert found.code == ResponseCode.NO_PERMISSION
    assert "name the queue in the property INNER_MULTI_DISPATCH" in (found.remark or "")
    ext = {"topic": A, "defaultTopic": "TBW102", "readQueueNums": "1", "writeQueueNums": "1"}
    ext |= {"perm": "6", "topicFilterType": "SINGLE_TAG", "order": "false"}
    made = asked(broker, RequestCode.UPDATE_AND_CREATE_TOPIC, ext)
    assert made.code == ResponseCode.INVALID_PARAMETER
    broker.send("orders", b"1", TO_BOTH)
    assert not any(name.startswith("%LMQ%") for name in broker.slices.topics.topics.all())


def test_light_queues_survive_the_removal_of_unused_topics(broker: SmallBroker) -> None:
    broker.send("orders", b"1", TO_BOTH)
    assert asked(broker, RequestCode.CLEAN_UNUSED_TOPIC, {}).code == 0
    assert broker.bodies(A) == [b"1"]


def test_deleted_light_queue_loses_its_messages_and_offsets(broker: SmallBroker) -> None:
    broker.send("orders", b"1", TO_BOTH)
    answer(broker, A, 1, commit=1)
    assert asked(broker, RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": A}).code == 0
    broker.flush()
    assert (broker.bodies(A), broker.bodies(B)) == ([], [b"1"])
    assert offset_of(broker, A) is None
    broker.send("orders", b"2", {DISPATCH: A})
    assert broker.bodies(A) == [b"2"]


def offset_of(broker: SmallBroker, topic: str, group: str = "readers") -> int | None:
    return broker.slices.groups.tables.offsets.get(group, topic, 0)


def test_offsets_are_stored_only_for_light_queues_that_exist(broker: SmallBroker) -> None:
    broker.send("orders", b"1", TO_BOTH)
    answer(broker, A, 1, commit=1)
    answer(broker, "%LMQ%invented", commit=0)
    assert offset_of(broker, A) == 1
    ext = {"consumerGroup": "g", "topic": "%LMQ%invented", "queueId": "0", "commitOffset": "0"}
    assert asked(broker, RequestCode.UPDATE_CONSUMER_OFFSET, ext).code == 0
    assert offset_of(broker, "%LMQ%invented") is offset_of(broker, "%LMQ%invented", "g") is None
    refused = asked(broker, RequestCode.UPDATE_CONSUMER_OFFSET, ext | {"commitOffset": "3"})
    assert refused.code == ResponseCode.INVALID_PARAMETER


def test_expired_light_queue_takes_the_offsets_of_its_groups_along() -> None:
    """Its next message has offset 0, which a group that stayed at 2 would skip."""
    broker = SmallBroker(
        config=ON,
        store_config=replace(
            STORE, commit_log_file_bytes=4096, retention_hours=1, retention_at_hours=()
        ),
    )
    for _ in range(2):
        broker.send("orders", b"old", TO_BOTH)
    answer(broker, A, 2, commit=2)
    for _ in range(12):
        broker.send("orders", bytes(1000))
    broker.clock.advance(ms=2 * 3_600_000)
    broker.send("orders", b"young", {DISPATCH: B})
    broker.flush()
    broker.store.clean(by_hand=True, wait=True)
    broker.store.checkpoint(whole=True)
    assert broker.store.queues.get(queue_key(A, 0)) is None
    assert offset_of(broker, A) is None
    assert broker.bodies(B)[-1:] == [b"young"]
    broker.send("orders", b"new", {DISPATCH: A})
    broker.restart()
    assert [view.body for view in broker.messages(A)] == [b"new"]
    assert not broker.store.recovered.clamped


def test_messages_in_light_queues_are_counted_once(broker: SmallBroker) -> None:
    broker.send("orders", b"1", TO_BOTH)
    assert broker.metric("messages_in") == 1
    assert set(broker.slices.base.stats.topic_puts) == {"orders"}


def test_pulled_record_is_the_stored_one(broker: SmallBroker) -> None:
    broker.send("orders", b"1", {DISPATCH: B})
    broker.send("orders", b"2", TO_BOTH)
    with broker.store.read(queue_key(B, 0), broker.store.min_offset(queue_key(B, 0))) as found:
        read = [view for span in found.spans for view in decode_all(span)]
    assert [(view.topic, view.queue_offset) for view in read] == [("orders", 0), ("orders", 1)]
