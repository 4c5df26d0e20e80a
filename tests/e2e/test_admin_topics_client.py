"""The admin client and topics, on two brokers."""

from collections.abc import Callable, Iterator

import pytest
from admin_world import commit, send

from tianzhou.base.errors import UsageError
from tianzhou.broker.config import BrokerConfig
from tianzhou.client.errors import TopicNotFound
from tianzhou.client.sync.admin import Admin
from tianzhou.testing import RunningBroker

Pair = tuple[RunningBroker, RunningBroker]


@pytest.fixture
def pair(mq_factory: Callable[..., RunningBroker]) -> Pair:
    first = mq_factory()
    return first, mq_factory(nameserver=first, config=BrokerConfig(name="broker-b"))


@pytest.fixture
def admin(pair: Pair) -> Iterator[Admin]:
    with Admin(nameserver=pair[0].nameserver) as made:
        yield made


def test_topic_created_on_all_brokers_has_a_route_at_once(admin: Admin) -> None:
    admin.topics.create("orders", queues=3)
    state = admin.topics.show("orders")
    assert sorted(state.configs) == ["broker-a", "broker-b"]
    assert all(config.write_queue_nums == 3 for config in state.configs.values())
    assert [(q.queue.broker_name, q.queue.queue_id) for q in state.queues] == [
        (name, number) for name in ("broker-a", "broker-b") for number in range(3)
    ]
    assert (state.count, state.groups) == (0, ())
    assert admin.topics.all() == ["orders"]


def test_topic_created_on_one_broker_keeps_its_attribute(admin: Admin) -> None:
    admin.topics.create("orders", brokers=["broker-b"], message_type="FIFO", order=True)
    (config,) = admin.topics.show("orders").configs.values()
    assert (config.attributes, config.order) == ({"message.type": "FIFO"}, True)
    with pytest.raises(UsageError, match="it knows: broker-a"):
        admin.topics.create("orders", brokers=["broker-z"])


def test_admin_reports_messages_and_groups_of_a_topic(admin: Admin, pair: Pair) -> None:
    admin.topics.create("orders", queues=1)
    send(pair[0], "orders", b"1", b"2")
    send(pair[1], "orders", b"3")
    commit(pair[1], "billing", "orders", offset=1)
    state = admin.topics.show("orders")
    assert (state.count, state.groups) == (3, ("billing",))
    assert [(q.min_offset, q.max_offset) for q in state.queues] == [(0, 2), (0, 1)]
    assert all(q.last_ms for q in state.queues)


def test_internal_topics_are_listed_on_request(admin: Admin) -> None:
    admin.topics.create("orders")
    admin.topics.create("%RETRY%billing")
    assert admin.topics.all() == ["orders"]
    everything = admin.topics.all(internal=True)
    assert {"orders", "%RETRY%billing", "SCHEDULE_TOPIC_XXXX", "broker-a"} <= set(everything)


def test_topic_update_changes_only_the_given_fields(admin: Admin) -> None:
    admin.topics.create("orders", queues=4, message_type="DELAY")
    admin.topics.update("orders", write_queues=6, read_queues=6)
    admin.topics.update("orders", permission=4)
    for config in admin.topics.show("orders").configs.values():
        assert (config.read_queue_nums, config.write_queue_nums, config.perm) == (6, 6, 4)
        assert config.attributes == {"message.type": "DELAY"}


def test_topic_can_shrink_once_its_queues_are_read(admin: Admin, pair: Pair) -> None:
    admin.topics.create("orders", queues=2, brokers=["broker-a"])
    send(pair[0], "orders", b"0", queue_id=0)
    send(pair[0], "orders", b"1", queue_id=1)
    commit(pair[0], "billing", "orders", queue_id=0, offset=0)
    first = admin.topics.shrink("orders", queues=1)
    assert (first.is_done, first.unread) == (False, {"billing": 1})
    (config,) = admin.topics.show("orders").configs.values()
    assert (config.write_queue_nums, config.read_queue_nums) == (1, 2)
    commit(pair[0], "billing", "orders", queue_id=1, offset=1)
    assert admin.topics.shrink("orders", queues=1).is_done
    (config,) = admin.topics.show("orders").configs.values()
    assert (config.write_queue_nums, config.read_queue_nums) == (1, 1)


def test_deleted_topic_is_removed_from_all_brokers(admin: Admin, pair: Pair) -> None:
    admin.topics.create("orders", queues=1)
    send(pair[0], "orders", b"1")
    admin.topics.delete("orders")
    with pytest.raises(TopicNotFound, match="orders"):
        admin.topics.show("orders")
    assert pair[0].stored("orders") == []


def test_admin_rejects_invalid_topics_with_clear_errors(admin: Admin) -> None:
    with pytest.raises(UsageError, match="can't have 0 queues"):
        admin.topics.create("orders", queues=0)
    with pytest.raises(UsageError, match="a b"):
        admin.topics.create("a b")
    with pytest.raises(TopicNotFound):
        admin.topics.update("unheard-of", permission=4)
