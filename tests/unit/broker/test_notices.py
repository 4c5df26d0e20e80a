"""Notices to the members of groups: which groups, when, how many, and what they say."""

import pytest
from administrator import Administrator, join, make_topic

from tianzhou.broker.groups.notices import GROUPS_MAX, PAUSE_S, TOPICS_MAX
from tianzhou.testing.small_broker import RecordingPeer, SmallBroker
from tianzhou.wire import fastjson
from tianzhou.wire._generated_codes import RequestCode
from tianzhou.wire.names import CHANGED_TOPICS
from tianzhou.wire.tables import SubscriptionGroupConfig, TopicConfig, TopicConfigList

CODE = RequestCode.NOTIFY_CONSUMER_IDS_CHANGED


def register(broker: SmallBroker) -> None:
    """What the registration does when the NameServers have responded."""
    broker.slices.topics.topics.begin_registration()()


def settled(broker: SmallBroker, *peers: RecordingPeer) -> None:
    """Let the changes of the set-up be reported and forgotten."""
    register(broker)
    broker.run(seconds=2 * PAUSE_S)
    for peer in peers:
        peer.take_told()


def notices(peer: RecordingPeer) -> list[str | None]:
    """The topics that notices named since the last call; None: the members changed."""
    return [told.ext.get(CHANGED_TOPICS) for told in peer.take_told() if told.code == CODE]


@pytest.mark.parametrize(
    "changed",
    [{"readQueueNums": "3"}, {"writeQueueNums": "1"}, {"perm": "4"}],
)
def test_notice_names_the_topic_whose_queues_or_permission_changed(changed: dict[str, str]) -> None:
    broker = SmallBroker()
    make_topic(broker, "orders", 2)
    reader, other = join(broker, "billing", "orders", "refunds"), join(broker, "audit", "refunds")
    settled(broker, reader, other)
    make_topic(broker, "orders", 2, **changed)
    broker.tick()
    assert notices(reader) == []  # the NameServers have the old route
    register(broker)
    broker.tick()
    assert notices(reader) == ["orders"]
    assert notices(other) == []
    broker.run(seconds=3 * PAUSE_S)
    assert notices(reader) == []


def test_notice_of_a_change_during_a_registration_follows_the_next_one() -> None:
    broker = SmallBroker()
    reader = join(broker, "billing", "orders", "refunds")
    settled(broker, reader)
    make_topic(broker, "orders")
    registered = broker.slices.topics.topics.begin_registration()
    make_topic(broker, "refunds")  # after the registration was encoded
    registered()
    broker.run(seconds=2 * PAUSE_S)
    assert notices(reader) == ["orders"]
    register(broker)
    broker.tick()
    assert notices(reader) == ["refunds"]


def test_notice_of_an_update_without_a_change_is_sent() -> None:
    """A tool that adds a topic to another broker updates this one too: no reader is connected to
    the other broker yet."""
    broker = SmallBroker()
    make_topic(broker, "orders")
    reader = join(broker, "billing", "orders")
    settled(broker, reader)
    make_topic(broker, "orders")
    broker.tick()
    assert notices(reader) == ["orders"]
    make_topic(broker, "orders", 3)  # a change waits for the registration
    broker.run(seconds=2 * PAUSE_S)
    assert notices(reader) == []


def test_notices_of_a_thousand_updates_are_coalesced() -> None:
    broker = SmallBroker()
    names = [f"orders-{number}" for number in range(1_000)]
    reader = join(broker, "billing", *names)
    narrow = join(broker, "audit", "orders-999", port=5001)
    settled(broker, reader, narrow)
    for name in names:
        broker.slices.topics.topics.put(TopicConfig(topic_name=name))
        register(broker)
        broker.clock.advance(ms=2)
        broker.tick()
    broker.run(seconds=2 * PAUSE_S)
    found = notices(reader)
    assert 1 <= len(found) <= 2 / PAUSE_S + 2  # it took two seconds
    assert "" in found  # more topics than a header has room for
    assert notices(narrow) == ["orders-999"]


def test_notices_name_as_many_topics_as_fit() -> None:
    broker = SmallBroker()
    names = [f"orders-{number:03}" for number in range(TOPICS_MAX + 1)]
    few, many = join(broker, "few", *names[1:]), join(broker, "many", *names, port=5001)
    settled(broker, few, many)
    rows = tuple(TopicConfig(topic_name=name) for name in names)
    body = fastjson.encode(TopicConfigList(topic_config_list=rows))
    code = RequestCode.UPDATE_AND_CREATE_TOPIC_LIST
    assert Administrator(broker).ask(code, body).code == 0
    register(broker)
    broker.tick()
    assert notices(few) == [",".join(names[1:])]
    assert notices(many) == [""]


def test_notices_to_many_groups_are_spread_over_ticks() -> None:
    broker = SmallBroker()
    members = [
        join(broker, f"group-{number}", "orders", port=5_000 + number)
        for number in range(GROUPS_MAX + 1)
    ]
    settled(broker, *members)
    make_topic(broker, "orders")
    register(broker)
    watch = broker.slices.groups.notices
    assert watch.tick()
    assert sum(len(notices(member)) for member in members) == GROUPS_MAX
    assert not watch.tick()
    assert sum(len(notices(member)) for member in members) == 1


def test_notices_are_not_sent_to_groups_that_disabled_them() -> None:
    broker = SmallBroker()
    reader = join(broker, "billing", "orders")
    group = SubscriptionGroupConfig(group_name="billing", notify_consumer_ids_changed_enable=False)
    broker.slices.groups.tables.groups.put(group)
    settled(broker, reader)
    make_topic(broker, "orders")
    register(broker)
    broker.tick()
    assert notices(reader) == []


def test_notices_of_topics_are_not_sent_by_a_slave() -> None:
    """It adopts the change from its master, which notifies the same clients."""
    broker = SmallBroker()
    make_topic(broker, "orders")
    broker.stop()
    broker.open_as_slave()
    reader = join(broker, "billing", "orders")
    broker.slices.topics.topics.announce(["orders"])
    register(broker)
    broker.run(seconds=2 * PAUSE_S)
    assert notices(reader) == []


def test_notice_of_a_deleted_topic_is_sent() -> None:
    broker = SmallBroker()
    make_topic(broker, "orders")
    reader = join(broker, "billing", "orders")
    settled(broker, reader)
    Administrator(broker).ask(RequestCode.DELETE_TOPIC_IN_BROKER, topic="orders")
    register(broker)
    broker.tick()
    assert notices(reader) == ["orders"]
