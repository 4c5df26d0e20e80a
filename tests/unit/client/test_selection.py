"""Which queue is next, which broker is left alone, and for how long."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tianzhou.base.errors import UsageError
from tianzhou.client.core.routing import TopicRoute
from tianzhou.client.core.selection import (
    FAILURE_MS,
    Latencies,
    QueueChoice,
    Rotation,
    left_alone_ms,
    pick_of,
    pick_of_batch,
    queue_for_key,
)
from tianzhou.record.message import Message
from tianzhou.wire.queues import MessageQueue


def queues(**counts: int) -> list[MessageQueue]:
    return [
        MessageQueue(topic="t", broker_name=name, queue_id=n)
        for name, count in counts.items()
        for n in range(count)
    ]


def rotation(latencies: Latencies, choice: QueueChoice = QueueChoice.ROUND_ROBIN) -> Rotation:
    return Rotation(choice, latencies, lambda count: count - 1)


@pytest.mark.parametrize(
    ("latency_ms", "alone_ms"),
    [
        (0, 0),
        (49, 0),
        (50, 0),
        (100, 0),
        (549, 0),
        (550, 2_000),
        (1_799, 2_000),
        (1_800, 5_000),
        (3_000, 6_000),
        (5_000, 10_000),
        (FAILURE_MS, 10_000),
        (15_000, 30_000),
        (99_999, 30_000),
    ],
)
def test_left_alone_ms_grows_with_the_latency(latency_ms: int, alone_ms: int) -> None:
    assert left_alone_ms(latency_ms) == alone_ms


def test_rotation_chooses_queues_in_turn() -> None:
    turns = rotation(Latencies())
    found = queues(a=2, b=1)
    chosen = [turns.choose(found, (), 0.0) for _ in range(6)]
    assert chosen == [found[2], found[0], found[1]] * 2


def test_rotation_avoids_a_failed_broker_for_ten_seconds() -> None:
    latencies = Latencies()
    turns, found = rotation(latencies), queues(a=2, b=2)
    latencies.failed("a", 100.0)
    assert not latencies.is_good("a", 109.9)
    assert {turns.choose(found, (), 109.9).broker_name for _ in range(4)} == {"b"}
    assert {turns.choose(found, (), 110.0).broker_name for _ in range(4)} == {"a", "b"}
    latencies.took("a", 3.0, 111.0)
    assert latencies.is_calm


def test_rotation_chooses_a_failed_broker_if_all_failed() -> None:
    latencies = Latencies()
    turns, found = rotation(latencies), queues(a=1, b=1)
    latencies.failed("a", 0.0)
    latencies.failed("b", 0.0)
    assert {turns.choose(found, (), 1.0).broker_name for _ in range(4)} == {"a", "b"}
    assert {turns.choose(found, ["a"], 1.0).broker_name for _ in range(4)} == {"b"}
    assert turns.choose(found, ["a", "b"], 1.0) in found


def test_rotation_chooses_the_fastest_after_each_was_tried() -> None:
    latencies = Latencies()
    turns, found = rotation(latencies, QueueChoice.LEAST_LATENCY), queues(a=2, b=2, c=1)
    for name, latency in (("a", 30.0), ("b", 10.0), ("c", 20.0)):
        assert turns.choose(found, (), 0.0).broker_name == name
        latencies.took(name, latency, 0.0)
    chosen = Counter(turns.choose(found, (), 0.0) for _ in range(10))
    assert chosen == {found[2]: 5, found[3]: 5}
    assert turns.choose(found, ["b"], 0.0).broker_name == "c"


@given(st.lists(st.sampled_from("abc"), max_size=3), st.sets(st.sampled_from("abc")))
def test_rotation_chooses_an_avoided_broker_only_if_no_other_is_left(
    avoid: list[str], failed: set[str]
) -> None:
    """Good and not avoided, if there is such a one; or else not avoided, if there is."""
    for choice in QueueChoice:
        latencies = Latencies()
        for name in failed:
            latencies.failed(name, 0.0)
        chosen = rotation(latencies, choice).choose(queues(a=2, b=1, c=3), avoid, 1.0).broker_name
        best = set("abc") - set(avoid) - failed or set("abc") - set(avoid) or set("abc")
        assert chosen in best


def test_queue_for_key_equals_java() -> None:
    """By String.hashCode, also where that is negative."""
    found = queues(a=4)
    assert queue_for_key(found, "a").queue_id == 97 % 4
    assert queue_for_key(found, "polygenelubricants").queue_id == (1 << 31) % 4
    assert queue_for_key(queues(a=7), "订单-1").queue_id == 1_085_411_543 % 7


def test_pick_of_prefers_queue_then_selector_then_sharding_key() -> None:
    found = tuple(queues(a=4))
    route = TopicRoute("t", found, found, {})
    free, keyed = Message("t", b"x"), Message("t", b"x", sharding_key="a")
    assert pick_of(free, None) is None
    picks = [
        pick_of(keyed, None, lambda qs, _: qs[0]),
        pick_of(keyed, None),
        pick_of(free, found[2]),
        pick_of(keyed, found[3]),
    ]
    assert [pick(route).queue_id for pick in picks if pick is not None] == [0, 1, 2, 3]


def test_pick_of_batch_with_one_sharding_key_is_the_queue_of_the_key() -> None:
    route = TopicRoute("t", tuple(queues(a=7)), (), {})
    batch = [Message("t", b"x"), Message("t", b"x", sharding_key="k"), Message("t", b"x")]
    pick = pick_of_batch(batch, None)
    assert pick is not None
    assert pick(route) == queue_for_key(route.write_queues, "k")
    assert pick_of_batch([Message("t", b"x")] * 2, None) is None


def test_pick_of_batch_with_different_keys_and_no_queue_is_rejected() -> None:
    batch = [Message("t", b"x", sharding_key=key) for key in ("k", "l")]
    with pytest.raises(UsageError, match="sharding keys 'k' and 'l'"):
        pick_of_batch(batch, None)
    (queue,) = queues(a=1)
    pick = pick_of_batch(batch, queue)
    assert pick is not None
    assert pick(TopicRoute("t", (), (), {})) == queue
