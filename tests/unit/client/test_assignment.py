"""Strategies: the examples of the books, and Java's corner cases."""

import pytest

from tianzhou.base.errors import UsageError
from tianzhou.client.core import assignment
from tianzhou.client.core.assignment import Occasion, Strategy, assign, difference
from tianzhou.wire.queues import MessageQueue


def queue(broker: str, number: int, topic: str = "T") -> MessageQueue:
    return MessageQueue(broker_name=broker, queue_id=number, topic=topic)


TWO_BROKERS = [queue("b1", n) for n in range(4)] + [queue("b2", n) for n in range(4)]


def shares(strategy: Strategy, queues: list[MessageQueue], *clients: str) -> list[list[str]]:
    return [
        [
            f"{q.broker_name}_q{q.queue_id}"
            for q in assign(strategy, group="g", client_id=client, queues=queues, clients=clients)
        ]
        for client in clients
    ]


def test_average_assigns_contiguous_shares() -> None:
    """Seed 001: eight queues of two brokers, three consumers."""
    assert shares(assignment.average, TWO_BROKERS, "c1", "c2", "c3") == [
        ["b1_q0", "b1_q1", "b1_q2"],
        ["b1_q3", "b2_q0", "b2_q1"],
        ["b2_q2", "b2_q3"],
    ]


def test_circle_assigns_queues_in_turn() -> None:
    assert shares(assignment.circle, TWO_BROKERS, "c1", "c2", "c3") == [
        ["b1_q0", "b1_q3", "b2_q2"],
        ["b1_q1", "b2_q0", "b2_q3"],
        ["b1_q2", "b2_q1"],
    ]


def test_average_and_circle_divide_eight_queues_by_two() -> None:
    """Seed 003: average gives each a half, circle every other queue."""
    eight = [queue("b", n) for n in range(8)]
    assert shares(assignment.average, eight, "c1", "c2") == [
        ["b_q0", "b_q1", "b_q2", "b_q3"],
        ["b_q4", "b_q5", "b_q6", "b_q7"],
    ]
    assert shares(assignment.circle, eight, "c1", "c2") == [
        ["b_q0", "b_q2", "b_q4", "b_q6"],
        ["b_q1", "b_q3", "b_q5", "b_q7"],
    ]


def test_average_of_three_queues_gives_the_first_consumer_two() -> None:
    """Seed 004: one consumer gets two queues, the other gets the rest."""
    three = [queue("b", n) for n in range(3)]
    assert shares(assignment.average, three, "c1", "c2") == [["b_q0", "b_q1"], ["b_q2"]]


def test_average_gives_surplus_consumers_no_queues() -> None:
    """Seed 002: the surplus consumers get nothing."""
    assert shares(assignment.average, TWO_BROKERS[:2], "c1", "c2", "c3") == [
        ["b1_q0"],
        ["b1_q1"],
        [],
    ]


def test_assign_ignores_the_order_of_queues_and_clients() -> None:
    backwards = list(reversed(TWO_BROKERS))
    found = assign(
        assignment.average, group="g", client_id="c1", queues=backwards, clients=["c2", "c1"]
    )
    assert found == TWO_BROKERS[:4]


def test_assign_sorts_client_ids_like_java() -> None:
    """U+FF5E sorts behind a surrogate pair by code point, before it by UTF-16 units."""
    tilde, face = "\uff5e", "\U0001f600"
    assert sorted([tilde, face]) == [tilde, face]
    first = assign(
        assignment.average, group="g", client_id=face, queues=TWO_BROKERS[:1], clients=[tilde, face]
    )
    assert first == TWO_BROKERS[:1]


def test_assign_to_an_unlisted_client_gives_no_queues() -> None:
    assert (
        assign(assignment.average, group="g", client_id="c9", queues=TWO_BROKERS, clients=["c1"])
        == []
    )


def test_consistent_hash_equals_java() -> None:
    """The result of RocketMQ 5.3.3; tests/interop/test_interop_assignment.py compares many more."""
    assert shares(assignment.consistent_hash(), TWO_BROKERS, "10.0.0.1@1", "10.0.0.2@2") == [
        ["b1_q0", "b1_q2", "b2_q1", "b2_q3"],
        ["b1_q1", "b1_q3", "b2_q0", "b2_q2"],
    ]


def test_machine_room_assigns_queues_of_the_listed_rooms() -> None:
    queues = [queue("hz@b1", n) for n in range(5)] + [queue("sh@b1", n) for n in range(2)]
    queues += [queue("plain", 0), queue("hz@b@c", 0), queue("hz@", 0)]
    strategy = assignment.machine_room({"hz"})
    assert shares(strategy, queues, "c1", "c2") == [
        ["hz@b1_q0", "hz@b1_q1", "hz@b1_q4"],
        ["hz@b1_q2", "hz@b1_q3"],
    ]


def test_machine_room_nearby_prefers_clients_in_the_same_room() -> None:
    queues = [queue(f"{room}-b", n) for room in ("bj", "hz", "sh") for n in range(2)]
    strategy = assignment.machine_room_nearby(
        lambda q: q.broker_name.partition("-")[0], lambda client: client.partition("-")[0]
    )
    # Shanghai has no member, so its queues are shared by all.
    assert shares(strategy, queues, "bj-1", "hz-1", "hz-2") == [
        ["bj-b_q0", "bj-b_q1", "sh-b_q0"],
        ["hz-b_q0", "sh-b_q1"],
        ["hz-b_q1"],
    ]


def test_machine_room_nearby_without_a_client_room_is_rejected() -> None:
    strategy = assignment.machine_room_nearby(lambda _: "hz", lambda _: "")
    with pytest.raises(UsageError, match="client c1 has no machine room"):
        shares(strategy, TWO_BROKERS, "c1")


def test_by_configuration_skips_queues_that_do_not_exist() -> None:
    strategy = assignment.by_configuration({"c1": [queue("b1", 1), queue("gone", 0)]})
    assert shares(strategy, TWO_BROKERS, "c1", "c2") == [["b1_q1"], []]


def test_assign_accepts_a_custom_strategy() -> None:
    def last_first(occasion: Occasion) -> list[MessageQueue]:
        return [q for q in occasion.queues if q.queue_id % 2 == occasion.rank]

    assert shares(last_first, TWO_BROKERS[:4], "a", "b") == [["b1_q0", "b1_q2"], ["b1_q1", "b1_q3"]]


@pytest.mark.parametrize("wrong", [[queue("b9", 0)], [TWO_BROKERS[0], TWO_BROKERS[0]]])
def test_assign_rejects_an_invalid_result_of_a_strategy(wrong: list[MessageQueue]) -> None:
    with pytest.raises(UsageError, match="strategy of group g"):
        shares(lambda _: wrong, TWO_BROKERS, "c1")


def test_consistent_hash_without_virtual_nodes_is_rejected() -> None:
    with pytest.raises(UsageError, match="0 virtual nodes"):
        assignment.consistent_hash(0)


def test_difference_returns_removed_and_added_queues() -> None:
    a, b, c = TWO_BROKERS[:3]
    assert difference([a, b], [b, c]) == ([a], [c])
    assert difference([a], [a]) == ([], [])
