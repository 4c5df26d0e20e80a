"""Pages of a dashboard: what each answer says of a broker whose state is known."""

from collections.abc import Callable

import pytest
from administrator import Administrator, join, make_topic

from tianzhou.broker.groups import admin_offsets, lags
from tianzhou.broker.observe import group_rows as group_rows_module
from tianzhou.broker.observe import views as admin_views
from tianzhou.broker.observe.views import TROUBLED_MAX
from tianzhou.testing.small_broker import RecordingPeer, SmallBroker
from tianzhou.wire._generated_codes import RequestCode, ResponseCode
from tianzhou.wire._generated_headers_pull import PullMessageRequest
from tianzhou.wire.view_bodies import (
    BrokerView,
    GroupRow,
    GroupView,
    TopicRow,
    TopicView,
    decode_broker_view,
    decode_group_view,
    decode_groups_view,
    decode_topic_view,
    decode_topics_view,
)


def look_at_broker(broker: SmallBroker) -> BrokerView:
    return decode_broker_view(Administrator(broker).ask(RequestCode.VIEW_BROKER).body)


def topic_rows(broker: SmallBroker) -> dict[str, TopicRow]:
    answer = Administrator(broker).ask(RequestCode.VIEW_TOPICS)
    return {row.name: row for row in decode_topics_view(answer.body).topics}


def look_at_topic(broker: SmallBroker, name: str) -> TopicView:
    return decode_topic_view(Administrator(broker).ask(RequestCode.VIEW_TOPIC, topic=name).body)


def group_rows(broker: SmallBroker) -> dict[str, GroupRow]:
    answer = Administrator(broker).ask(RequestCode.VIEW_GROUPS)
    return {row.name: row for row in decode_groups_view(answer.body).groups}


def look_at_group(broker: SmallBroker, name: str) -> GroupView:
    return decode_group_view(Administrator(broker).ask(RequestCode.VIEW_GROUP, group=name).body)


def commit(broker: SmallBroker, group: str, topic: str, offset: int, queue_id: int = 0) -> None:
    ext = {"consumerGroup": group, "topic": topic, "queueId": str(queue_id)}
    answer = broker.ask(RequestCode.UPDATE_CONSUMER_OFFSET, ext | {"commitOffset": str(offset)})
    assert answer is not None
    assert answer.code == 0


def pull(broker: SmallBroker, peer: RecordingPeer, topic: str, queue_id: int, offset: int) -> None:
    fields = PullMessageRequest(
        consumer_group="billing",
        topic=topic,
        queue_id=queue_id,
        queue_offset=offset,
        max_msg_nums=32,
        sys_flag=4,
        commit_offset=0,
        suspend_timeout_ms=0,
        subscription="*",
        sub_version=0,
    )
    assert broker.ask(RequestCode.PULL_MESSAGE, fields.to_ext(), peer=peer) is not None


def world() -> SmallBroker:
    """Six messages in two queues; billing has confirmed two of the first."""
    broker = SmallBroker()
    make_topic(broker, "orders", 2)
    for number in range(6):
        broker.send("orders", b"%d" % number, queue_id=number % 2)
        broker.clock.advance(ms=1000)
    commit(broker, "billing", "orders", 2)
    return broker


# The broker


def test_broker_view_has_its_identity_and_activity() -> None:
    broker = world()
    look = look_at_broker(broker)
    assert (look.name, look.cluster) == ("broker-a", "DefaultCluster")
    assert (look.is_broken, look.refusal, look.damaged, look.permission) == (False, "", 0, 6)
    assert look.now_ms == broker.clock.now_ms()
    assert look.started_ms == look.now_ms - 6000
    assert (look.put_today, look.totals.topics, look.totals.groups) == (6, 1, 1)
    assert look.totals.lag == 4
    assert [row.name for row in look.troubled] == ["billing"]
    assert look.disk.log_size == broker.store.watermarks.appended
    assert (look.disk.total, look.disk.free) == broker.store.usage
    assert look.put_longest_ms >= look.put_p99_ms >= 0


def test_broker_view_has_recent_rates_and_their_history() -> None:
    broker = SmallBroker()
    for _ in range(30):
        broker.send("orders", b"x")
        broker.run(seconds=1, step_ms=500)
    look = look_at_broker(broker)
    assert 0.9 < look.put_per_second < 1.1
    assert look.history.step_s == 2
    assert look.history.puts[-3:] == (1.0, 1.0, 1.0)
    assert [row.name for row in look.busiest] == ["orders"]


# Topics


def test_topics_view_lists_topics_with_their_contents() -> None:
    rows = topic_rows(world())
    orders = rows["orders"]
    assert (orders.count, orders.read_queues, orders.write_queues) == (6, 2, 2)
    assert (orders.groups, orders.is_system, orders.perm) == (1, False, 6)
    assert rows["TBW102"].is_system


def test_topic_view_lists_queues_producers_and_readers() -> None:
    broker, peer = world(), RecordingPeer("10.3.3.3", 777)
    broker.heartbeat(peer, "writer-1", producers=("shop",))
    broker.send("orders", b"x", peer=peer)
    look = look_at_topic(broker, "orders")
    assert [(q.min_offset, q.max_offset) for q in look.queues] == [(0, 4), (0, 3)]
    assert look.queues[0].last_ms == broker.clock.now_ms()
    newest = look.producers[0]
    assert (newest.address, newest.client_id, newest.group) == ("10.3.3.3:777", "writer-1", "shop")
    assert [p.client_id for p in look.producers[1:]] == [""]
    (reader,) = look.readers
    assert (reader.group, reader.lag, reader.members) == ("billing", 5, 0)
    assert reader.oldest_ms == broker.clock.now_ms() - 5000
    assert look.hours == (7,)


def test_topic_view_of_an_unknown_topic_is_rejected() -> None:
    answer = Administrator(SmallBroker()).ask(RequestCode.VIEW_TOPIC, topic="nowhere")
    assert (answer.code, "nowhere" in answer.remark) == (ResponseCode.TOPIC_NOT_EXIST, True)


# Groups


def test_groups_view_without_members_has_only_the_lag() -> None:
    broker = world()
    row = group_rows(broker)["billing"]
    assert (row.lag, row.members, row.topics) == (4, 0, ("orders",))
    assert row.oldest_ms == broker.clock.now_ms() - 5000
    assert row.moved_ms == broker.clock.now_ms()
    assert (row.stuck, row.retrying, row.dead) == (0, 0, 0)
    assert group_rows(broker)["TOOLS_CONSUMER"].is_system


def test_group_view_marks_stuck_queues() -> None:
    broker = world()
    peer = join(broker, "billing", "orders")
    pull(broker, peer, "orders", 0, 2)
    assert group_rows(broker)["billing"].stuck == 0
    for _ in range(3):
        broker.run(seconds=60, step_ms=1000)
    row = group_rows(broker)["billing"]
    # No member reads the second queue, and none has pulled the first again.
    assert row.stuck == 2
    assert row.stuck_ms < broker.clock.now_ms() - 60_000
    look = look_at_group(broker, "billing")
    kinds = {(event.queue_id, event.kind) for event in look.events}
    assert kinds == {(0, "not_pulled"), (1, "unowned")}
    assert all("billing" in event.said and event.remedy for event in look.events)
    assert [event.kind for event in look_at_broker(broker).events] == ["not_pulled", "unowned"]
    commit(broker, "billing", "orders", 3)
    commit(broker, "billing", "orders", 3, queue_id=1)
    broker.run(seconds=60, step_ms=1000)
    assert group_rows(broker)["billing"].stuck == 0
    assert all(event.ended_ms for event in look_at_broker(broker).events)


def test_group_view_keeps_the_last_pull_time_of_a_reader_that_left() -> None:
    broker = world()
    peer = join(broker, "billing", "orders", client_id="worker-1")
    pull(broker, peer, "orders", 0, 2)
    pulled_ms = broker.clock.now_ms()
    peer.close()
    broker.run(seconds=5, step_ms=1000)
    first, second = (
        row for row in look_at_group(broker, "billing").queues if row.topic == "orders"
    )
    assert (first.owner, first.pulled_ms) == ("", pulled_ms)
    assert second.pulled_ms == 0


def test_group_view_lists_members_and_every_queue() -> None:
    broker = world()
    peer = join(broker, "billing", "orders", client_id="worker-1")
    pull(broker, peer, "orders", 0, 2)
    look = look_at_group(broker, "billing")
    (member,) = look.members
    assert (member.client_id, member.language, member.address) == ("worker-1", "JAVA", peer.remote)
    assert [(w.topic, w.kind, w.expression) for w in member.wants] == [("orders", "TAG", "*")]
    assert member.heard_ms == broker.clock.now_ms()
    first, second = (row for row in look.queues if row.topic == "orders")
    assert (first.committed, first.end, first.owner) == (2, 3, "worker-1")
    assert first.pulled_ms == first.moved_ms == broker.clock.now_ms()
    assert (second.committed, second.end, second.owner, second.pulled_ms) == (-1, 3, "", 0)
    assert (look.message_model, look.is_ordered) == ("CLUSTERING", False)
    assert look.row == group_rows(broker)["billing"]


def test_group_view_shows_the_address_of_an_anonymous_reader() -> None:
    broker, peer = world(), RecordingPeer("10.4.4.4", 444)
    pull(broker, peer, "orders", 0, 2)
    assert look_at_group(broker, "billing").queues[0].owner == "10.4.4.4:444"


def test_groups_view_separates_lost_members_from_no_members() -> None:
    broker = world()
    peer = join(broker, "billing", "orders")
    assert not group_rows(broker)["billing"].is_abandoned
    peer.close()
    broker.slices.groups.clients.remove_client(peer)
    row = group_rows(broker)["billing"]
    assert (row.members, row.is_abandoned) == (0, True)
    commit(broker, "archive", "orders", 1)
    assert not group_rows(broker)["archive"].is_abandoned
    join(broker, "billing", "orders")
    assert not group_rows(broker)["billing"].is_abandoned


def test_group_view_marks_members_with_different_subscriptions() -> None:
    broker = world()
    join(broker, "billing", "orders", client_id="a", port=1)
    assert group_rows(broker)["billing"].is_consistent
    join(broker, "billing", "payments", client_id="b", port=2)
    assert not group_rows(broker)["billing"].is_consistent


def test_group_view_counts_dead_letters_beside_the_lag() -> None:
    broker = world()
    for message in broker.messages("orders")[:2]:
        ext = {
            "offset": str(message.physical_offset),
            "group": "billing",
            "delayLevel": "-1",
            "originMsgId": message.offset_id,
            "originTopic": "orders",
        }
        answer = broker.ask(RequestCode.CONSUMER_SEND_MSG_BACK, ext)
        assert answer is not None
        assert answer.code == 0
    row = group_rows(broker)["billing"]
    assert (row.dead, row.dead_not_replayed) == (2, 2)
    assert row.dead_ms == broker.clock.now_ms()
    commit(broker, "billing", "%DLQ%billing", 1)
    row = group_rows(broker)["billing"]
    assert (row.dead, row.dead_not_replayed, row.lag) == (2, 1, 4)
    assert look_at_broker(broker).totals.dead == 2


def test_group_view_of_an_unknown_group_is_rejected() -> None:
    answer = Administrator(SmallBroker()).ask(RequestCode.VIEW_GROUP, group="nobody")
    assert (answer.code, "nobody" in answer.remark) == (
        ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
        True,
    )


def test_group_view_with_a_limit_has_the_queues_with_the_largest_lag() -> None:
    broker = world()
    make_topic(broker, "other", 3)
    for queue_id, count in enumerate((1, 5, 2)):
        for _ in range(count):
            broker.send("other", queue_id=queue_id)
        commit(broker, "billing", "other", 0, queue_id)
    administrator = Administrator(broker)

    def ask(**ext: str) -> GroupView:
        response = administrator.ask(RequestCode.VIEW_GROUP, group="billing", **ext)
        return decode_group_view(response.body)

    whole, limited = ask(), ask(queuesMax="2")
    assert whole.queue_count == limited.queue_count == len(whole.queues) == 5
    lags = sorted((queue.lag for queue in whole.queues), reverse=True)
    assert [queue.lag for queue in limited.queues] == lags[:2] == [5, 3]
    assert limited.owned == whole.owned
    filtered = ask(queuesMax="2", queuesLike="the")
    assert [(queue.topic, queue.lag) for queue in filtered.queues] == [("other", 5), ("other", 2)]
    assert filtered.queue_count == 3
    for none in ("0", "-1"):
        assert ask(queuesMax=none).queues == ()


def test_groups_view_excludes_internal_groups_and_dead_letters() -> None:
    broker = world()
    dead = "%DLQ%billing"
    make_topic(broker, dead, 1)
    broker.send(dead)
    commit(broker, "billing", dead, 0)
    broker.slices.groups.tables.offsets.put("CID_RMQ_SYS_TRANS", "orders", 0, 0)
    look = look_at_broker(broker)
    assert look.totals.lag == 4
    assert [row.name for row in look.troubled] == ["billing"]
    assert [reader.lag for reader in look_at_topic(broker, dead).readers] == [0]
    assert [reader.oldest_ms for reader in look_at_topic(broker, dead).readers] == [0]


def test_groups_view_counts_troubled_groups_worst_first() -> None:
    broker = world()
    for number in range(TROUBLED_MAX + 20):
        commit(broker, f"idle-{number}", "orders", 3)
    commit(broker, "off", "orders", 3)
    commit(broker, "off", "orders", 3, queue_id=1)
    ext = {"groupName": "off", "consumeEnable": "false"}
    body = b'{"groupName":"off","consumeEnable":false}'
    assert broker.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, ext, body)
    look = look_at_broker(broker)
    assert (len(look.troubled), look.troubled_count) == (TROUBLED_MAX, TROUBLED_MAX + 22)
    assert look.troubled[0].name == "off", "switched off, although it has read everything"
    assert look.troubled[1].name == "billing", "the largest lag"


@pytest.mark.parametrize(
    ("code", "ext"),
    [
        (RequestCode.VIEW_BROKER, {}),
        (RequestCode.VIEW_TOPICS, {}),
        (RequestCode.VIEW_GROUPS, {}),
        (RequestCode.VIEW_GROUP, {"group": "billing"}),
        (RequestCode.GET_CONSUME_STATS, {"consumerGroup": "billing"}),
        (RequestCode.GET_BROKER_CONSUME_STATS, {"isOrder": "false"}),
    ],
)
def test_view_request_with_many_queues_is_spread_over_loop_rounds(
    code: RequestCode, ext: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (lags, group_rows_module, admin_views, admin_offsets):
        for name, count in (("ROWS_PER_STEP", 10), ("LOOKUPS_PER_STEP", 5)):
            monkeypatch.setattr(module, name, count, raising=hasattr(module, name))
    broker, rounds, peer = SmallBroker(), list[Callable[[], None]](), RecordingPeer()
    join(broker, "billing")
    for number in range(60):
        make_topic(broker, f"topic-{number}", 4)
        commit(broker, "billing", f"topic-{number}", 0)
    broker.requests.router.run_later = rounds.append
    assert broker.ask(code, ext, peer=peer) is None
    count = 0
    while rounds:
        rounds.pop()()
        count += 1
        broker.slices.groups.tables.offsets.put(
            f"late-{count}", "topic-1", 0, 0
        )  # others go on meanwhile
    assert [answer.code for answer in peer.answers()] == [0]
    assert count >= 15, "of 240 queues, a dozen in each"
