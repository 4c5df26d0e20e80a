"""Lists of what waits: timed messages and undecided transactions; asking producers again."""

from administrator import Administrator
from transactional import COMMIT, ROLLBACK, checks, code_of, decide, producer, send_half, visible

from tianzhou.broker import names
from tianzhou.broker.config import BrokerConfig
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


def test_timers_are_listed_by_their_moments() -> None:
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


def test_what_was_recalled_is_not_listed() -> None:
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


def test_a_producer_is_asked_again_at_once_and_not_more_often_afterwards() -> None:
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


def test_a_half_that_was_listed_first_is_checked_in_time() -> None:
    """Whoever reads on in the queue first plans its checks."""
    broker = SmallBroker()
    send_half(broker)
    assert halves(broker).total == 1
    peer = producer(broker)
    broker.run(seconds=7)
    assert len(checks(peer)) == 1


def test_without_a_producer_it_waits_for_one_and_is_asked_once() -> None:
    broker = SmallBroker()
    half = send_half(broker)
    broker.run(seconds=7)
    assert resume(broker, half.offset_id) == 0
    broker.tick()
    peer = producer(broker)
    broker.tick()
    assert len(checks(peer)) == 1


def test_a_parked_half_can_be_taken_up_again() -> None:
    broker = SmallBroker(config=BrokerConfig(transaction_checks_max=1))
    send_half(broker, b"forgotten")
    producer(broker)
    broker.run(seconds=60)
    (parked,) = broker.messages(names.CHECKED_OUT_TOPIC)
    assert halves(broker).messages == ()
    assert resume(broker, parked.offset_id) == 0
    broker.tick()
    (row,) = halves(broker).messages
    assert (row.topic, row.group, row.checks) == ("orders", "buyers", 0)
    again = broker.messages(names.HALF_TOPIC)[-1]
    assert row.offset_msg_id == again.offset_id
    assert code_of(decide(broker, again, COMMIT)) == 0
    assert visible(broker) == [b"forgotten"]
    assert halves(broker).messages == ()


def test_what_is_no_half_or_decided_is_refused() -> None:
    broker = SmallBroker()
    half = send_half(broker)
    broker.tick()
    assert code_of(decide(broker, half, COMMIT)) == 0
    assert resume(broker, half.offset_id) == ResponseCode.ILLEGAL_OPERATION
    (message,) = broker.messages("orders", 2)
    assert resume(broker, message.offset_id) == ResponseCode.SYSTEM_ERROR
    assert resume(broker, "0" * 31 + "9") == ResponseCode.SYSTEM_ERROR
    assert resume(broker, "nonsense") == ResponseCode.INVALID_PARAMETER


def test_a_list_of_nothing_is_refused() -> None:
    tool = Administrator(SmallBroker())
    for code in (RequestCode.LIST_TIMERS, RequestCode.LIST_HALF_MESSAGES):
        assert tool.ask(code, count="0").code == ResponseCode.INVALID_PARAMETER
