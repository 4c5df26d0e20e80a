"""The watchdog: each thing that stops a consumer silently, planted, with a clock to hold."""

import logging

import pytest
from administrator import join, make_topic

from tianzhou.base.kinds import QueueOffset
from tianzhou.broker.config import BrokerConfig
from tianzhou.broker.observe import watchdog as module
from tianzhou.broker.observe.watchdog import Finding, Kind
from tianzhou.testing.small_broker import RecordingPeer, SmallBroker
from tianzhou.wire import fastjson
from tianzhou.wire._generated_codes import RequestCode
from tianzhou.wire._generated_headers_pull import PullMessageRequest
from tianzhou.wire.codec import Header, encode_command
from tianzhou.wire.queues import LockBatch, MessageQueue

GROUP, TOPIC = "billing", "orders"
STUCK_S = 120
ORDERS_0 = MessageQueue(topic=TOPIC, broker_name="broker-a", queue_id=0)


def small(*, queues: int = 1) -> SmallBroker:
    broker = SmallBroker(config=BrokerConfig(consumer_stuck_after_ms=STUCK_S * 1000))
    make_topic(broker, TOPIC, queues)
    return broker


def pull(
    broker: SmallBroker, peer: RecordingPeer, offset: int, *, queue_id: int = 0, wait_ms: int = 0
) -> None:
    fields = PullMessageRequest(
        consumer_group=GROUP,
        topic=TOPIC,
        queue_id=queue_id,
        queue_offset=offset,
        max_msg_nums=32,
        sys_flag=4 | (2 if wait_ms else 0),
        commit_offset=0,
        suspend_timeout_ms=wait_ms,
        subscription="*",
        sub_version=0,
    )
    header = Header(code=RequestCode.PULL_MESSAGE, opaque=1, ext=fields.to_ext())
    broker.received(peer, encode_command(header))
    peer.answers()


def confirm(broker: SmallBroker, offset: int, *, queue_id: int = 0) -> None:
    ext = {
        "consumerGroup": GROUP,
        "topic": TOPIC,
        "queueId": str(queue_id),
        "commitOffset": str(offset),
    }
    assert broker.ask(RequestCode.UPDATE_CONSUMER_OFFSET, ext)


def lock(broker: SmallBroker, client_id: str) -> None:
    asked = LockBatch(client_id=client_id, consumer_group=GROUP, mq_set=(ORDERS_0,))
    broker.ask(RequestCode.LOCK_BATCH_MQ, {}, fastjson.encode(asked))


def wait(broker: SmallBroker, seconds: float) -> None:
    broker.run(seconds=seconds, step_ms=1_000)


def events(broker: SmallBroker) -> list[Finding]:
    return broker.slices.observe.watchdog.events()


def kinds(broker: SmallBroker) -> list[tuple[Kind, bool]]:
    return [(one.kind, one.ended_ms > 0) for one in events(broker)]


def test_watchdog_reports_an_unread_queue(caplog: pytest.LogCaptureFixture) -> None:
    broker = small(queues=2)
    member = join(broker, GROUP, TOPIC)
    for queue_id in range(2):
        broker.send(TOPIC, queue_id=queue_id)
    for second in range(STUCK_S + 20):
        pull(broker, member, 0, queue_id=0)
        confirm(broker, 1)
        with caplog.at_level(logging.WARNING):
            wait(broker, 1)
        if second < STUCK_S - 2:
            assert not events(broker)
    (found,) = events(broker)
    assert (found.kind, found.group, found.topic, found.queue_id) == (
        Kind.UNOWNED,
        GROUP,
        TOPIC,
        1,
    )
    assert found.waiting == 1
    assert STUCK_S <= found.stuck_s <= STUCK_S + 20
    assert "no member has read queue 1 of orders" in found.text
    assert "tianzhou group show billing" in found.remedy
    assert [r.message for r in caplog.records].count("group.unowned") == 1
    # Members that missed a membership change are notified again.
    assert RequestCode.NOTIFY_CONSUMER_IDS_CHANGED in [told.code for told in member.take_told()]
    pull(broker, member, 0, queue_id=1)
    confirm(broker, 1, queue_id=1)
    wait(broker, STUCK_S / module.ROUNDS + 1)
    assert kinds(broker) == [(Kind.UNOWNED, True)]
    assert broker.slices.observe.watchdog.counts()[Kind.UNOWNED] == 0
    assert broker.slices.observe.watchdog.found_counts[Kind.UNOWNED] == 1


def test_watchdog_allows_time_to_replace_an_owner() -> None:
    broker = small()
    member = join(broker, GROUP, TOPIC)
    join(broker, GROUP, TOPIC, client_id="client-2", port=5001)
    broker.send(TOPIC)
    for _ in range(STUCK_S - 2):
        pull(broker, member, 0)
        wait(broker, 1)
    member.close()
    broker.slices.groups.clients.remove_client(member)
    wait(broker, STUCK_S / 2 - 2)
    assert not events(broker)
    wait(broker, STUCK_S / 4)
    assert kinds(broker) == [(Kind.UNOWNED, False)]


def test_watchdog_reports_an_owner_that_does_not_pull() -> None:
    broker = small()
    member = join(broker, GROUP, TOPIC, client_id="10.1.1.1@7")
    for _ in range(3):
        broker.send(TOPIC)
    pull(broker, member, 0)
    wait(broker, STUCK_S + 20)
    (found,) = events(broker)
    assert (found.kind, found.client_id, found.waiting) == (Kind.NOT_PULLED, "10.1.1.1@7", 3)
    assert "10.1.1.1@7 of group billing has queue 0 of orders" in found.text


def test_watchdog_counts_a_held_pull() -> None:
    broker = small()
    member = join(broker, GROUP, TOPIC)
    broker.send(TOPIC)
    for _ in range(4):  # half a minute each: the message is in hand, and takes long
        pull(broker, member, 1, wait_ms=40_000)
        wait(broker, 38)
        broker.slices.fetch.pull.tick()
    assert not events(broker)


def test_watchdog_reports_a_stuck_offset_with_growing_lag() -> None:
    broker = small()
    member = join(broker, GROUP, TOPIC)
    broker.send(TOPIC, named={"KEYS": "o-17"})
    for _ in range(STUCK_S + 20):
        pull(broker, member, 0)
        wait(broker, 1)
    assert not events(broker)  # it may be slow, but nothing more has come
    broker.send(TOPIC)
    for _ in range(20):
        pull(broker, member, 1)
        wait(broker, 1)
    (found,) = events(broker)
    (first, _) = broker.messages(TOPIC)
    assert (found.kind, found.offset, found.waiting) == (Kind.FROZEN, 0, 2)
    assert (found.message_id, found.keys) == (first.message_id, "o-17")
    assert f"tianzhou message show orders {first.message_id}" in found.remedy
    assert "tianzhou group reset billing orders --queue 0 --to-offset 1" in found.remedy


def test_watchdog_reports_a_blocked_ordered_queue(caplog: pytest.LogCaptureFixture) -> None:
    broker = small()
    member = join(broker, GROUP, TOPIC, client_id="ordered")
    for number in range(5):
        broker.send(TOPIC, named={"KEYS": f"o-{number}"})
    confirm(broker, 2)
    with caplog.at_level(logging.WARNING):
        for _ in range(STUCK_S + 20):
            lock(broker, "ordered")
            pull(broker, member, 5)
            wait(broker, 1)
    (found,) = events(broker)
    blocker = broker.messages(TOPIC)[2]
    assert (found.kind, found.offset, found.waiting) == (Kind.BLOCKED, 2, 3)
    assert (found.message_id, found.keys) == (blocker.message_id, "o-2")
    assert f"not got beyond message {blocker.message_id} at offset 2" in found.text
    (line,) = [r for r in caplog.records if r.message == "group.blocked"]
    assert blocker.message_id in str(vars(line)["said"])
    confirm(broker, 5)
    wait(broker, STUCK_S / module.ROUNDS + 1)
    assert kinds(broker) == [(Kind.BLOCKED, True)]


def test_watchdog_reports_members_with_different_subscriptions() -> None:
    broker = small()
    make_topic(broker, "audits", 1)
    join(broker, GROUP, TOPIC)
    join(broker, GROUP, "audits", client_id="client-2", port=5001)
    wait(broker, STUCK_S - 20)
    assert not events(broker)  # a rolling change is over sooner
    wait(broker, 50)
    (found,) = events(broker)
    assert (found.kind, found.group, found.queue_id) == (Kind.SUBSCRIPTIONS_DIFFER, GROUP, -1)


def test_watchdog_ignores_a_group_that_makes_progress() -> None:
    broker = small()
    member = join(broker, GROUP, TOPIC)
    for number in range(STUCK_S // 2):
        broker.send(TOPIC)
        broker.send(TOPIC)
        if number % 10 == 0:
            pull(broker, member, number)
            confirm(broker, number)  # slowly, and ever further behind
        wait(broker, 4)
    assert not events(broker)


def test_watchdog_ignores_groups_without_members() -> None:
    broker = small()
    member = join(broker, GROUP, TOPIC)
    broker.send(TOPIC)
    wait(broker, STUCK_S + 20)
    assert kinds(broker) == [(Kind.UNOWNED, False)]
    broker.slices.groups.clients.remove_client(member)
    wait(broker, STUCK_S)
    assert kinds(broker) == [(Kind.UNOWNED, True)]


def test_watchdog_ignores_messages_older_than_the_group() -> None:
    broker = small()
    for _ in range(2):
        broker.send(TOPIC)
    # Its first message has expired: a group without an offset begins behind the last one.
    (queue,) = broker.store.queues.of_topic(TOPIC)
    queue.min_offset = QueueOffset(1)
    join(broker, GROUP, TOPIC)
    wait(broker, 2 * STUCK_S)
    assert not events(broker)
    broker.send(TOPIC)
    wait(broker, 2 * STUCK_S)
    assert kinds(broker) == [(Kind.UNOWNED, False)]


def test_watchdog_spreads_many_queues_over_ticks_and_logs_few_lines(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "ROWS_PER_TICK", 10)
    monkeypatch.setattr(module, "FINDINGS_MAX", 30)
    broker = small(queues=40)
    member = join(broker, GROUP, TOPIC)
    for queue_id in range(40):
        broker.send(TOPIC, queue_id=queue_id)
    broker.clock.advance(seconds=STUCK_S)
    watchdog = broker.slices.observe.watchdog
    assert [watchdog.tick() for _ in range(5)] == [True] * 4 + [False]
    broker.clock.advance(seconds=STUCK_S)
    with caplog.at_level(logging.WARNING):
        while watchdog.tick():
            pass
    assert len(events(broker)) == 30
    codes = [told.code for told in member.take_told()]
    assert codes.count(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED) == 1
    assert watchdog.left_out == 10
    said = [r.message for r in caplog.records]
    assert said.count("group.unowned") == module.LINES_MAX
    (more,) = [r for r in caplog.records if r.message == "watchdog.more"]
    assert vars(more)["count"] == 20


def test_watchdog_truncates_client_supplied_text() -> None:
    broker = small()
    member = join(broker, GROUP, TOPIC, client_id="x" * 10_000)
    broker.send(TOPIC, named={"KEYS": "k" * 500})
    pull(broker, member, 0)
    wait(broker, STUCK_S + 20)
    (found,) = events(broker)
    assert len(found.client_id) == len(found.keys) == 256


def test_watchdog_ignores_internal_groups() -> None:
    broker = small()
    join(broker, "TOOLS_CONSUMER", TOPIC)
    broker.send(TOPIC)
    wait(broker, STUCK_S * 2)
    assert events(broker) == []
