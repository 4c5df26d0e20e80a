"""Routes as clients see them, and the selection of a queue: which, in which order, at which
addresses, and which brokers are avoided for how long.
"""

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tianzhou.base.errors import UsageError
from tianzhou.client.core.routing import (
    FaultAvoidance,
    Latencies,
    QueueChoice,
    Rotation,
    TopicRoute,
    addresses_of,
    borrowed_route,
    pick_of,
    pick_of_batch,
    queue_for_key,
    queue_order,
    route_of,
)
from tianzhou.client.options import ClientOptions, ProducerOptions, parse_nameservers, split_address
from tianzhou.record.message import Message
from tianzhou.wire.queues import MessageQueue
from tianzhou.wire.routes import BrokerData, QueueData, TopicRouteData


def data(*queues: QueueData, order: str | None = None, **brokers: dict[int, str]) -> TopicRouteData:
    found = TopicRouteData(
        broker_datas=tuple(BrokerData(broker_name=n, broker_addrs=a) for n, a in brokers.items()),
        queue_datas=queues,
    )
    return (
        found
        if order is None
        else TopicRouteData(
            broker_datas=found.broker_datas, queue_datas=queues, order_topic_conf=order
        )
    )


def queues(name: str, *, perm: int = 6, write: int = 2, read: int = 3) -> QueueData:
    return QueueData(broker_name=name, perm=perm, write_queue_nums=write, read_queue_nums=read)


def names(found: tuple[MessageQueue, ...]) -> list[str]:
    return [f"{queue.broker_name}{queue.queue_id}" for queue in found]


def test_route_queues_are_ordered_by_broker_and_number() -> None:
    route = route_of("t", data(queues("b"), queues("a"), a={0: "h:1"}, b={0: "h:2", 1: "h:3"}))
    assert names(route.write_queues) == ["a0", "a1", "b0", "b1"]
    assert names(route.read_queues) == ["a0", "a1", "a2", "b0", "b1", "b2"]
    assert list(route.read_queues) == sorted(route.read_queues, key=queue_order)
    assert route.address("b", 1) == "h:3"
    assert route.address("b", 7) is None
    assert route.any_replica("b", 1) == (1, "h:3")
    assert route.any_replica("b", 7) == (0, "h:2")
    assert route.any_address("b") == "h:2"
    assert route.any_address("z") is None
    assert route.has_master("b")


def test_route_of_a_broker_without_a_master_has_only_read_queues() -> None:
    route = route_of("t", data(queues("a"), a={1: "h:1"}))
    assert route.write_queues == ()
    assert names(route.read_queues) == ["a0", "a1", "a2"]
    assert route.any_replica("a") == (1, "h:1")
    assert not route.has_master("a")


@pytest.mark.parametrize(("perm", "write", "read"), [(6, 2, 3), (4, 0, 3), (2, 2, 0), (1, 0, 0)])
def test_route_queues_follow_the_topic_permissions(perm: int, write: int, read: int) -> None:
    route = route_of("t", data(queues("a", perm=perm), a={0: "h:1"}))
    assert (len(route.write_queues), len(route.read_queues)) == (write, read)


def test_route_of_an_ordered_topic_keeps_queues_of_an_absent_broker() -> None:
    route = route_of("t", data(queues("a"), order="a:2;b:1; ;c;d:x", a={0: "h:1"}))
    assert names(route.write_queues) == ["a0", "a1", "b0"]


def test_default_route_has_as_many_queues_as_will_be_created() -> None:
    default = data(
        queues("a", perm=7, write=8, read=8),
        queues("b", perm=7, write=2, read=2),
        queues("c"),
        a={0: "h:1"},
        b={0: "h:2"},
        c={0: "h:3"},
    )
    route = borrowed_route("fresh", default, 4)
    assert route.is_borrowed
    assert names(route.write_queues) == ["a0", "a1", "a2", "a3", "b0", "b1"]
    assert {queue.topic for queue in route.write_queues} == {"fresh"}


def test_addresses_of_returns_masters_or_all_members() -> None:
    routes = [route_of("t", data(queues("a"), a={0: "h:1", 1: "h:2"}))]
    assert addresses_of(routes, masters_only=True) == {"h:1"}
    assert addresses_of(routes, masters_only=False) == {"h:1", "h:2"}


def test_parse_nameservers_splits_a_list_of_addresses() -> None:
    assert parse_nameservers("a:1;b:2, a:1 ;") == ("a:1", "b:2")
    assert split_address("[::1]:9876") == ("::1", 9876)


def test_parse_nameservers_adds_the_default_port() -> None:
    assert parse_nameservers("mq.example;10.0.0.1:1;[::1]") == (
        "mq.example:9876",
        "10.0.0.1:1",
        "[::1]:9876",
    )


@pytest.mark.parametrize(
    ("variables", "wanted"),
    [
        ({"NAMESRV_ADDR": "b:2"}, ("b:2",)),
        ({"NAMESRV_ADDR": "b:2", "TIANZHOU_NAMESERVER": "a"}, ("a:9876",)),
    ],
)
def test_parse_nameservers_without_an_address_reads_the_environment(
    variables: dict[str, str], wanted: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("NAMESRV_ADDR", "TIANZHOU_NAMESERVER"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(UsageError, match="set TIANZHOU_NAMESERVER or NAMESRV_ADDR"):
        parse_nameservers(None)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert parse_nameservers(None) == wanted
    assert parse_nameservers("c:3") == ("c:3",)


@pytest.mark.parametrize("text", ["", " ; ", "host:", ":9876", "host:0", "host:70000"])
def test_parse_nameservers_rejects_an_invalid_address(text: str) -> None:
    with pytest.raises(UsageError, match="host:port"):
        parse_nameservers(text)


def test_client_options_with_invalid_values_are_rejected() -> None:
    with pytest.raises(UsageError, match="call_timeout_s is 0"):
        ClientOptions(call_timeout_s=0)
    with pytest.raises(UsageError, match="instance_name 'a@b'"):
        ClientOptions(instance_name="a@b")


def evenly(**counts: int) -> list[MessageQueue]:
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
        (FaultAvoidance().failure_ms, 10_000),
        (15_000, 30_000),
        (99_999, 30_000),
    ],
)
def test_avoidance_of_a_broker_grows_with_its_latency(latency_ms: int, alone_ms: int) -> None:
    assert avoided_ms(Latencies(), latency_ms) == alone_ms


def avoided_ms(latencies: Latencies, latency_ms: float) -> int:
    latencies.took("a", latency_ms, 0.0)
    times_ms = range(0, 700_000, 500)
    return next(time_ms for time_ms in times_ms if latencies.is_good("a", time_ms / 1000))


ROCKETMQ_4 = FaultAvoidance(
    latency_max_ms=(50, 100, 550, 1_000, 2_000, 3_000, 15_000),
    not_available_duration_ms=(0, 0, 30_000, 60_000, 120_000, 180_000, 600_000),
    failure_ms=30_000,
)


@pytest.mark.parametrize(
    ("latency_ms", "alone_ms"), [(549, 0), (550, 30_000), (2_999, 120_000), (15_000, 600_000)]
)
def test_avoidance_follows_the_tables_of_the_user(latency_ms: int, alone_ms: int) -> None:
    assert avoided_ms(Latencies(ROCKETMQ_4), latency_ms) == alone_ms


def test_failure_counts_as_the_latency_of_the_user() -> None:
    latencies = Latencies(ROCKETMQ_4)
    latencies.failed("a", 0.0)
    assert not latencies.is_good("a", 599.9)
    assert latencies.is_good("a", 600.0)


def test_disabled_avoidance_keeps_failed_brokers_in_turn() -> None:
    latencies = Latencies(None)
    turns, found = rotation(latencies), evenly(a=1, b=1)
    latencies.failed("a", 0.0)
    assert Counter(turns.choose(found, (), 0.1).broker_name for _ in range(4)) == {"a": 2, "b": 2}
    # Within one send, a broker that failed is still left out.
    assert turns.choose(found, ["a"], 0.1).broker_name == "b"


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        ({"latency_max_ms": (50, 100)}, "each latency needs its duration"),
        (
            {"latency_max_ms": (100, 50), "not_available_duration_ms": (0, 1)},
            "above the one before",
        ),
        ({"latency_max_ms": 50}, "latency_max_ms is 50"),
        ({"latency_max_ms": (0.5,), "not_available_duration_ms": (1,)}, "latency_max_ms is"),
        ({"latency_max_ms": (5,), "not_available_duration_ms": (-1,)}, "duration_ms is"),
        ({"failure_ms": -1}, "failure_ms is -1"),
    ],
)
def test_avoidance_with_invalid_tables_is_rejected(tables: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        FaultAvoidance(**tables)


def test_producer_options_reject_another_kind_of_avoidance() -> None:
    wrong: Any = 3
    with pytest.raises(UsageError, match="fault_avoidance 3 is not a FaultAvoidance, or None"):
        ProducerOptions(fault_avoidance=wrong)
    assert ProducerOptions(fault_avoidance=None).fault_avoidance is None


def test_rotation_chooses_queues_in_turn() -> None:
    turns = rotation(Latencies())
    found = evenly(a=2, b=1)
    chosen = [turns.choose(found, (), 0.0) for _ in range(6)]
    assert chosen == [found[2], found[0], found[1]] * 2


def test_rotation_avoids_a_failed_broker_for_ten_seconds() -> None:
    latencies = Latencies()
    turns, found = rotation(latencies), evenly(a=2, b=2)
    latencies.failed("a", 100.0)
    assert not latencies.is_good("a", 109.9)
    assert {turns.choose(found, (), 109.9).broker_name for _ in range(4)} == {"b"}
    assert {turns.choose(found, (), 110.0).broker_name for _ in range(4)} == {"a", "b"}
    latencies.took("a", 3.0, 111.0)
    assert latencies.is_calm


def test_rotation_chooses_a_failed_broker_if_all_failed() -> None:
    latencies = Latencies()
    turns, found = rotation(latencies), evenly(a=1, b=1)
    latencies.failed("a", 0.0)
    latencies.failed("b", 0.0)
    assert {turns.choose(found, (), 1.0).broker_name for _ in range(4)} == {"a", "b"}
    assert {turns.choose(found, ["a"], 1.0).broker_name for _ in range(4)} == {"b"}
    assert turns.choose(found, ["a", "b"], 1.0) in found


def test_rotation_chooses_the_fastest_after_each_was_tried() -> None:
    latencies = Latencies()
    turns, found = rotation(latencies, QueueChoice.LEAST_LATENCY), evenly(a=2, b=2, c=1)
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
        chosen = rotation(latencies, choice).choose(evenly(a=2, b=1, c=3), avoid, 1.0).broker_name
        best = set("abc") - set(avoid) - failed or set("abc") - set(avoid) or set("abc")
        assert chosen in best


def test_queue_for_key_equals_java() -> None:
    """By String.hashCode, also where that is negative."""
    found = evenly(a=4)
    assert queue_for_key(found, "a").queue_id == 97 % 4
    assert queue_for_key(found, "polygenelubricants").queue_id == (1 << 31) % 4
    assert queue_for_key(evenly(a=7), "订单-1").queue_id == 1_085_411_543 % 7


def test_pick_of_prefers_queue_then_selector_then_sharding_key() -> None:
    found = tuple(evenly(a=4))
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
    route = TopicRoute("t", tuple(evenly(a=7)), (), {})
    batch = [Message("t", b"x"), Message("t", b"x", sharding_key="k"), Message("t", b"x")]
    pick = pick_of_batch(batch, None)
    assert pick is not None
    assert pick(route) == queue_for_key(route.write_queues, "k")
    assert pick_of_batch([Message("t", b"x")] * 2, None) is None


def test_pick_of_batch_with_different_keys_and_no_queue_is_rejected() -> None:
    batch = [Message("t", b"x", sharding_key=key) for key in ("k", "l")]
    with pytest.raises(UsageError, match="sharding keys 'k' and 'l'"):
        pick_of_batch(batch, None)
    (queue,) = evenly(a=1)
    pick = pick_of_batch(batch, queue)
    assert pick is not None
    assert pick(TopicRoute("t", (), (), {})) == queue
