"""Messages that consumers send back: retried with growing delays, then dead letters."""

import pytest

from tianzhou.broker.config import BrokerConfig
from tianzhou.record import ids
from tianzhou.record.message import MessageView
from tianzhou.testing.small_broker import RecordingPeer, SmallBroker
from tianzhou.wire._generated_codes import RequestCode, ResponseCode
from tianzhou.wire.codec import Header
from tianzhou.wire.names import SCHEDULE_TOPIC
from tianzhou.wire.tables import SubscriptionGroupConfig

GROUP = "readers"


def send_back(
    broker: SmallBroker, message: MessageView, version: int = 400, **more: str
) -> Header | None:
    """What the C++ client sends: group, offset and level 0."""
    ext = {"group": GROUP, "offset": str(message.physical_offset), "delayLevel": "0"} | more
    return broker.ask(RequestCode.CONSUMER_SEND_MSG_BACK, ext, version=version)


def sent(broker: SmallBroker, body: bytes = b"body") -> MessageView:
    broker.send("orders", body, {"TAGS": "a", "KEYS": "k1"})
    return broker.messages("orders")[-1]


def waiting(broker: SmallBroker, level: int) -> list[MessageView]:
    return broker.messages(SCHEDULE_TOPIC, level - 1)


def answered(answer: Header | None) -> int:
    assert answer is not None
    return answer.code


def test_send_back_first_retry_waits_in_level_3() -> None:
    broker = SmallBroker()
    original = sent(broker)
    assert answered(send_back(broker, original)) == 0
    (retry,) = waiting(broker, 3)
    assert retry.properties["REAL_TOPIC"] == f"%RETRY%{GROUP}"
    assert retry.properties["RETRY_TOPIC"] == "orders"
    assert retry.properties["ORIGIN_MESSAGE_ID"] == original.offset_id
    assert retry.properties["DELAY"] == "3"
    assert retry.properties["WAIT"] == "false"
    assert retry.unique_id == original.unique_id
    assert retry.reconsume_times == 1
    assert retry.born_timestamp == original.born_timestamp
    assert retry.born_host == original.born_host == ids.Host("10.1.1.1", 4711)
    assert retry.body == original.body


def test_send_back_each_retry_uses_the_next_level_and_keeps_its_origin() -> None:
    broker = SmallBroker()
    original = current = sent(broker)
    for times in range(1, 4):
        assert answered(send_back(broker, current)) == 0
        broker.run(seconds=61, step_ms=1000)
        current = broker.messages(f"%RETRY%{GROUP}")[-1]
        assert current.reconsume_times == times
        assert current.properties["DELAY"] == str(2 + times)
        assert current.properties["RETRY_TOPIC"] == "orders"
        assert current.properties["ORIGIN_MESSAGE_ID"] == original.offset_id
    assert len(broker.messages(f"%RETRY%{GROUP}")) == 3


def test_send_back_with_a_delay_level_uses_it() -> None:
    broker = SmallBroker()
    send_back(broker, sent(broker), delayLevel="7")
    (retry,) = waiting(broker, 7)
    assert retry.properties["DELAY"] == "7"


def test_send_back_with_a_level_beyond_the_last_uses_the_last() -> None:
    broker = SmallBroker()
    send_back(broker, sent(broker), delayLevel="99")
    assert len(waiting(broker, 18)) == 1


def test_send_back_after_the_last_retry_is_a_dead_letter() -> None:
    broker = SmallBroker()
    original = sent(broker)
    assert answered(send_back(broker, original, maxReconsumeTimes="0")) == 0
    (dead,) = broker.messages(f"%DLQ%{GROUP}")
    assert dead.properties["DLQ_ORIGIN_TOPIC"] == "orders"
    assert dead.properties["DLQ_ORIGIN_MESSAGE_ID"] == original.offset_id
    assert dead.properties["RETRY_TOPIC"] == "orders"
    assert "DELAY" not in dead.properties
    assert dead.body == original.body
    topic = broker.slices.topics.topics.get(f"%DLQ%{GROUP}")
    assert topic is not None
    assert (topic.perm, topic.write_queue_nums) == (6, 1)


def test_send_back_retry_limit_is_of_the_group_unless_a_new_client_sets_it() -> None:
    broker = SmallBroker()
    original = sent(broker)
    groups = SubscriptionGroupConfig(group_name=GROUP, retry_max_times=0)
    put_group(broker, groups)
    # An old client's number is not meant: it does not know the field.
    send_back(broker, original, version=120, maxReconsumeTimes="5")
    assert len(broker.messages(f"%DLQ%{GROUP}")) == 1
    send_back(broker, original, version=121, maxReconsumeTimes="5")
    assert len(broker.messages(f"%DLQ%{GROUP}")) == 1
    assert len(waiting(broker, 3)) == 1


def test_send_back_with_a_negative_level_is_a_dead_letter() -> None:
    broker = SmallBroker()
    send_back(broker, sent(broker), delayLevel="-1")
    assert len(broker.messages(f"%DLQ%{GROUP}")) == 1


def test_send_back_after_sixteen_retries_is_a_dead_letter() -> None:
    broker = SmallBroker()
    current = sent(broker)
    for times in range(1, 17):
        send_back(broker, current)
        broker.run(seconds=7300, step_ms=3_650_000)
        current = broker.messages(f"%RETRY%{GROUP}")[-1]
        assert current.reconsume_times == times
    assert current.properties["DELAY"] == "18"
    send_back(broker, current)
    assert len(broker.messages(f"%RETRY%{GROUP}")) == 16
    assert len(broker.messages(f"%DLQ%{GROUP}")) == 1


def test_send_back_of_a_timed_message_as_dead_letter_drops_the_timer() -> None:
    broker = SmallBroker()
    broker.send("orders", b"timed", {"TIMER_DELAY_SEC": "1"})
    broker.run(seconds=2)
    (original,) = broker.messages("orders")
    send_back(broker, original, delayLevel="-1")
    assert broker.bodies(f"%DLQ%{GROUP}") == [b"timed"]


def test_send_back_of_a_group_without_retry_queues_stores_nothing() -> None:
    broker = SmallBroker()
    put_group(broker, SubscriptionGroupConfig(group_name=GROUP, retry_queue_nums=0))
    before = broker.store.log.end
    original = sent(broker)
    end = broker.store.log.end
    assert answered(send_back(broker, original)) == 0
    assert broker.store.log.end == end > before


def test_send_back_of_an_unknown_group_is_rejected_with_its_name() -> None:
    broker = SmallBroker(config=BrokerConfig(auto_create_groups=False))
    answer = send_back(broker, sent(broker))
    assert answered(answer) == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
    assert answer is not None
    assert GROUP in (answer.remark or "")


@pytest.mark.parametrize("group", ["bad name", "x" * 121, ""])
def test_send_back_without_a_valid_group_name_is_rejected(group: str) -> None:
    broker = SmallBroker()
    answer = send_back(broker, sent(broker), group=group)
    assert answered(answer) == ResponseCode.INVALID_PARAMETER


@pytest.mark.parametrize("offset", [-1, 1, 1 << 40])
def test_send_back_of_an_offset_without_a_message_is_rejected(offset: int) -> None:
    broker = SmallBroker()
    sent(broker)
    end = broker.store.log.end
    answer = send_back(broker, sent(broker), offset=str(offset))
    assert answered(answer) == ResponseCode.SYSTEM_ERROR
    assert broker.store.log.end > end  # only by the message that was sent


def test_send_back_of_a_half_message_is_rejected() -> None:
    broker = SmallBroker()
    broker.send("orders", b"secret", {"TRAN_MSG": "true", "PGROUP": "producers"})
    (half,) = broker.messages("RMQ_SYS_TRANS_HALF_TOPIC")
    assert answered(send_back(broker, half)) == ResponseCode.SYSTEM_ERROR
    assert waiting(broker, 3) == []


def test_send_back_to_a_drained_broker_is_rejected() -> None:
    broker = SmallBroker()
    original = sent(broker)
    broker.slices.topics.permission.set(4)
    assert answered(send_back(broker, original)) == ResponseCode.NO_PERMISSION


def test_send_back_oneway_gets_no_response() -> None:
    broker = SmallBroker()
    original, peer = sent(broker), RecordingPeer()
    ext = {"group": GROUP, "offset": str(original.physical_offset), "delayLevel": "0"}
    broker.ask(RequestCode.CONSUMER_SEND_MSG_BACK, ext, peer=peer, oneway=True)
    assert peer.answers() == []
    assert len(waiting(broker, 3)) == 1


def put_group(broker: SmallBroker, group: SubscriptionGroupConfig) -> None:
    broker.slices.groups.clients.groups.put(group)
