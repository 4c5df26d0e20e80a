"""Reads that are not ready: what each caller of the store does until they are."""

from typing import cast

import pytest
from transactional import COMMIT, code_of, decide, producer, send_half, visible
from transactional import checks as checks_of

from tianzhou.base.kinds import QueueKey, queue_key
from tianzhou.broker import names
from tianzhou.broker.config import BrokerConfig
from tianzhou.broker.topics.store_times import store_time
from tianzhou.broker.transactions.half_queue import HALF_QUEUE
from tianzhou.broker.transactions.parked import PARKED_QUEUE
from tianzhou.testing.deferring_store import DeferringStore
from tianzhou.testing.small_broker import RecordingPeer, SmallBroker
from tianzhou.wire._generated_codes import RequestCode, ResponseCode
from tianzhou.wire._generated_headers_pull import PullMessageRequest
from tianzhou.wire.codec import Header, encode_command
from tianzhou.wire.names import PULL_SUBSCRIPTION, PULL_SUSPEND, SCHEDULE_TOPIC

TOPIC = "orders"
QUEUE = queue_key(TOPIC, 0)


def build_broker(*deferred: QueueKey, count: int = 3) -> tuple[SmallBroker, DeferringStore]:
    broker = SmallBroker(store_type=DeferringStore)
    for number in range(count):
        broker.send(TOPIC, b"m%d" % number)
    store = store_of(broker)
    store.deferred.update(deferred)
    return broker, store


def store_of(broker: SmallBroker) -> DeferringStore:
    return cast("DeferringStore", broker.store)


def pull(broker: SmallBroker, peer: RecordingPeer, offset: int = 0, *, wait_ms: int = 0) -> None:
    fields = PullMessageRequest(
        consumer_group="readers",
        topic=TOPIC,
        queue_id=0,
        queue_offset=offset,
        max_msg_nums=32,
        sys_flag=PULL_SUBSCRIPTION | (PULL_SUSPEND if wait_ms else 0),
        commit_offset=0,
        suspend_timeout_ms=wait_ms,
        subscription="*",
        sub_version=0,
    )
    header = Header(code=RequestCode.PULL_MESSAGE, opaque=7, ext=fields.to_ext())
    broker.received(peer, encode_command(header))


@pytest.mark.parametrize("wait_ms", [0, 15_000])
def test_pull_waits_until_its_read_is_ready(wait_ms: int) -> None:
    (broker, store), peer = build_broker(QUEUE), RecordingPeer()
    pull(broker, peer, 1, wait_ms=wait_ms)
    assert peer.answers() == []
    assert broker.metric("held_pulls") == 1
    store.make_ready()
    (response,) = peer.answers()
    assert (response.code, response.ext["nextBeginOffset"]) == (ResponseCode.SUCCESS, "3")
    assert broker.metric("held_pulls") == 0


@pytest.mark.parametrize(("wait_ms", "deadline_ms"), [(15_000, 15_000), (0, 1_000)])
def test_pull_whose_read_misses_the_deadline_responds_retry(wait_ms: int, deadline_ms: int) -> None:
    """A pull that does not wait for new messages waits for its read as long as short polling."""
    (broker, store), peer = build_broker(QUEUE), RecordingPeer()
    pull(broker, peer, 1, wait_ms=wait_ms)
    broker.clock.advance(ms=deadline_ms - 1)
    broker.slices.fetch.pull.tick()
    assert peer.answers() == []
    broker.clock.advance(ms=1)
    broker.slices.fetch.pull.tick()
    (response,) = peer.answers()
    assert (response.code, response.remark) == (ResponseCode.PULL_RETRY_IMMEDIATELY, "NOT_READY")
    assert response.ext["nextBeginOffset"] == "1"
    store.make_ready()  # too late for this pull
    assert peer.answers() == []


def test_pull_that_waits_for_its_read_is_not_repeated_for_new_messages() -> None:
    (broker, store), peer = build_broker(QUEUE), RecordingPeer()
    pull(broker, peer, wait_ms=15_000)
    for _ in range(5):
        broker.send(TOPIC)
    assert (store.deferred_count, store.waiting_count) == (1, 1)
    store.make_ready()
    assert [response.ext["nextBeginOffset"] for response in peer.answers()] == ["8"]


def test_pull_beyond_the_limit_of_waiting_reads_responds_retry() -> None:
    config = BrokerConfig(held_pulls_max=1)
    broker, peers = (
        SmallBroker(store_type=DeferringStore, config=config),
        [RecordingPeer() for _ in "ab"],
    )
    broker.send(TOPIC)
    store_of(broker).deferred.add(QUEUE)
    for peer in peers:
        pull(broker, peer, wait_ms=15_000)
    assert peers[0].answers() == []
    assert [found.code for found in peers[1].answers()] == [ResponseCode.PULL_RETRY_IMMEDIATELY]


def test_pull_whose_client_disconnected_is_dropped_when_ready() -> None:
    (broker, store), peer = build_broker(QUEUE), RecordingPeer()
    pull(broker, peer, wait_ms=15_000)
    peer.is_open = False
    store.make_ready()
    assert peer.answers() == []
    assert broker.metric("held_pulls") == 0


def test_delayed_messages_are_delivered_once_they_can_be_read() -> None:
    broker, store = build_broker(queue_key(SCHEDULE_TOPIC, 0), count=0)
    broker.send(TOPIC, b"later", {"DELAY": "1"})
    broker.run(seconds=3)
    assert broker.bodies(TOPIC) == []
    store.make_ready()
    broker.tick()
    assert broker.bodies(TOPIC) == [b"later"]


def test_timed_messages_are_delivered_once_they_can_be_read() -> None:
    broker, store = build_broker(count=0)
    broker.send(TOPIC, b"later", {"TIMER_DELAY_SEC": "2"})
    broker.tick()
    store.deferred.add(queue_key(names.TIMER_TOPIC, 0))
    broker.run(seconds=3)
    assert broker.bodies(TOPIC) == []
    assert broker.metric("pending_timers") == 1
    store.make_ready()
    broker.tick()
    assert broker.bodies(TOPIC) == [b"later"]


def test_timers_are_scanned_once_they_can_be_read() -> None:
    broker, store = build_broker(queue_key(names.TIMER_TOPIC, 0), count=0)
    broker.send(TOPIC, b"later", {"TIMER_DELAY_SEC": "2"})
    broker.run(seconds=3)
    assert broker.metric("pending_timers") == 0
    store.make_ready()
    broker.tick()
    assert broker.bodies(TOPIC) == [b"later"]


def test_half_messages_not_yet_readable_are_checked_later_not_dropped() -> None:
    broker, store = build_broker(count=0)
    send_half(broker)
    peer = producer(broker)
    broker.tick()
    store.deferred.add(HALF_QUEUE)
    broker.run(seconds=60)
    assert checks_of(peer) == []
    assert broker.metric("pending_transactions") == 1
    store.make_ready()
    broker.run(seconds=31)
    assert len(checks_of(peer)) == 1


def test_decisions_are_rejected_while_the_half_message_cannot_be_read() -> None:
    broker, store = build_broker(count=0)
    half = send_half(broker)
    store.defers_lookups = True
    assert code_of(decide(broker, half, COMMIT)) == ResponseCode.SYSTEM_BUSY
    store.make_ready()
    assert code_of(decide(broker, half, COMMIT)) == ResponseCode.SUCCESS
    assert visible(broker) == [b"half"]


def test_parked_transactions_are_not_listed_while_they_cannot_be_read() -> None:
    config = BrokerConfig(transaction_checks_max=1)
    broker = SmallBroker(store_type=DeferringStore, config=config)
    send_half(broker)
    producer(broker)
    store_of(broker).deferred.add(PARKED_QUEUE)
    broker.run(seconds=70)
    listing = RequestCode.LIST_PARKED_MESSAGES, {"count": "1"}
    assert code_of(broker.ask(*listing)) == ResponseCode.SYSTEM_BUSY
    store_of(broker).make_ready()
    assert code_of(broker.ask(*listing)) == ResponseCode.SUCCESS
    assert broker.metric("parked_transactions") == 1


@pytest.mark.parametrize(
    ("code", "ext"),
    [
        (RequestCode.QUERY_MESSAGE, {"topic": TOPIC, "key": "k", "maxNum": "1"}),
        (RequestCode.VIEW_MESSAGE_BY_ID, {"offset": "0"}),
        (RequestCode.CONSUMER_SEND_MSG_BACK, {"group": "g", "offset": "0", "delayLevel": "0"}),
        (RequestCode.VIEW_MESSAGES, {"topic": TOPIC, "by": "key", "word": "k", "count": "1"}),
    ],
)
def test_queries_for_single_messages_are_rejected_until_they_can_be_read(
    code: RequestCode, ext: dict[str, str]
) -> None:
    broker, store = build_broker()
    store.defers_lookups = True
    more = {"beginTimestamp": "0", "endTimestamp": str(1 << 60)}
    assert code_of(broker.ask(code, more | ext)) == ResponseCode.SYSTEM_BUSY
    store.make_ready()
    assert code_of(broker.ask(code, more | ext)) != ResponseCode.SYSTEM_BUSY


def test_earliest_store_time_is_rejected_until_it_can_be_read() -> None:
    broker, store = build_broker(QUEUE)
    asked = RequestCode.GET_EARLIEST_MSG_STORETIME, {"topic": TOPIC, "queueId": "0"}
    assert code_of(broker.ask(*asked)) == ResponseCode.SYSTEM_BUSY
    store.make_ready()
    assert code_of(broker.ask(*asked)) == ResponseCode.SUCCESS


def test_topic_stats_omit_store_times_that_cannot_be_read() -> None:
    broker, store = build_broker(QUEUE)
    assert store_time(broker.store, QUEUE, 1) is None
    stats = broker.ask(RequestCode.GET_TOPIC_STATS_INFO, {"topic": TOPIC})
    assert code_of(stats) == ResponseCode.SUCCESS
    store.make_ready()
    assert store_time(broker.store, QUEUE, 1) == broker.clock.now_ms()
