"""Checking transactions with their producers, and parking those that stay unresolved."""

from transactional import COMMIT, ROLLBACK, checks, code_of, decide, producer, send_half, visible

from tianzhou.broker import names
from tianzhou.broker.config import BrokerConfig
from tianzhou.record.message import MessageView
from tianzhou.testing.small_broker import SmallBroker
from tianzhou.wire._generated_codes import ResponseCode
from tianzhou.wire._generated_headers_send import CheckTransactionStateRequest


def test_transaction_check_is_sent_after_6_seconds_then_every_30() -> None:
    broker = SmallBroker()
    peer = producer(broker)
    half = send_half(broker)
    broker.run(seconds=5.9)
    assert checks(peer) == []
    broker.run(seconds=0.2)
    (asked,) = checks(peer)
    fields = CheckTransactionStateRequest.from_ext(asked.ext)
    assert fields.topic == "orders"
    assert fields.tran_state_table_offset == half.queue_offset
    assert fields.commit_log_offset == half.physical_offset
    assert fields.msg_id == fields.transaction_id == half.unique_id
    assert fields.offset_msg_id == half.offset_id
    shown = MessageView(asked.body)
    assert (shown.topic, shown.queue_id) == ("orders", 2)
    assert shown.queue_offset == half.queue_offset
    assert shown.physical_offset == half.physical_offset
    assert shown.store_timestamp == half.store_timestamp
    assert shown.body == b"half"
    shown.verify()
    broker.run(seconds=29.8)
    assert checks(peer) == []
    broker.run(seconds=0.4)
    assert len(checks(peer)) == 1
    assert code_of(decide(broker, half, COMMIT, fromTransactionCheck="true")) == 0
    broker.run(seconds=100, step_ms=1000)
    assert checks(peer) == []
    assert visible(broker) == [b"half"]


def test_transaction_check_after_15_attempts_parks_the_half() -> None:
    broker = SmallBroker()
    peer = producer(broker)
    send_half(broker, b"forgotten")
    broker.run(seconds=6 + 14 * 30 + 1, step_ms=500)
    assert len(checks(peer)) == 15
    assert broker.bodies(names.CHECKED_OUT_TOPIC) == []
    broker.run(seconds=31, step_ms=500)
    assert broker.bodies(names.CHECKED_OUT_TOPIC) == [b"forgotten"]
    (parked,) = broker.messages(names.CHECKED_OUT_TOPIC)
    assert parked.properties["REAL_TOPIC"] == "orders"
    broker.run(seconds=100, step_ms=1000)
    assert checks(peer) == []
    broker.kill()
    broker.run(seconds=100, step_ms=1000)
    assert broker.bodies(names.CHECKED_OUT_TOPIC) == [b"forgotten"]


def test_transaction_check_without_a_producer_waits_and_is_not_counted() -> None:
    broker = SmallBroker(config=BrokerConfig(transaction_checks_max=1))
    send_half(broker)
    broker.run(seconds=300, step_ms=1000)
    assert broker.bodies(names.CHECKED_OUT_TOPIC) == []
    peer = producer(broker)
    broker.run(seconds=0.2)
    assert len(checks(peer)) == 1


def test_transaction_check_is_not_sent_to_a_closed_connection() -> None:
    broker = SmallBroker()
    dead, living = producer(broker, 1000), producer(broker, 1001)
    dead.close()
    for _ in range(4):
        send_half(broker)
    broker.run(seconds=6.2)
    assert checks(dead) == []
    assert len(checks(living)) == 4


def test_transaction_checks_alternate_between_producers_of_a_group() -> None:
    broker = SmallBroker()
    peers = [producer(broker, port) for port in (1000, 1001)]
    for _ in range(4):
        send_half(broker)
    broker.run(seconds=6.2)
    assert [len(checks(peer)) for peer in peers] == [2, 2]


def test_transaction_check_obeys_the_immunity_time_of_the_half() -> None:
    broker = SmallBroker()
    peer = producer(broker)
    half = send_half(broker, CHECK_IMMUNITY_TIME_IN_SECONDS="20")
    broker.run(seconds=19.8)
    assert checks(peer) == []
    broker.run(seconds=0.4)
    assert len(checks(peer)) == 1
    late = decide(broker, half, COMMIT)
    assert code_of(late) == ResponseCode.ILLEGAL_OPERATION
    assert code_of(decide(broker, half, COMMIT, fromTransactionCheck="true")) == 0


def test_transaction_check_skips_a_damaged_half() -> None:
    """RocketMQ issues 9500 and 1568."""
    broker = SmallBroker()
    peer = producer(broker)
    send_half(broker, b"bad")
    bad = broker.messages(names.HALF_TOPIC)[0]
    half = send_half(broker, b"good")
    damage(broker, bad)
    broker.run(seconds=6.2)
    (asked,) = checks(peer)
    assert asked.ext["tranStateTableOffset"] == str(half.queue_offset)


def damage(broker: SmallBroker, message: MessageView) -> None:
    segment = broker.store.log.segment_at(message.physical_offset)
    assert segment is not None
    # The length of the body: the record stays where it is and makes no sense.
    segment.file.pwrite(message.physical_offset - segment.start + 84, b"\x7f\xff\xff\xff")


def test_transaction_check_ignores_a_half_forged_as_a_copy() -> None:
    broker = SmallBroker()
    half = send_half(broker, b"first")
    thief = send_half(
        broker, b"thief", TRAN_PREPARED_QUEUE_OFFSET="0", TRANSACTION_CHECK_TIMES="99"
    )
    broker.run(seconds=1)
    assert code_of(decide(broker, thief, ROLLBACK)) == 0
    assert code_of(decide(broker, half, COMMIT)) == 0
    assert visible(broker) == [b"first"]
