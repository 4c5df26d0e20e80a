"""The admin client and single messages: queries, traces, dead letters, timers, transactions."""

import zlib
from collections.abc import Iterator

import pytest
from admin_world import give_up, park, send, send_half, unique_id

from abuse.raw_client import RawClient, heartbeat_of
from tianzhou.base.errors import UsageError
from tianzhou.broker.config import BrokerConfig
from tianzhou.client.core.trace import ConsumeBegun, Published, encode_trace
from tianzhou.client.errors import GroupNotExist, RemoteError
from tianzhou.client.sync.admin import Admin
from tianzhou.record import flags
from tianzhou.testing import RunningBroker, running_broker
from tianzhou.wire._generated_codes import RequestCode
from tianzhou.wire.queues import MessageQueue

HOUR_MS = 3_600_000
QUEUE = MessageQueue(topic="orders", broker_name="broker-a", queue_id=0)


@pytest.fixture
def admin(mq: RunningBroker) -> Iterator[Admin]:
    mq.create_topic("orders", queues=2)
    with Admin(nameserver=mq.nameserver) as made:
        yield made


# Queries


def test_message_is_found_by_unique_id_and_offset_id(admin: Admin, mq: RunningBroker) -> None:
    send(mq, "orders", b"found", UNIQ_KEY=unique_id(7))
    (stored,) = mq.stored("orders")
    for message_id in (stored.offset_id, unique_id(7)):
        message = admin.messages.by_id("orders", message_id)
        assert message is not None
        assert message.body == b"found"
    assert admin.messages.by_id("orders", unique_id(8)) is None
    assert admin.messages.by_id("orders", stored.offset_id[:-2] + "FF") is None


def test_messages_are_found_by_key_and_time(admin: Admin, mq: RunningBroker) -> None:
    mq.clock.hold()
    send(mq, "orders", b"old", KEYS="T1")
    mq.clock.advance(hours=1)
    now_ms = mq.clock.now_ms()
    send(mq, "orders", b"new", KEYS="T1 T2", queue_id=1)
    assert [m.body for m in admin.messages.by_key("orders", "T1")] == [b"old", b"new"]
    found = admin.messages.by_key("orders", "T1", begin_ms=now_ms - 1000)
    assert [m.body for m in found] == [b"new"]
    assert [m.body for m in admin.messages.by_key("orders", "T1", count=1)] == [b"new"]
    assert admin.messages.by_key("orders", "T3") == []


def test_messages_are_found_between_two_times(admin: Admin, mq: RunningBroker) -> None:
    mq.clock.hold()
    start_ms = mq.clock.now_ms()
    for number in range(6):
        send(mq, "orders", b"%d" % number, queue_id=number % 2)
        mq.clock.advance(hours=1)
    found = admin.messages.between(
        "orders", begin_ms=start_ms + HOUR_MS, end_ms=start_ms + 4 * HOUR_MS
    )
    assert [m.body for m in found] == [b"1", b"2", b"3"]
    everything = admin.messages.between("orders", begin_ms=0, end_ms=start_ms + 99 * HOUR_MS)
    assert [m.body for m in everything] == [b"0", b"1", b"2", b"3", b"4", b"5"]
    nothing = admin.messages.between("orders", begin_ms=0, end_ms=start_ms)
    assert nothing == []
    few = admin.messages.between("orders", begin_ms=0, end_ms=start_ms + 99 * HOUR_MS, count=1)
    assert [m.body for m in few] == [b"0", b"1"]
    with pytest.raises(UsageError, match="begin_ms 5 must be before end_ms 5"):
        admin.messages.between("orders", begin_ms=5, end_ms=5)


def test_messages_between_two_times_of_a_queue_with_one_message(
    admin: Admin, mq: RunningBroker
) -> None:
    """By time, a queue returns its last message for any later time."""
    mq.clock.hold()
    send(mq, "orders", b"only")
    now_ms = mq.clock.now_ms()
    mq.clock.advance(hours=1)
    for begin_ms, end_ms, bodies in (
        (0, now_ms + HOUR_MS, [b"only"]),
        (now_ms, now_ms + 1, [b"only"]),
        (0, now_ms, []),
        (now_ms + 1, now_ms + HOUR_MS, []),
    ):
        found = admin.messages.between("orders", begin_ms=begin_ms, end_ms=end_ms)
        assert [m.body for m in found] == bodies


def test_message_is_found_by_queue_and_offset(admin: Admin, mq: RunningBroker) -> None:
    send(mq, "orders", b"0", b"1", b"2")
    assert [m.body for m in admin.messages.at(QUEUE, 1)] == [b"1"]
    assert [m.body for m in admin.messages.at(QUEUE, 1, count=9)] == [b"1", b"2"]
    assert admin.messages.at(QUEUE, 3) == []


def test_trace_of_a_message_is_found(admin: Admin, mq: RunningBroker) -> None:
    published = Published(timestamp_ms=1, group="writers", topic="orders", message_id=unique_id(1))
    other = Published(timestamp_ms=1, group="writers", topic="orders", message_id=unique_id(2))
    begun = ConsumeBegun(
        timestamp_ms=2, group="billing", request_id="r", message_id=unique_id(1), keys="T1"
    )
    for records in ([begun], [published, other]):
        keys = " ".join({record.message_id for record in records})
        send(mq, "RMQ_SYS_TRACE_TOPIC", encode_trace(records), KEYS=keys)
    assert admin.messages.trace(unique_id(1)) == [published, begun]
    assert admin.messages.trace(unique_id(3)) == []


# Dead letters


def test_dead_letters_are_counted_and_listed(admin: Admin, mq: RunningBroker) -> None:
    admin.groups.create("billing")
    assert admin.dlq.all() == []
    assert admin.dlq.show("billing").count == 0
    assert admin.dlq.peek("billing") == []
    send(mq, "orders", b"1", b"2", TAGS="t", KEYS="k")
    give_up(mq, "billing", "orders")
    mq.wait_until(lambda: "%DLQ%billing" in admin.topics.all(internal=True))
    (box,) = admin.dlq.all()
    assert (box.group, box.count, box.not_replayed) == ("billing", 2, 2)
    assert box.last_ms > 0
    assert [m.body for m in admin.dlq.peek("billing", count=1)] == [b"2"]
    (first, _) = admin.dlq.peek("billing")
    assert (first.tags, first.keys) == ("t", ("k",))


@pytest.mark.parametrize("to_topic", [False, True])
def test_dead_letters_are_replayed_once(admin: Admin, mq: RunningBroker, to_topic: bool) -> None:
    send(mq, "orders", *(b"%d" % number for number in range(40)), TAGS="t")
    give_up(mq, "billing", "orders")
    mq.wait_until(lambda: admin.dlq.show("billing").count == 40)
    first = admin.dlq.replay("billing", count=3, to_topic=to_topic)
    assert (first.count, first.left) == (3, 37)
    rest = admin.dlq.replay("billing", to_topic=to_topic)
    assert (rest.count, rest.left) == (37, 0)
    assert admin.dlq.replay("billing", to_topic=to_topic).count == 0
    assert admin.dlq.show("billing").not_replayed == 0
    topic = "orders" if to_topic else "%RETRY%billing"
    sent = mq.stored(topic)[-40:]
    assert [message.body for message in sent] == [b"%d" % number for number in range(40)]
    assert {(message.tags, message.reconsume_times) for message in sent} == {("t", 0)}
    # A consumer of the retry topic reads the original topic from this property.
    is_retry = {"RETRY_TOPIC" in message.properties for message in sent}
    assert is_retry == {not to_topic}


def test_dead_letters_of_an_unknown_group_raise(admin: Admin) -> None:
    for call in (
        lambda: admin.dlq.replay("biling"),
        lambda: admin.dlq.peek("biling"),
        lambda: admin.dlq.show("biling"),
        lambda: admin.dlq.replay_messages("biling", []),
    ):
        with pytest.raises(GroupNotExist, match="group biling does not exist"):
            call()


def test_dead_letters_with_a_negative_count_are_rejected(admin: Admin) -> None:
    admin.groups.create("billing")
    assert admin.dlq.replay("billing", count=0).count == 0
    with pytest.raises(UsageError, match="count must be at least 0, got -1"):
        admin.dlq.replay("billing", count=-1)
    with pytest.raises(UsageError, match="count must be at least 0, got -1"):
        admin.dlq.peek("billing", count=-1)


def test_dead_letter_of_a_transaction_is_replayed_as_a_normal_message(
    admin: Admin, mq: RunningBroker
) -> None:
    send_half(mq, "orders", zlib.compress(b"paid"), sys_flag=flags.COMPRESSED)
    (pending,) = admin.transactions.all()
    admin.transactions.commit(pending)
    give_up(mq, "billing", "orders")
    mq.wait_until(lambda: admin.dlq.show("billing").count == 1)
    admin.dlq.replay("billing", to_topic=True)
    first, again = mq.stored("orders")
    assert first.sys_flag & flags.TRANSACTION_MASK == flags.TRANSACTION_COMMIT
    assert again.sys_flag & flags.TRANSACTION_MASK == 0
    assert (first.body, again.body) == (b"paid", b"paid")


def test_dead_letter_of_a_timer_is_replayed_without_delay(admin: Admin, mq: RunningBroker) -> None:
    send(mq, "orders", b"timed", TIMER_DELAY_SEC=3600, UNIQ_KEY=unique_id(1))
    mq.clock.advance(hours=2)
    give_up(mq, "billing", "orders")
    mq.wait_until(lambda: admin.dlq.show("billing").count == 1)
    admin.dlq.replay("billing", to_topic=True)
    assert [m.body for m in mq.stored("orders")] == [b"timed", b"timed"]


def test_rejected_replay_resumes_where_it_stopped(admin: Admin, mq: RunningBroker) -> None:
    send(mq, "orders", b"1", b"2", b"3")
    give_up(mq, "billing", "orders")
    mq.wait_until(lambda: admin.dlq.show("billing").count == 3)
    assert admin.dlq.replay("billing", count=1).count == 1
    with mq.faults.refuse_sends(), pytest.raises(RemoteError, match="refused by the test"):
        admin.dlq.replay("billing")
    assert admin.dlq.replay("billing").count == 2
    assert [m.body for m in mq.stored("%RETRY%billing")] == [b"1", b"2", b"3"]


# Transactions


def test_pending_transactions_are_decided_by_the_admin(admin: Admin, mq: RunningBroker) -> None:
    for body in (b"1", b"2", b"3"):
        send_half(mq, "orders", body)
    first, second, third = admin.transactions.all(topic="orders")
    assert (first.broker_name, first.half.group, first.half.topic) == (
        "broker-a",
        "buyers",
        "orders",
    )
    admin.transactions.commit(second)
    admin.transactions.rollback(first)
    assert [m.body for m in mq.stored("orders")] == [b"2"]
    assert admin.transactions.all() == [third]
    assert admin.transactions.all(topic="other") == []
    assert len(admin.transactions.all(count=1)) == 1


def test_transaction_check_is_sent_to_the_producer_again(admin: Admin, mq: RunningBroker) -> None:
    send_half(mq, "orders", b"1")
    (pending,) = admin.transactions.all()
    with RawClient(mq.broker) as client:
        client.ask(RequestCode.HEART_BEAT, body=heartbeat_of(client="me", producers=("buyers",)))
        admin.transactions.recheck(pending)
        assert client.receive().header.code == RequestCode.CHECK_TRANSACTION_STATE
    admin.transactions.rollback(pending)
    with pytest.raises(RemoteError, match="decided already"):
        admin.transactions.recheck(pending)


def test_parked_transactions_are_listed_and_resumed_once() -> None:
    config = BrokerConfig(transaction_checks_max=1)
    with running_broker(config=config) as mq, Admin(nameserver=mq.nameserver) as admin:
        send_half(mq, "orders", b"1")
        park(mq)
        (parked,) = admin.transactions.parked()
        assert admin.views.parked(count=10)[0] == [parked]
        assert (parked.broker_name, parked.half.group, parked.half.checks) == (
            "broker-a",
            "buyers",
            1,
        )
        assert admin.transactions.parked(topic="other") == []
        assert admin.transactions.all() == []
        admin.transactions.resume(parked)
        assert admin.transactions.parked() == []
        with pytest.raises(RemoteError, match="already resumed"):
            admin.transactions.resume(parked)
        (pending,) = admin.transactions.all()
        admin.transactions.commit(pending)
        (message,) = mq.stored("orders")
        assert message.body == b"1"


# Timers


def test_timers_are_listed_and_cancelled(admin: Admin, mq: RunningBroker) -> None:
    now_ms = mq.clock.now_ms()
    for hours in (2, 1):
        deliver_ms = now_ms + hours * HOUR_MS
        send(mq, "orders", b"%d" % hours, TIMER_DELIVER_MS=deliver_ms, UNIQ_KEY=unique_id(hours))
    first, second = admin.timers.all()
    assert first.message.deliver_timestamp == now_ms + HOUR_MS
    assert (first.message.topic, first.broker_name) == ("orders", "broker-a")
    admin.timers.cancel(first)
    assert admin.timers.all(topic="orders") == [second]
    mq.clock.advance(hours=3)
    assert [m.body for m in mq.stored("orders")] == [b"2"]
    with pytest.raises(RemoteError, match="delivered"):
        admin.timers.cancel(second)


def test_delayed_messages_are_listed_by_level(admin: Admin, mq: RunningBroker) -> None:
    send(mq, "orders", b"soon", DELAY=5)
    assert [m.body for m in admin.timers.delayed(level=5)] == [b"soon"]
    assert admin.timers.delayed(level=6) == []
    mq.clock.advance(minutes=1)
    assert admin.timers.delayed(level=5) == []
    send(mq, "orders", b"later", DELAY=5)
    assert [m.body for m in admin.timers.delayed(level=5)] == [b"later"]
    with pytest.raises(UsageError, match="delay level must be at least 1"):
        admin.timers.delayed(level=0)
