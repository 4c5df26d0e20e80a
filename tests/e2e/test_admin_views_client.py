"""Views for dashboard pages through the admin client: of several brokers, also if one fails."""

from dataclasses import replace

import pytest

from e2e.admin_world import commit, give_up, send
from tianzhou.base.errors import UsageError
from tianzhou.broker.config import BrokerConfig
from tianzhou.client.errors import GroupNotExist, TopicNotFound
from tianzhou.client.sync.admin import Admin
from tianzhou.testing import RunningBroker
from tianzhou.wire._generated_codes import RequestCode, ResponseCode
from tianzhou.wire._generated_headers_admin import ViewMessagesRequest

pytestmark = pytest.mark.slow


def test_views_merge_two_brokers(mq: RunningBroker) -> None:
    config = replace(BrokerConfig(), name="broker-b")
    with RunningBroker(config=config, nameserver=mq) as other:
        for broker in (mq, other):
            broker.create_topic("orders", queues=2)
            send(broker, "orders", b"1", b"2", b"3")
            commit(broker, "billing", "orders", offset=1)
        with Admin(nameserver=mq.nameserver) as admin:
            brokers = admin.views.brokers()
            assert set(brokers.found) == {"broker-a", "broker-b"}
            assert not brokers.missing
            rows, _ = admin.views.topics()
            (orders,) = [row for row in rows if row.name == "orders"]
            assert (orders.count, orders.read_queues) == (6, 4)
            groups, _ = admin.views.groups()
            (billing,) = [row for row in groups if row.name == "billing"]
            assert (billing.lag, billing.topics) == (4, ("orders",))
            assert len(admin.views.topic("orders").found) == 2
            looks = admin.views.group("billing").found
            assert sum(q.end - q.committed for look in looks.values() for q in look.queues[:1]) == 4

            # As RocketMQ's own brokers do, which do not support the request.
            code = ResponseCode.REQUEST_CODE_NOT_SUPPORTED
            with other.faults.refuse({RequestCode.VIEW_BROKER}, code):
                brokers = admin.views.brokers()
            assert set(brokers.found) == {"broker-a"}
            assert set(brokers.missing) == {"broker-b"}
            with other.faults.refuse(
                {RequestCode.LIST_TIMERS, RequestCode.LIST_HALF_MESSAGES}, code
            ):
                assert set(admin.views.timers(count=1)[1].missing) == {"broker-b"}
                assert set(admin.views.transactions(count=1)[1].found) == {"broker-a"}


def test_view_of_messages_is_ordered_by_time_over_all_brokers(mq: RunningBroker) -> None:
    config = replace(BrokerConfig(), name="broker-b")
    with RunningBroker(config=config, nameserver=mq) as other:
        for broker in (mq, other):
            broker.create_topic("orders", queues=2)
        for number in range(6):
            send((mq, other)[number % 2], "orders", b"%d" % number, KEYS="k")
        wanted = ViewMessagesRequest(topic="orders", by="key", count=10, word="k")
        with Admin(nameserver=mq.nameserver) as admin:
            found, looked = admin.views.messages(wanted)
            assert [message.body for message in found] == [b"%d" % n for n in range(6)]
            assert set(looked.found) == {"broker-a", "broker-b"}
            found, looked = admin.views.messages(wanted, broker="broker-b")
            assert [message.body for message in found] == [b"1", b"3", b"5"]
            with pytest.raises(UsageError, match="no broker broker-c"):
                admin.views.messages(wanted, broker="broker-c")
            with pytest.raises(TopicNotFound, match="nowhere"):
                admin.views.messages(ViewMessagesRequest(topic="nowhere", by="newest", count=1))
            look, place = admin.views.broker("broker-b")
            assert look.name == place.name == "broker-b"
            assert look.config["brokerName"] == "broker-b"
            assert look.facts["msgPutTotalTodayNow"] == "3"


def test_view_of_a_reset_includes_its_plan(mq: RunningBroker) -> None:
    mq.create_topic("orders", queues=2)
    send(mq, "orders", b"1", b"2", b"3")
    commit(mq, "billing", "orders", offset=1)
    with Admin(nameserver=mq.nameserver) as admin:
        for time_ms, targets in ((0, [0, 0]), (-1, [3, 0])):
            look = admin.views.group("billing", move_in="orders", time_ms=time_ms).found["broker-a"]
            assert [move.target for move in look.moves] == targets
            assert [move.committed for move in look.moves] == [1, -1]
        assert not admin.views.group("billing").found["broker-a"].moves
        assert not admin.views.group("billing", move_in="nowhere").found["broker-a"].moves


def test_view_of_an_unknown_name_raises(mq: RunningBroker) -> None:
    with Admin(nameserver=mq.nameserver) as admin:
        with pytest.raises(TopicNotFound, match="nowhere"):
            admin.views.topic("nowhere")
        with pytest.raises(GroupNotExist, match="nobody"):
            admin.views.group("nobody")


def test_replay_messages_records_what_it_sent_out_of_order(mq: RunningBroker) -> None:
    mq.create_topic("orders", queues=1)
    send(mq, "orders", b"1", b"2", b"3")
    give_up(mq, "billing", "orders")
    with Admin(nameserver=mq.nameserver) as admin:
        first, second, third = admin.dlq.peek("billing")
        sent = admin.dlq.replay_messages("billing", [third])
        assert (sent.count, sent.left, sent.skipped) == (1, 2, 0)
        assert admin.dlq.replayed("billing", [first, second, third]) == {third.offset_id}
        assert admin.dlq.recorded_groups() == {"billing"}
        # A second request for it sends it only if asked to.
        sent = admin.dlq.replay_messages("billing", [first, third])
        assert (sent.count, sent.left, sent.skipped) == (1, 1, 1)
        assert admin.dlq.replay_messages("billing", [third], again=True).count == 1
        assert [m.body for m in mq.stored("%RETRY%billing")] == [b"3", b"1", b"3"]
        # A replay of all sends the only one that is left, and the broker's own count agrees.
        done = admin.dlq.replay("billing")
        assert (done.count, done.left) == (1, 0)
        assert [m.body for m in mq.stored("%RETRY%billing")][3:] == [b"2"]
        (row,) = (row for row in admin.views.groups()[0] if row.name == "billing")
        assert (row.dead, row.dead_not_replayed) == (3, 0)


def test_replay_record_does_not_cover_later_dead_letters(mq: RunningBroker) -> None:
    """A group that was deleted and created again reuses the offsets of its dead letters."""
    mq.create_topic("orders", queues=1)
    send(mq, "orders", b"1", b"2")
    give_up(mq, "billing", "orders")
    with Admin(nameserver=mq.nameserver) as admin:
        admin.dlq.replay_messages("billing", admin.dlq.peek("billing")[1:])
        admin.groups.delete("billing")
        mq.clock.advance(minutes=1)
        mq.wait_until(lambda: "%DLQ%billing" not in admin.topics.all(internal=True))
        give_up(mq, "billing", "orders")
        mq.wait_until(lambda: admin.dlq.show("billing").count == 2)
        assert admin.dlq.show("billing").not_replayed == 2
        assert admin.dlq.replay("billing").count == 2
