"""Pulls that wait."""

from tianzhou.base.kinds import queue_key
from tianzhou.broker.fetch.long_poll import Hold, Holds
from tianzhou.broker.groups.subscriptions import Filters
from tianzhou.testing.small_broker import RecordingPeer
from tianzhou.wire._generated_headers_pull import PullMessageRequest
from tianzhou.wire.header import SerialiseType

ONE, OTHER = queue_key("t", 0), queue_key("t", 1)


def hold(deadline: float, peer: RecordingPeer | None = None) -> Hold:
    asked = PullMessageRequest(
        consumer_group="g", topic="t", queue_id=0, queue_offset=0, max_msg_nums=32, sys_flag=0,
        commit_offset=0, suspend_timeout_ms=15_000, subscription="*", sub_version=0,
    )  # fmt: skip
    everything = Filters(sql_enabled=False).get("TAG", "*")
    return Hold(peer or RecordingPeer(), 1, SerialiseType.JSON, asked, everything, 0, deadline)


def test_a_queue_gives_back_all_that_wait_for_it() -> None:
    holds = Holds(10)
    first, second, third = hold(1), hold(2), hold(3)
    holds.park(ONE, first)
    holds.park(ONE, second)
    holds.park(OTHER, third)
    assert holds.take(ONE) == [first, second]
    assert holds.take(ONE) == []
    assert len(holds) == 1


def test_there_is_a_limit() -> None:
    holds = Holds(2)
    holds.park(ONE, hold(1))
    assert not holds.is_full
    holds.park(OTHER, hold(1))
    assert holds.is_full
    holds.take(ONE)
    assert not holds.is_full


def test_those_whose_time_is_up_are_given_back() -> None:
    holds = Holds(10)
    late, early = hold(5), hold(1)
    holds.park(ONE, late)
    holds.park(OTHER, early)
    assert holds.take_expired(1) == [(OTHER, early)]
    assert len(holds) == 1
    assert holds.take_expired(4.9) == []
    assert holds.take_expired(5) == [(ONE, late)]
    assert len(holds) == 0


def test_others_may_be_taken_while_the_late_ones_are_answered() -> None:
    """An answer reads, a read dispatches, and what arrives wakes those who wait for it."""
    holds = Holds(10)
    holds.park(ONE, hold(1))
    holds.park(ONE, hold(1))
    holds.park(OTHER, hold(9))
    answered = 0
    for _ in holds.take_expired(1):
        answered += 1
        holds.take(OTHER)
    assert answered == 2
    assert len(holds) == 0


def test_closed_connections_are_dropped() -> None:
    holds, peer = Holds(10), RecordingPeer()
    holds.park(ONE, hold(100, peer))
    holds.park(ONE, hold(1, peer))
    peer.close()
    assert holds.take_expired(2) == []
    assert len(holds) == 0
