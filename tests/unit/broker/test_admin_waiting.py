"""Lists of what waits: timed messages and undecided transactions; asking producers again."""

import pytest
from administrator import Administrator
from transactional import COMMIT, ROLLBACK, checks, code_of, decide, producer, send_half

from tianzhou.broker import names
from tianzhou.broker.config import BrokerConfig
from tianzhou.broker.transactions.half_queue import HALF_QUEUE
from tianzhou.record import properties
from tianzhou.record.chunk import Entry
from tianzhou.testing.small_broker import SmallBroker
from tianzhou.wire._generated_codes import RequestCode, ResponseCode
from tianzhou.wire.admin_bodies import (
    HalfMessages,
    TimedMessages,
    decode_half_messages,
    decode_timed_messages,
)

HOUR_MS = 3_600_000


def timers(broker: SmallBroker, count: int = 100, **more: str) -> TimedMessages:
    answer = Administrator(broker).ask(RequestCode.LIST_TIMERS, count=str(count), **more)
    assert answer.code == 0, answer.remark
    return decode_timed_messages(answer.body)


def halves(broker: SmallBroker, count: int = 100, **more: str) -> HalfMessages:
    answer = Administrator(broker).ask(RequestCode.LIST_HALF_MESSAGES, count=str(count), **more)
    assert answer.code == 0, answer.remark
    return decode_half_messages(answer.body)


def resume(broker: SmallBroker, message_id: str) -> int:
    tool = Administrator(broker)
    return tool.ask(RequestCode.RESUME_CHECK_HALF_MESSAGE, msgId=message_id).code


# Timers


def test_scheduled_messages_are_listed_by_delivery_time() -> None:
    broker = SmallBroker()
    now_ms = broker.clock.now_ms()
    for hours in (5, 1, 4, 2, 3):
        moment = str(now_ms + hours * HOUR_MS)
        topic = "even" if hours % 2 == 0 else "odd"
        assert broker.send(topic, b"x", {"TIMER_DELIVER_MS": moment}).code == 0
    listed = timers(broker)
    moments = [(row.deliver_timestamp - now_ms) // HOUR_MS for row in listed.messages]
    assert (moments, listed.total) == ([1, 2, 3, 4, 5], 5)
    assert [row.topic for row in timers(broker, topic="even").messages] == ["even", "even"]
    assert len(timers(broker, count=2).messages) == 2
    first = listed.messages[0]
    assert first.store_timestamp == now_ms
    view = broker.messages(names.TIMER_TOPIC)[1]
    assert (first.msg_id, first.offset_msg_id) == (view.unique_id, view.offset_id)


def test_scheduled_messages_that_were_recalled_are_not_listed() -> None:
    broker = SmallBroker()
    moment = str(broker.clock.now_ms() + HOUR_MS)
    for name in ("U1", "U2"):
        broker.send("orders", b"x", {"TIMER_DELIVER_MS": moment, "UNIQ_KEY": name * 16})
    broker.tick()
    first, second = timers(broker).messages
    ext = {"topic": "orders", "recallHandle": first.recall_handle or "", "producerGroup": "p"}
    assert code_of(broker.ask(RequestCode.RECALL_MESSAGE, ext)) == 0
    assert timers(broker).messages == (second,)
    broker.tick()
    assert timers(broker).messages == (second,)
    broker.run(seconds=3601, step_ms=600_500)
    assert timers(broker).messages == ()
    assert len(broker.messages("orders")) == 1


# Transactions


def test_undecided_halves_are_listed() -> None:
    broker = SmallBroker()
    old, decided, young = (send_half(broker, body) for body in (b"1", b"2", b"3"))
    assert code_of(decide(broker, decided, ROLLBACK)) == 0
    listed = halves(broker)
    assert [row.msg_id for row in listed.messages] == [old.unique_id, young.unique_id]
    assert listed.total == 2
    row = listed.messages[0]
    assert (row.topic, row.group, row.checks) == ("orders", "buyers", 0)
    assert (row.offset_msg_id, row.queue_offset) == (old.offset_id, old.queue_offset)
    assert halves(broker, topic="another").messages == ()
    assert len(halves(broker, count=1).messages) == 1


def test_half_check_on_request_is_immediate_and_keeps_the_schedule() -> None:
    broker = SmallBroker(config=BrokerConfig(transaction_check_ms=30_000))
    half, peer = send_half(broker), producer(broker)
    broker.run(seconds=7)
    assert len(checks(peer)) == 1
    assert halves(broker).messages[0].checks == 1
    assert resume(broker, half.offset_id) == 0
    assert halves(broker).messages[0].checks == 0
    broker.tick()
    assert len(checks(peer)) == 1
    broker.run(seconds=29.5)
    assert checks(peer) == []
    broker.run(seconds=1)
    assert len(checks(peer)) == 1


def test_half_listed_before_its_first_check_is_checked_in_time() -> None:
    """The first reader of the half queue schedules its checks."""
    broker = SmallBroker()
    send_half(broker)
    assert halves(broker).total == 1
    peer = producer(broker)
    broker.run(seconds=7)
    assert len(checks(peer)) == 1


def test_half_check_without_a_producer_waits_and_runs_once() -> None:
    broker = SmallBroker()
    half = send_half(broker)
    broker.run(seconds=7)
    assert resume(broker, half.offset_id) == 0
    broker.tick()
    peer = producer(broker)
    broker.tick()
    assert len(checks(peer)) == 1


def parked(broker: SmallBroker, count: int = 100, **more: str) -> HalfMessages:
    answer = Administrator(broker).ask(RequestCode.LIST_PARKED_MESSAGES, count=str(count), **more)
    assert answer.code == 0, answer.remark
    return decode_half_messages(answer.body)


def broker_with_parked(*bodies: bytes) -> SmallBroker:
    broker = SmallBroker(config=BrokerConfig(transaction_checks_max=1))
    producer(broker)
    for body in bodies:
        send_half(broker, body)
    broker.run(seconds=60)
    assert halves(broker).messages == ()
    return broker


def alarms(broker: SmallBroker) -> list[str]:
    return [alarm.kind for alarm in broker.slices.base.alarms.current()]


@pytest.mark.parametrize("restarts", ["", "stop", "kill"])
def test_parked_transactions_are_listed_counted_and_alarmed(restarts: str) -> None:
    broker = broker_with_parked(b"first", b"second")
    if restarts:
        broker.restart() if restarts == "stop" else broker.kill()
        broker.tick()
    listed = parked(broker)
    assert listed.total == broker.metric("parked_transactions") == 2
    views = broker.messages(names.CHECKED_OUT_TOPIC)
    assert [row.msg_id for row in listed.messages] == [view.unique_id for view in views]
    row = listed.messages[0]
    assert (row.topic, row.group, row.checks) == ("orders", "buyers", 1)
    assert (row.offset_msg_id, row.queue_offset) == (views[0].offset_id, 0)
    assert parked(broker, topic="another").messages == ()
    assert len(parked(broker, count=1).messages) == 1
    assert "transactions_parked" in alarms(broker)


@pytest.mark.parametrize("restarts", ["", "stop", "kill"])
def test_parked_transaction_resumed_is_pending_and_not_listed(restarts: str) -> None:
    broker = broker_with_parked(b"forgotten", b"other")
    first, other = parked(broker).messages
    assert resume(broker, first.offset_msg_id) == 0
    broker.tick()
    if restarts:
        broker.restart() if restarts == "stop" else broker.kill()
        broker.tick()
    assert parked(broker).messages == (other,)
    assert resume(broker, first.offset_msg_id) == ResponseCode.ILLEGAL_OPERATION
    (row,) = halves(broker).messages
    assert (row.topic, row.group, row.checks) == ("orders", "buyers", 0)
    again = broker.messages(names.HALF_TOPIC)[-1]
    assert row.offset_msg_id == again.offset_id
    assert code_of(decide(broker, again, COMMIT)) == 0
    (message,) = broker.messages("orders", 2)
    assert message.body == b"forgotten"
    assert not {"TRAN_PARKED_OFFSET", "TRANSACTION_CHECK_TIMES"} & message.properties.keys()
    assert halves(broker).messages == ()
    assert resume(broker, other.offset_msg_id) == 0
    assert "transactions_parked" not in alarms(broker)


def test_parked_transaction_can_be_parked_and_resumed_again() -> None:
    broker = broker_with_parked(b"stubborn")
    for _ in range(2):
        (row,) = parked(broker).messages
        assert resume(broker, row.offset_msg_id) == 0
        assert parked(broker).messages == ()
        producer(broker)
        broker.run(seconds=60)
    (row,) = parked(broker).messages
    assert row.checks == 1


def test_resumed_transaction_whose_op_record_is_lost_gets_it_at_start() -> None:
    broker = broker_with_parked(b"torn")
    (parked_view,) = broker.messages(names.CHECKED_OUT_TOPIC)
    text = properties.encode(dict(parked_view.properties) | {"TRAN_PARKED_OFFSET": "0"})
    broker.slices.base.writer.put([Entry(HALF_QUEUE, b"torn", text)])
    broker.flush()
    broker.kill()
    broker.flush()
    assert parked(broker).messages == ()
    assert len(halves(broker).messages) == 1
    broker.kill()
    assert parked(broker).messages == ()


def test_resumed_transaction_op_record_decides_no_other_one_at_start() -> None:
    """The op record is the last record; it refers to a half other than the one at offset 0 of the
    log."""
    broker = SmallBroker(config=BrokerConfig(transaction_checks_max=1))
    send_half(broker, b"immune", CHECK_IMMUNITY_TIME_IN_SECONDS="100000")
    producer(broker)
    send_half(broker, b"parked")
    broker.run(seconds=60)
    (row,) = parked(broker).messages
    assert resume(broker, row.offset_msg_id) == 0
    broker.flush()
    broker.kill()
    assert halves(broker).total == 2


def test_parked_transactions_expire_with_the_log() -> None:
    broker = broker_with_parked(b"old")
    assert parked(broker).total == 1
    broker.clock.advance(hours=100)
    for _ in range(3):  # more than one file of the log
        broker.send("orders", bytes(500_000))
    broker.run(seconds=1)
    broker.clock.advance(hours=100)
    assert broker.store.clean(by_hand=True) > 0
    broker.tick()
    assert parked(broker).total == 0
    assert "transactions_parked" not in alarms(broker)


def test_half_check_of_another_or_decided_message_is_rejected() -> None:
    broker = SmallBroker()
    half = send_half(broker)
    broker.tick()
    assert code_of(decide(broker, half, COMMIT)) == 0
    assert resume(broker, half.offset_id) == ResponseCode.ILLEGAL_OPERATION
    (message,) = broker.messages("orders", 2)
    assert resume(broker, message.offset_id) == ResponseCode.SYSTEM_ERROR
    assert resume(broker, "0" * 31 + "9") == ResponseCode.SYSTEM_ERROR
    assert resume(broker, "nonsense") == ResponseCode.INVALID_PARAMETER


def test_waiting_list_with_an_invalid_count_is_rejected() -> None:
    tool = Administrator(SmallBroker())
    for code in (
        RequestCode.LIST_TIMERS,
        RequestCode.LIST_HALF_MESSAGES,
        RequestCode.LIST_PARKED_MESSAGES,
    ):
        assert tool.ask(code, count="0").code == ResponseCode.INVALID_PARAMETER
