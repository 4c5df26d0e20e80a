"""Hours pass in milliseconds: everything that waits for a time happens when the clock advances."""

import time
from dataclasses import replace

import pytest

from abuse.raw_client import UNIQUE, RawClient, heartbeat_of, send_v2
from tianzhou.broker.names import retry_topic
from tianzhou.record import flags
from tianzhou.store.config import FlushMode
from tianzhou.testing import SMALL_STORE, RunningBroker, running_broker
from tianzhou.wire._generated_codes import RequestCode
from tianzhou.wire._generated_headers_send import CheckTransactionStateRequest

HOUR_S = 3600


def bodies(mq: RunningBroker, topic: str) -> list[bytes]:
    return [message.body for message in mq.stored(topic)]


def send(mq: RunningBroker, body: bytes, *, topic: str = "orders", **named: object) -> None:
    text = UNIQUE + "".join(f"{name}\x01{value}\x02" for name, value in named.items())
    with RawClient(mq.broker) as client:
        answer = client.ask(310, send_v2(topic, properties=text), body)
    assert answer.code == 0, answer.remark


@pytest.mark.parametrize("mode", FlushMode)
def test_delayed_messages_are_delivered_when_the_clock_advances(mode: FlushMode) -> None:
    with running_broker(store_config=replace(SMALL_STORE, flush_mode=mode)) as mq:
        send(mq, b"in two hours", DELAY=18)
        send(mq, b"in a minute", DELAY=5)
        assert bodies(mq, "orders") == []
        mq.clock.advance(minutes=1)
        assert bodies(mq, "orders") == [b"in a minute"]
        mq.clock.advance(hours=2)
        assert bodies(mq, "orders") == [b"in a minute", b"in two hours"]


def test_timers_fire_in_the_order_of_their_times(mq: RunningBroker) -> None:
    now_ms = mq.clock.now_ms()
    for hours in (50, 2, 30):
        deliver_ms = now_ms + hours * HOUR_S * 1000
        send(mq, b"%d" % hours, TIMER_DELIVER_MS=deliver_ms)
    mq.clock.advance(hours=1)
    assert bodies(mq, "orders") == []
    mq.clock.advance(days=3)
    assert bodies(mq, "orders") == [b"2", b"30", b"50"]


@pytest.mark.slow
def test_advance_delivers_more_than_one_tick_can_handle(mq: RunningBroker) -> None:
    count = 5_000
    with RawClient(mq.broker) as client:
        text = UNIQUE + "DELAY\x0118\x02"
        for _ in range(count):
            assert client.ask(310, send_v2("orders", properties=text), b"x").code == 0
    mq.clock.advance(hours=2)
    assert len(mq.stored("orders")) == count


def test_retries_are_delivered_when_the_clock_advances(mq: RunningBroker) -> None:
    send(mq, b"poison")
    (message,) = mq.stored("orders")
    with RawClient(mq.broker) as client:
        beat = heartbeat_of(client="me", consumers=("billing",), topic="orders")
        client.ask(RequestCode.HEART_BEAT, body=beat)
        back = {"offset": str(message.physical_offset), "group": "billing", "delayLevel": "0"}
        assert client.ask(RequestCode.CONSUMER_SEND_MSG_BACK, back).code == 0
    assert bodies(mq, retry_topic("billing")) == []
    mq.clock.advance(seconds=10)
    (again,) = mq.stored(retry_topic("billing"))
    assert (again.body, again.reconsume_times) == (b"poison", 1)


def test_message_out_of_retries_becomes_a_dead_letter(mq: RunningBroker) -> None:
    send(mq, b"poison")
    (message,) = mq.stored("orders")
    with RawClient(mq.broker) as client:
        beat = heartbeat_of(client="me", consumers=("billing",), topic="orders")
        client.ask(RequestCode.HEART_BEAT, body=beat)
        back = {"offset": str(message.physical_offset), "group": "billing", "delayLevel": "-1"}
        assert client.ask(RequestCode.CONSUMER_SEND_MSG_BACK, back).code == 0
    assert [dead.body for dead in mq.dead_letters("billing")] == [b"poison"]


def test_transaction_checks_are_sent_when_the_clock_advances(mq: RunningBroker) -> None:
    with RawClient(mq.broker) as producer:
        producer.ask(RequestCode.HEART_BEAT, body=heartbeat_of(client="me", producers=("abusers",)))
        half = send_v2(
            "orders",
            properties=f"{UNIQUE}TRAN_MSG\x01true\x02PGROUP\x01abusers\x02",
            f=str(flags.TRANSACTION_PREPARED),
        )
        assert producer.ask(310, half, b"perhaps").code == 0
        mq.clock.advance(minutes=1)
        asked = producer.receive()
        assert asked.header.code == RequestCode.CHECK_TRANSACTION_STATE
        fields = CheckTransactionStateRequest.from_ext(asked.header.ext)
        producer.ask(
            RequestCode.END_TRANSACTION,
            {
                "producerGroup": "abusers",
                "tranStateTableOffset": str(fields.tran_state_table_offset),
                "commitLogOffset": str(fields.commit_log_offset),
                "commitOrRollback": str(flags.TRANSACTION_COMMIT),
                "fromTransactionCheck": "true",
                "msgId": str(fields.msg_id),
            },
        )
    assert bodies(mq, "orders") == [b"perhaps"]


def test_messages_expire_when_the_clock_advances() -> None:
    small = replace(SMALL_STORE, commit_log_file_bytes=64 * 1024, retention_hours=72)
    with running_broker(store_config=small) as mq:
        for number in range(3):
            send(mq, b"%d" % number + bytes(50_000))
        assert len(mq.stored("orders")) == 3
        mq.clock.advance(hours=71)
        assert len(mq.stored("orders")) == 3
        mq.clock.advance(hours=2)
        # The file that is being written is kept.
        assert [message.body[:1] for message in mq.stored("orders")] == [b"2"]


def test_clients_stay_connected_when_the_clock_advances(mq: RunningBroker) -> None:
    with RawClient(mq.broker) as client:
        beat = heartbeat_of(client="me", consumers=("billing",), topic="orders")
        client.ask(RequestCode.HEART_BEAT, body=beat)
        mq.create_topic("orders")
        mq.clock.advance(days=30)
        ids = client.ask(RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": "billing"})
        assert b'"me"' in ids.body
    with RawClient(mq.nameserver) as names:
        assert names.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "orders"}).code == 0


def test_advance_by_three_days_takes_milliseconds(mq: RunningBroker) -> None:
    send(mq, b"refund", TIMER_DELIVER_MS=mq.clock.now_ms() + 3 * 24 * HOUR_S * 1000 - 1000)
    start = time.perf_counter()
    mq.clock.advance(days=3)
    took_s = time.perf_counter() - start
    assert bodies(mq, "orders") == [b"refund"]
    assert took_s < 1


def test_paused_clock_holds_deliveries_back(mq: RunningBroker) -> None:
    mq.clock.hold()
    send(mq, b"in a second", DELAY=1)
    before_ms = mq.clock.now_ms()
    mq.clock.advance(ms=999)
    assert bodies(mq, "orders") == []
    mq.clock.advance(ms=1)
    (message,) = mq.stored("orders")
    assert message.store_timestamp == before_ms + 1000
