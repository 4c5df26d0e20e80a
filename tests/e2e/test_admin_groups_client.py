"""The admin client and groups: members, progress, and offset resets."""

import json
from collections.abc import Iterator

import pytest
from admin_world import commit, member, send

from abuse.raw_client import RawClient, frame, heartbeat_of
from tianzhou.base.errors import UsageError
from tianzhou.client.core.admin_results import LATEST
from tianzhou.client.errors import GroupNotExist, RemoteError, TopicNotFound
from tianzhou.client.sync.admin import Admin
from tianzhou.testing import RunningBroker
from tianzhou.wire._generated_codes import RequestCode
from tianzhou.wire.codec import RESPONSE_FLAG, Header, encode_json
from tianzhou.wire.queues import MessageQueue, decode_queue_offsets


@pytest.fixture
def admin(mq: RunningBroker) -> Iterator[Admin]:
    mq.create_topic("orders", queues=2)
    with Admin(nameserver=mq.nameserver) as made:
        yield made


def queue(number: int) -> MessageQueue:
    return MessageQueue(topic="orders", broker_name="broker-a", queue_id=number)


# Groups


def test_admin_creates_updates_and_deletes_groups(admin: Admin) -> None:
    admin.groups.create("billing", retry_max_times=3)
    assert "billing" in admin.groups.all()
    admin.groups.update("billing", consume_enabled=False)
    (config,) = admin.groups.show("billing").configs.values()
    assert (config.retry_max_times, config.consume_enable) == (3, False)
    admin.groups.delete("billing")
    assert "billing" not in admin.groups.all()
    with pytest.raises(GroupNotExist):
        admin.groups.show("billing")
    with pytest.raises(UsageError, match="two words"):
        admin.groups.create("two words")


def test_deleted_group_leaves_no_offsets_or_topics(admin: Admin, mq: RunningBroker) -> None:
    admin.topics.create("%DLQ%billing")
    commit(mq, "billing", "orders", offset=0)
    assert mq.committed("billing", "orders") == {0: 0}
    admin.groups.delete("billing")
    assert mq.committed("billing", "orders") == {}
    assert "%DLQ%billing" not in admin.topics.all(internal=True)


def test_admin_lists_members_and_subscriptions(admin: Admin, mq: RunningBroker) -> None:
    assert admin.groups.consumers("billing") is None
    with member(mq, "billing", "orders", "me@1"), member(mq, "billing", "orders", "me@2"):
        connected = admin.groups.consumers("billing")
        assert connected is not None
        assert [client.client_id for client in connected.connection_set] == ["me@1", "me@2"]
        assert connected.subscription_table["orders"].sub_string == "*"
        assert admin.groups.show("billing").client_ids == ("me@1", "me@2")


def test_admin_lists_producers(admin: Admin, mq: RunningBroker) -> None:
    assert admin.groups.producers("writers", "orders") == []
    with RawClient(mq.broker) as client:
        client.ask(RequestCode.HEART_BEAT, body=heartbeat_of(client="me", producers=("writers",)))
        (found,) = admin.groups.producers("writers", "orders")
        assert found.client_id == "me"
        (known,) = admin.brokers.producers("broker-a")["writers"]
        assert known.client_id == "me"
        assert abs(known.last_update_timestamp - mq.clock.now_ms()) < 10_000


def respond_to_next(client: RawClient, code: int, body: bytes) -> None:
    """Let a consumer respond to the next request that the broker forwards to it."""
    question = client.receive()
    while question.header.code != code:
        question = client.receive()
    header = Header(code=0, opaque=question.header.opaque, flag=RESPONSE_FLAG)
    client.send(frame(encode_json(header), body))


def test_admin_reads_the_running_info_of_a_consumer(admin: Admin, mq: RunningBroker) -> None:
    from concurrent.futures import ThreadPoolExecutor

    name = json.dumps({"topic": "orders", "brokerName": "broker-a", "queueId": 1})
    info = (
        '{"properties":{"PROP_CONSUMEORDERLY":"false"},"mqTable":{'
        + name
        + ':{"commitOffset":7,"cachedMsgCount":2}},"subscriptionSet":[{"topic":"orders"}]}'
    )
    with member(mq, "billing", "orders", "me") as client, ThreadPoolExecutor() as pool:
        asked = pool.submit(admin.groups.running, "billing", "me")
        respond_to_next(client, RequestCode.GET_CONSUMER_RUNNING_INFO, info.encode())
        info = asked.result(120)
    assert info.properties == {"PROP_CONSUMEORDERLY": "false"}
    held = info.queues[queue(1)]
    assert (held.commit_offset, held.cached_msg_count) == (7, 2)
    assert [subscription.topic for subscription in info.subscriptions] == ["orders"]
    with pytest.raises(RemoteError, match="nobody of group billing is not online"):
        admin.groups.running("billing", "nobody")


# Offsets


def test_admin_reports_lag_in_messages_and_seconds(admin: Admin, mq: RunningBroker) -> None:
    mq.clock.hold()
    send(mq, "orders", b"1", b"2")
    commit(mq, "billing", "orders", offset=1)
    mq.clock.advance(minutes=5)
    send(mq, "orders", b"3", queue_id=1)
    mq.clock.advance(minutes=5)
    progress = admin.offsets.progress("billing")
    assert [(row.queue, row.committed, row.end) for row in progress.queues] == [
        (queue(0), 1, 2),
        (queue(1), 0, 1),
    ]
    assert [row.behind_s for row in progress.queues] == [600, 300]
    assert (progress.lag, progress.behind_s) == (2, 600)
    commit(mq, "billing", "orders", offset=2)
    commit(mq, "billing", "orders", queue_id=1, offset=1)
    progress = admin.offsets.progress("billing", "orders")
    assert (progress.lag, progress.behind_s) == (0, 0)


def test_progress_of_an_unknown_group_or_topic_raises(admin: Admin) -> None:
    with pytest.raises(GroupNotExist, match="group biling does not exist"):
        admin.offsets.progress("biling")
    admin.groups.create("billing")
    assert admin.offsets.progress("billing").lag == 0
    assert admin.offsets.progress("billing", "orders").lag == 0
    with pytest.raises(TopicNotFound, match="oders"):
        admin.offsets.progress("billing", "oders")


def test_clone_of_a_group_to_itself_or_of_an_unknown_group_is_rejected(admin: Admin) -> None:
    admin.groups.create("billing")
    with pytest.raises(UsageError, match="source and target are both group 'billing'"):
        admin.offsets.clone("billing", "billing")
    with pytest.raises(GroupNotExist, match="group biling does not exist"):
        admin.offsets.clone("biling", "shipping")


def test_group_reset_to_a_time_moves_its_offsets(admin: Admin, mq: RunningBroker) -> None:
    mq.clock.hold()
    send(mq, "orders", b"1", b"2")
    mq.clock.advance(hours=1)
    now_ms = mq.clock.now_ms()
    send(mq, "orders", b"3", b"4")
    commit(mq, "billing", "orders", offset=4)
    planned = admin.offsets.reset_to_time("billing", "orders", time_ms=now_ms, dry_run=True)
    assert [(move.queue, move.committed, move.target) for move in planned] == [
        (queue(0), 4, 2),
        (queue(1), None, 0),
    ]
    assert planned[0].skipped == -2
    assert mq.committed("billing", "orders") == {0: 4}
    assert admin.offsets.reset_to_time("billing", "orders", time_ms=now_ms) == planned
    assert mq.committed("billing", "orders") == {0: 2, 1: 0}
    moved = admin.offsets.reset_to_time("billing", "orders", time_ms=LATEST)
    assert [move.target for move in moved] == [4, 0]
    assert mq.lag("billing", "orders") == 0


def test_group_reset_moves_connected_consumers(admin: Admin, mq: RunningBroker) -> None:
    send(mq, "orders", b"1")
    with member(mq, "billing", "orders", "me") as client:
        admin.offsets.reset_to_time("billing", "orders", time_ms=0)
        notification = client.receive()
        while notification.header.code != RequestCode.RESET_CONSUMER_CLIENT_OFFSET:
            notification = client.receive()
    assert decode_queue_offsets(notification.body) == {queue(0): 0, queue(1): 0}


def test_group_reset_to_an_offset_moves_one_queue(admin: Admin, mq: RunningBroker) -> None:
    send(mq, "orders", b"1", b"2", b"3")
    commit(mq, "billing", "orders", offset=3)
    planned = admin.offsets.reset_to_offset("billing", queue(0), offset=1, dry_run=True)
    assert (planned.committed, planned.target, planned.skipped) == (3, 1, -2)
    assert mq.committed("billing", "orders") == {0: 3}
    admin.offsets.reset_to_offset("billing", queue(0), offset=1)
    assert mq.committed("billing", "orders") == {0: 1}
    with pytest.raises(UsageError, match="which has 0 to 3"):
        admin.offsets.reset_to_offset("billing", queue(0), offset=4)
    elsewhere = MessageQueue(topic="orders", broker_name="broker-z", queue_id=0)
    with pytest.raises(UsageError, match="broker-z has no queue of orders; these do: broker-a"):
        admin.offsets.reset_to_offset("billing", elsewhere, offset=0)


def test_cloned_group_starts_at_the_offsets_of_another(admin: Admin, mq: RunningBroker) -> None:
    send(mq, "orders", b"1", b"2")
    commit(mq, "billing", "orders", offset=1)
    admin.offsets.clone("billing", "audit")
    assert mq.committed("audit", "orders") == {0: 1}


def test_admin_reads_single_offsets_and_times(admin: Admin, mq: RunningBroker) -> None:
    mq.clock.hold()
    send(mq, "orders", b"1")
    mq.clock.advance(hours=1)
    send(mq, "orders", b"2")
    assert admin.offsets.bounds(queue(0)) == (0, 2)
    assert admin.offsets.by_time(queue(0), time_ms=mq.clock.now_ms()) == 1
    assert admin.offsets.committed("billing", queue(0)) is None
    commit(mq, "billing", "orders", offset=2)
    assert admin.offsets.committed("billing", queue(0)) == 2
