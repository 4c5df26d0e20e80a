"""Who is connected."""

from tianzhou.broker.groups.sessions import Sessions
from tianzhou.testing.small_broker import RecordingPeer
from tianzhou.wire.header import Header
from tianzhou.wire.heartbeat import ConsumerData, SubscriptionData

HEADER = Header(code=34, opaque=1)


def told(*topics: str, version: int = 1, expression: str = "*") -> ConsumerData:
    return ConsumerData(
        group_name="g",
        subscription_data_set=tuple(
            SubscriptionData(topic=topic, sub_string=expression, sub_version=version)
            for topic in topics
        ),
    )


def test_the_first_heartbeat_of_a_consumer_is_news_and_the_next_is_not() -> None:
    sessions, peer = Sessions(), RecordingPeer()
    assert sessions.heard_consumer(told("t"), "c1", HEADER, peer, 1)
    assert not sessions.heard_consumer(told("t"), "c1", HEADER, peer, 2)
    assert sessions.consumers["g"].clients[peer].heard_ms == 2


def test_another_topic_is_news() -> None:
    sessions, peer = Sessions(), RecordingPeer()
    sessions.heard_consumer(told("t"), "c1", HEADER, peer, 1)
    assert sessions.heard_consumer(told("t", "u"), "c1", HEADER, peer, 2)
    assert sessions.heard_consumer(told("u"), "c1", HEADER, peer, 3)
    assert set(sessions.consumers["g"].subscriptions) == {"u"}


def test_the_newest_subscription_counts() -> None:
    sessions, peer = Sessions(), RecordingPeer()
    sessions.heard_consumer(told("t", version=5, expression="b"), "c1", HEADER, peer, 1)
    sessions.heard_consumer(told("t", version=4, expression="a"), "c1", HEADER, peer, 2)
    assert sessions.consumers["g"].subscriptions["t"].sub_string == "b"


def test_members_that_subscribe_differently_are_noticed() -> None:
    sessions, one, other = Sessions(), RecordingPeer(), RecordingPeer()
    sessions.heard_consumer(told("t"), "c1", HEADER, one, 1)
    assert sessions.consumers["g"].is_consistent
    sessions.heard_consumer(told("t", expression="a"), "c2", HEADER, other, 1)
    assert not sessions.consumers["g"].is_consistent
    sessions.remove(other)
    assert sessions.consumers["g"].is_consistent


def test_a_client_that_reconnects_is_one_client() -> None:
    sessions, old, new = Sessions(), RecordingPeer(), RecordingPeer()
    sessions.heard_producer("p", "c1", HEADER, old, 1)
    sessions.heard_producer("p", "c1", HEADER, new, 2)
    assert list(sessions.producers["p"]) == [new]


def test_a_closed_connection_leaves_all_its_groups() -> None:
    sessions, one, other = Sessions(), RecordingPeer(), RecordingPeer()
    sessions.heard_producer("p", "c1", HEADER, one, 1)
    sessions.heard_consumer(told("t"), "c1", HEADER, one, 1)
    sessions.heard_consumer(told("t"), "c2", HEADER, other, 1)
    assert sessions.remove(one) == ["g"]
    assert sessions.producers == {}
    assert list(sessions.consumers["g"].clients) == [other]
    assert sessions.remove(other) == ["g"]
    assert sessions.consumers == {}
    assert sessions.remove(other) == []


def test_who_is_silent_expires() -> None:
    sessions, one, other = Sessions(), RecordingPeer(), RecordingPeer()
    sessions.heard_producer("p", "c1", HEADER, one, 10)
    sessions.heard_consumer(told("t"), "c2", HEADER, other, 20)
    assert sessions.expired(10) == []
    assert sessions.expired(11) == [one]
    assert sessions.expired(21) == [one, other]


def test_leaving_a_group_one_is_not_in_is_no_news() -> None:
    sessions, peer = Sessions(), RecordingPeer()
    assert not sessions.remove_consumer("g", peer)
    sessions.remove_producer("p", peer)
    sessions.heard_consumer(told("t"), "c1", HEADER, peer, 1)
    assert not sessions.remove_consumer("g", RecordingPeer())
    assert sessions.remove_consumer("g", peer)
