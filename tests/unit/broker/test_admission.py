"""May this message be stored, and where?"""

import pytest

from tianzhou.broker import names
from tianzhou.broker.config import BrokerConfig
from tianzhou.broker.ingest.admission import split
from tianzhou.broker.scheduled import timer
from tianzhou.broker.transactions import half_queue
from tianzhou.broker.writing.incoming import Incoming
from tianzhou.record.batch import encode_batch
from tianzhou.record.layout import CRC_PROPERTY
from tianzhou.testing.small_broker import SmallBroker
from tianzhou.wire._generated_codes import ResponseCode
from tianzhou.wire.names import SCHEDULE_TOPIC
from tianzhou.wire.tables import SubscriptionGroupConfig, TopicConfig

LIMIT = 4 * 1024 * 1024


def with_group(broker: SmallBroker, *, retry_max_times: int = 16) -> None:
    group = SubscriptionGroupConfig(group_name="g", retry_max_times=retry_max_times)
    broker.slices.groups.clients.groups.put(group)


def test_admission_creates_a_new_topic_from_the_template() -> None:
    broker = SmallBroker()
    assert broker.send("fresh").code == 0
    topic = broker.slices.topics.topics.get("fresh")
    assert topic is not None
    assert (topic.write_queue_nums, topic.perm) == (4, 6)


def test_admission_without_auto_create_names_the_topic() -> None:
    broker = SmallBroker(config=BrokerConfig(auto_create_topics=False))
    answer = broker.send("fresh")
    assert answer.code == ResponseCode.TOPIC_NOT_EXIST
    assert "fresh" in (answer.remark or "")


@pytest.mark.parametrize("name", ["", "a b", "x" * 128, "中文", "a/b", "../x", "a\n"])
def test_admission_rejects_an_invalid_topic_name(name: str) -> None:
    assert SmallBroker().send(name).code == ResponseCode.INVALID_PARAMETER


@pytest.mark.parametrize("name", [*sorted(names.NOT_FOR_PRODUCERS), "rmq_sys_raft_metadata"])
def test_admission_rejects_sends_to_internal_topics(name: str) -> None:
    assert SmallBroker().send(name).code == ResponseCode.NO_PERMISSION


def test_admission_rejects_an_unknown_queue_and_chooses_for_a_negative_one() -> None:
    broker = SmallBroker()
    broker.send("orders")
    assert broker.send("orders", queue_id=4).code == ResponseCode.INVALID_PARAMETER
    answer = broker.send("orders", queue_id=-1)
    assert answer.code == 0
    assert 0 <= int(answer.ext["queueId"]) < 4


def test_admission_rejects_a_topic_without_write_permission() -> None:
    broker = SmallBroker()
    broker.slices.topics.topics.put(TopicConfig(topic_name="closed", perm=4))
    assert broker.send("closed").code == ResponseCode.NO_PERMISSION


def test_admission_rejects_a_large_body_properties_or_many_keys() -> None:
    broker = SmallBroker()
    assert broker.send("orders", bytes(LIMIT + 1)).code == ResponseCode.MESSAGE_ILLEGAL
    answer = broker.send("orders", b"x", {"P": "v" * 32_700})
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL
    many = " ".join(f"k{rank}" for rank in range(65))
    assert broker.send("orders", b"x", {"KEYS": many}).code == ResponseCode.MESSAGE_ILLEGAL


def test_admission_rejects_transactions_if_configured() -> None:
    broker = SmallBroker(config=BrokerConfig(reject_transactions=True))
    answer = broker.send("orders", b"x", {"TRAN_MSG": "true", "PGROUP": "g"})
    assert answer.code == ResponseCode.NO_PERMISSION


def test_admission_of_a_client_retry_beyond_the_limit_is_a_dead_letter() -> None:
    broker = SmallBroker()
    with_group(broker, retry_max_times=2)
    named = {"DELAY": "3", "RETRY_TOPIC": "orders", "ORIGIN_MESSAGE_ID": "ID1"}
    assert broker.send("%RETRY%g", b"again", named, reconsume_times=2).code == 0
    assert broker.bodies(SCHEDULE_TOPIC, 2) == [b"again"]
    assert broker.send("%RETRY%g", b"dead", named, reconsume_times=3).code == 0
    (dead,) = broker.messages("%DLQ%g")
    assert dead.body == b"dead"
    assert "DELAY" not in dead.properties
    assert dead.properties["DLQ_ORIGIN_TOPIC"] == "orders"
    assert dead.properties["DLQ_ORIGIN_MESSAGE_ID"] == "ID1"


def test_admission_of_a_timed_message_as_dead_letter_drops_the_timer() -> None:
    broker = SmallBroker()
    with_group(broker, retry_max_times=0)
    named = {"TIMER_DELAY_SEC": "100", "RETRY_TOPIC": "orders"}
    broker.send("%RETRY%g", b"dead", named, reconsume_times=1)
    assert broker.bodies("%DLQ%g") == [b"dead"]


def test_admission_beyond_the_limit_of_timers_or_halves_is_busy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(timer, "TIMERS_MAX", 2)
    monkeypatch.setattr(half_queue, "HALVES_MAX", 2)
    broker = SmallBroker()
    for kind in ({"TIMER_DELAY_SEC": "9"}, {"TRAN_MSG": "true", "PGROUP": "g"}):
        codes = list[int]()
        for _ in range(3):
            codes.append(broker.send("orders", b"x", kind).code)
            broker.tick()
        assert codes == [0, 0, ResponseCode.SYSTEM_BUSY]
    assert broker.send("orders").code == 0


def test_admission_rejects_a_retry_of_an_unknown_group() -> None:
    answer = SmallBroker().send("%RETRY%nobody", reconsume_times=1)
    assert answer.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST


def test_admission_retry_of_a_transactional_message_is_not_a_half() -> None:
    broker = SmallBroker()
    with_group(broker)
    broker.send("%RETRY%g", b"x", {"TRAN_MSG": "true", "DELAY": "1"}, reconsume_times=1)
    assert broker.messages(names.HALF_TOPIC) == []
    assert broker.bodies(SCHEDULE_TOPIC, 0) == [b"x"]


@pytest.mark.parametrize("sys_flag", [4, 12])
@pytest.mark.parametrize("named", [{}, {"TRAN_MSG": "false"}, {"DELAY": "1"}])
def test_admission_rejects_a_transaction_flag_other_than_prepared(
    sys_flag: int, named: dict[str, str]
) -> None:
    """No queue would ever contain it, yet its sender would get a success response."""
    answer = SmallBroker().send("orders", named=named, sys_flag=sys_flag)
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL
    assert f"sysFlag {sys_flag:#x}" in (answer.remark or "")


@pytest.mark.parametrize("times", [1, 17])
def test_admission_of_a_retry_with_the_prepared_flag_is_delivered(times: int) -> None:
    broker = SmallBroker()
    with_group(broker)
    named = {"TRAN_MSG": "true", "PGROUP": "p"}
    assert broker.send("%RETRY%g", named=named, sys_flag=4, reconsume_times=times).code == 0
    (message,) = broker.messages("%RETRY%g" if times == 1 else "%DLQ%g")
    assert message.sys_flag & 0xC == 0


def test_admission_of_negative_retries_starts_a_transaction_at_zero() -> None:
    broker = SmallBroker()
    named = {"TRAN_MSG": "True", "PGROUP": "p"}
    assert broker.send("orders", named=named, sys_flag=4, reconsume_times=-(2**31)).code == 0
    (half,) = broker.messages(names.HALF_TOPIC)
    assert half.reconsume_times == 0
    assert broker.bodies("orders") == []


def test_split_keeps_the_fields_of_the_batch_and_drops_foreign_checksums() -> None:
    inner = b"TAGS\x01a\x02" + CRC_PROPERTY + b"\x010123456789\x02"
    body = encode_batch([(7, b"one", inner), (8, b"two", b"")])
    batch = Incoming("t", 3, body, b"WAIT\x01true", 0, 8, 99, b"12345678", 5, 6)
    first, second = split(batch, record_crc=False)
    assert (first.body, first.flag, second.body, second.flag) == (b"one", 7, b"two", 8)
    assert CRC_PROPERTY not in first.properties
    assert first.properties.startswith(b"TAGS\x01a\x02")
    expected = batch.to_entry()
    for entry in (first, second):
        assert entry.queue == expected.queue
        assert entry[4:] == expected[4:] == (8, 99, b"12345678", 5, 6)
