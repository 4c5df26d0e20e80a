"""Routes as clients see them: which queues, in which order, at which addresses."""

import pytest

from tianzhou.base.errors import UsageError
from tianzhou.client.core.routing import addresses_of, borrowed_route, queue_order, route_of
from tianzhou.client.options import ClientOptions, parse_nameservers, split_address
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
    assert route.any_address("b", 7) == "h:2"
    assert route.any_address("z") is None


def test_route_of_a_broker_without_a_master_has_only_read_queues() -> None:
    route = route_of("t", data(queues("a"), a={1: "h:1"}))
    assert route.write_queues == ()
    assert names(route.read_queues) == ["a0", "a1", "a2"]


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
