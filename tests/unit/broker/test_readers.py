"""Who reads which queue, by the last pull."""

import pytest

from tianzhou.base.kinds import queue_key
from tianzhou.broker.groups import readers
from tianzhou.broker.groups.readers import Readers
from tianzhou.testing.small_broker import RecordingPeer, SmallBroker
from tianzhou.wire._generated_codes import RequestCode
from tianzhou.wire._generated_headers_pull import PullMessageRequest

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
    monkeypatch.setattr(readers, "READERS_MAX", 2)
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
    assert broker.parts.readers.of("billing").keys() == {ORDERS[0]}
    broker.ask(RequestCode.DELETE_SUBSCRIPTIONGROUP, {"groupName": "billing"})
    assert broker.parts.readers.of("billing") == {}
