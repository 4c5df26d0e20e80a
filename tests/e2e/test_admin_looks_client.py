"""Pages' worth of answers through the admin client: of several brokers, also when one refuses."""

from dataclasses import replace

import pytest

from e2e.admin_world import commit, give_up, send
from tianzhou.broker.config import BrokerConfig
from tianzhou.client.errors import GroupNotExist, TopicNotFound
from tianzhou.client.sync.admin import Admin
from tianzhou.testing import RunningBroker
from tianzhou.wire._generated_codes import RequestCode, ResponseCode

pytestmark = pytest.mark.slow


def test_two_brokers_are_one_world(mq: RunningBroker) -> None:
    config = replace(BrokerConfig(), name="broker-b")
    with RunningBroker(config=config, nameserver=mq) as other:
        for broker in (mq, other):
            broker.create_topic("orders", queues=2)
            send(broker, "orders", b"1", b"2", b"3")
            commit(broker, "billing", "orders", offset=1)
        with Admin(nameserver=mq.nameserver) as admin:
            brokers = admin.looks.brokers()
            assert set(brokers.found) == {"broker-a", "broker-b"}
            assert not brokers.missing
            rows, _ = admin.looks.topics()
            (orders,) = [row for row in rows if row.name == "orders"]
            assert (orders.count, orders.read_queues) == (6, 4)
            groups, _ = admin.looks.groups()
            (billing,) = [row for row in groups if row.name == "billing"]
            assert (billing.lag, billing.topics) == (4, ("orders",))
            assert len(admin.looks.topic("orders").found) == 2
            looks = admin.looks.group("billing").found
            assert sum(q.end - q.committed for look in looks.values() for q in look.queues[:1]) == 4

            # As RocketMQ's own brokers do, which do not know the request.
            code = ResponseCode.REQUEST_CODE_NOT_SUPPORTED
            with other.faults.refuse({RequestCode.LOOK_AT_BROKER}, code):
                brokers = admin.looks.brokers()
            assert set(brokers.found) == {"broker-a"}
            assert set(brokers.missing) == {"broker-b"}


def test_what_no_broker_has_is_an_error(mq: RunningBroker) -> None:
    with Admin(nameserver=mq.nameserver) as admin:
        with pytest.raises(TopicNotFound, match="nowhere"):
            admin.looks.topic("nowhere")
        with pytest.raises(GroupNotExist, match="nobody"):
            admin.looks.group("nobody")


def test_chosen_dead_letters_are_sent_again(mq: RunningBroker) -> None:
    mq.create_topic("orders", queues=1)
    send(mq, "orders", b"1", b"2", b"3")
    give_up(mq, "billing", "orders")
    with Admin(nameserver=mq.nameserver) as admin:
        first, _, third = admin.dead_letters.peek("billing")
        sent = admin.dead_letters.send_again("billing", [third])
        # The first two were not replayed, so neither is what comes behind them.
        assert (sent.count, sent.left) == (1, 3)
        assert admin.dead_letters.send_again("billing", [first]).left == 2
        assert [m.body for m in mq.stored("%RETRY%billing")] == [b"3", b"1"]
        assert admin.dead_letters.replay("billing").count == 2
        assert len(mq.stored("%RETRY%billing")) == 4
