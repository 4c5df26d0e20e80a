"""Sessions: clients, their groups and subscriptions."""

import pytest

from tianzhou.base.kinds import queue_key
from tianzhou.broker.groups import groups
from tianzhou.broker.groups.groups import Client, Readers, Sessions
from tianzhou.testing.small_broker import RecordingPeer, SmallBroker
from tianzhou.wire._generated_codes import RequestCode
from tianzhou.wire._generated_headers_pull import PullMessageRequest
from tianzhou.wire.codec import Language
from tianzhou.wire.heartbeat import ConsumerData, SubscriptionData


def client(client_id: str, peer: RecordingPeer, heartbeat_ms: int) -> Client:
    return Client(client_id, peer, Language.JAVA, 400, heartbeat_ms)


def data_of(*topics: str, version: int = 1, expression: str = "*") -> ConsumerData:
    return ConsumerData(
        group_name="g",
        subscription_data_set=tuple(
            SubscriptionData(topic=topic, sub_string=expression, sub_version=version)
            for topic in topics
        ),
    )


def test_session_first_heartbeat_is_a_change_and_the_next_is_not() -> None:
    sessions, peer = Sessions(), RecordingPeer()
    assert sessions.record_consumer(data_of("t"), client("c1", peer, 1))
    assert not sessions.record_consumer(data_of("t"), client("c1", peer, 2))
    assert sessions.consumers["g"].clients[peer].heartbeat_ms == 2


def test_session_with_another_topic_is_a_change() -> None:
    sessions, peer = Sessions(), RecordingPeer()
    sessions.record_consumer(data_of("t"), client("c1", peer, 1))
    assert sessions.record_consumer(data_of("t", "u"), client("c1", peer, 2))
    assert sessions.record_consumer(data_of("u"), client("c1", peer, 3))
    assert set(sessions.consumers["g"].subscriptions) == {"u"}


def test_session_keeps_the_newest_subscription() -> None:
    sessions, peer = Sessions(), RecordingPeer()
    sessions.record_consumer(data_of("t", version=5, expression="b"), client("c1", peer, 1))
    sessions.record_consumer(data_of("t", version=4, expression="a"), client("c1", peer, 2))
    assert sessions.consumers["g"].subscriptions["t"].sub_string == "b"


def test_session_with_different_subscriptions_is_inconsistent() -> None:
    sessions, one, other = Sessions(), RecordingPeer(), RecordingPeer()
    sessions.record_consumer(data_of("t"), client("c1", one, 1))
    assert sessions.consumers["g"].is_consistent
    sessions.record_consumer(data_of("t", expression="a"), client("c2", other, 1))
    assert not sessions.consumers["g"].is_consistent
    sessions.remove(other)
    assert sessions.consumers["g"].is_consistent


def test_session_of_a_reconnected_client_replaces_the_old_one() -> None:
    sessions, old, new = Sessions(), RecordingPeer(), RecordingPeer()
    sessions.record_producer("p", client("c1", old, 1))
    sessions.record_producer("p", client("c1", new, 2))
    assert list(sessions.producers["p"]) == [new]


def test_session_of_a_closed_connection_leaves_all_its_groups() -> None:
    sessions, one, other = Sessions(), RecordingPeer(), RecordingPeer()
    sessions.record_producer("p", client("c1", one, 1))
    sessions.record_consumer(data_of("t"), client("c1", one, 1))
    sessions.record_consumer(data_of("t"), client("c2", other, 1))
    assert sessions.remove(one) == ["g"]
    assert sessions.producers == {}
    assert list(sessions.consumers["g"].clients) == [other]
    assert sessions.remove(other) == ["g"]
    assert sessions.consumers == {}
    assert sessions.remove(other) == []


def test_session_of_a_silent_client_expires() -> None:
    sessions, one, other = Sessions(), RecordingPeer(), RecordingPeer()
    sessions.record_producer("p", client("c1", one, 10))
    sessions.record_consumer(data_of("t"), client("c2", other, 20))
    assert sessions.expired(10) == []
    assert sessions.expired(11) == [one]
    assert sessions.expired(21) == [one, other]


def test_session_leaving_an_unjoined_group_changes_nothing() -> None:
    sessions, peer = Sessions(), RecordingPeer()
    assert not sessions.remove_consumer("g", peer)
    sessions.remove_producer("p", peer)
    sessions.record_consumer(data_of("t"), client("c1", peer, 1))
    assert not sessions.remove_consumer("g", RecordingPeer())
    assert sessions.remove_consumer("g", peer)


ORDERS = [queue_key("orders", queue_id) for queue_id in range(3)]


def test_readers_keep_the_last_pull() -> None:
    seen, first, second = Readers(), RecordingPeer(port=1), RecordingPeer(port=2)
    seen.pulled("billing", ORDERS[0], first, 1.0)
    seen.pulled("billing", ORDERS[1], first, 2.0)
    seen.pulled("billing", ORDERS[0], second, 3.0)
    seen.pulled("audit", ORDERS[0], first, 4.0)
    assert {q: (p.peer, p.at_s) for q, p in seen.of("billing").items()} == {
        ORDERS[0]: (second, 3.0),
        ORDERS[1]: (first, 2.0),
    }
    assert seen.of("audit")[ORDERS[0]].peer is first
    assert seen.of("nobody") == {}


def test_readers_exclude_disconnected_clients() -> None:
    seen, peer = Readers(), RecordingPeer()
    seen.pulled("billing", ORDERS[0], peer, 1.0)
    peer.close()
    assert seen.of("billing") == {}
    seen.pulled("billing", ORDERS[0], RecordingPeer(), 1.0)
    seen.group_deleted("billing")
    assert seen.of("billing") == {}


def test_readers_full_table_admits_new_ones_after_old_ones_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(groups, "READERS_MAX", 2)
    seen, leaving, staying = Readers(), RecordingPeer(port=1), RecordingPeer(port=2)
    seen.pulled("billing", ORDERS[0], leaving, 1.0)
    seen.pulled("billing", ORDERS[1], staying, 1.0)
    seen.pulled("audit", ORDERS[2], staying, 1.0)
    assert seen.of("audit") == {}
    seen.pulled("billing", ORDERS[1], staying, 2.0)  # known already
    leaving.close()
    seen.pulled("audit", ORDERS[2], staying, 3.0)
    assert seen.of("audit").keys() == {ORDERS[2]}
    assert seen.of("billing")[ORDERS[1]].at_s == 2.0


def test_readers_record_pulls_of_a_broker() -> None:
    broker, peer = SmallBroker(), RecordingPeer()
    broker.send("orders", b"x")
    fields = PullMessageRequest(
        consumer_group="billing",
        topic="orders",
        queue_id=0,
        queue_offset=0,
        max_msg_nums=1,
        sys_flag=4,
        commit_offset=0,
        suspend_timeout_ms=0,
        subscription="*",
        sub_version=0,
    )
    assert broker.ask(RequestCode.PULL_MESSAGE, fields.to_ext(), peer=peer) is not None
    assert broker.slices.groups.tables.readers.of("billing").keys() == {ORDERS[0]}
    broker.ask(RequestCode.DELETE_SUBSCRIPTIONGROUP, {"groupName": "billing"})
    assert broker.slices.groups.tables.readers.of("billing") == {}
