"""NameServers are added to and removed from running brokers and clients: in a list, and in DNS."""

import asyncio
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from loops import Run
from name_service import Hosts, NameServers, listed

from tianzhou.broker.config import BrokerConfig
from tianzhou.client import (
    ClientOptions,
    LitePullConsumer,
    Message,
    Producer,
    PullConsumer,
    PushConsumer,
    sync,
)
from tianzhou.client.aio.admin import Admin
from tianzhou.client.bulk import brokers as bulk
from tianzhou.client.bulk.brokers import Brokers
from tianzhou.client.errors import InvalidParameter, UsageError
from tianzhou.testing import RunningBroker

NAME = "broker-a"
FAST = ClientOptions(route_interval_s=0.1)
HOST = "mq.test"
ONLY: tuple[list[str], list[str]] = ([NAME], [])
NONE: tuple[list[str], list[str]] = ([], [])
"""What a NameServer lists, and what it reports as missing."""


@pytest.fixture
def names() -> Iterator[NameServers]:
    with NameServers() as running:
        yield running


@pytest.fixture
def hosts(monkeypatch: pytest.MonkeyPatch) -> Hosts:
    return Hosts(monkeypatch)


def change(mq: RunningBroker, known_at: str, wanted: str) -> None:
    """As `tianzhou broker config --set` does."""
    with sync.Admin(nameserver=known_at) as admin:
        admin.brokers.configure(NAME, {"namesrvAddr": wanted}, members=True)
        assert admin.brokers.config(NAME)["namesrvAddr"] == wanted


# The setting of a broker


def test_broker_registers_with_an_added_nameserver_and_unregisters_from_a_removed_one(
    mq: RunningBroker, names: NameServers
) -> None:
    old, new = mq.nameserver, names.start()
    change(mq, old, f"{old};{new}")
    mq.wait_until(lambda: listed(new) == ONLY, what="the new NameServer lists the broker")
    assert listed(old) == ONLY
    change(mq, new, new)
    mq.wait_until(lambda: listed(old) == NONE, what="the broker unregistered; it is not missing")
    assert listed(new) == ONLY


def test_broker_registers_a_new_topic_with_an_added_nameserver(
    mq: RunningBroker, names: NameServers
) -> None:
    new = names.start()
    change(mq, mq.nameserver, f"{mq.nameserver};{new}")
    mq.create_topic("later")
    with sync.Admin(nameserver=new) as admin:
        mq.wait_until(lambda: "later" in admin.topics.all(), what="the topic is registered")


def test_broker_reports_an_added_nameserver_that_does_not_respond_and_forgets_a_removed_one(
    mq: RunningBroker, names: NameServers
) -> None:
    silent = names.start()
    names.stop(silent)

    def alarms() -> list[str]:
        with sync.Admin(nameserver=mq.nameserver) as admin:
            view, _ = admin.views.broker(NAME)
            return [alarm.text for alarm in view.alarms if alarm.kind == "unregistered"]

    change(mq, mq.nameserver, f"{mq.nameserver};{silent}")
    mq.wait_until(lambda: any(silent in text for text in alarms()), what="an alarm")
    change(mq, mq.nameserver, mq.nameserver)
    mq.wait_until(lambda: not alarms(), what="no alarm")


@pytest.mark.parametrize("wanted", ["", "nowhere", "a:b", "h:0"])
def test_broker_rejects_a_list_without_nameservers_or_with_an_invalid_one(
    mq: RunningBroker, wanted: str
) -> None:
    with sync.Admin(nameserver=mq.nameserver) as admin:
        before = admin.brokers.config(NAME)["namesrvAddr"]
        if wanted == "nowhere":  # a host name: the default port is added
            admin.brokers.configure(NAME, {"namesrvAddr": f"{before};{wanted}"})
            assert admin.brokers.config(NAME)["namesrvAddr"].endswith("nowhere:9876")
            return
        with pytest.raises(InvalidParameter):
            admin.brokers.configure(NAME, {"namesrvAddr": wanted})
        assert admin.brokers.config(NAME)["namesrvAddr"] == before


def test_broker_stays_registered_when_its_list_names_the_same_nameserver_differently(
    mq: RunningBroker, names: NameServers
) -> None:
    port = names.start("0.0.0.0").rpartition(":")[2]
    one, other = f"127.0.0.1:{port}", f"127.0.0.2:{port}"
    change(mq, mq.nameserver, f"{mq.nameserver};{one}")
    mq.wait_until(lambda: listed(one) == ONLY, what="the broker is listed")
    change(mq, mq.nameserver, f"{mq.nameserver};{other}")
    mq.wait_until(lambda: has_left(mq), what="the broker left the other address")
    mq.wait_until(lambda: listed(other) == ONLY, within_s=5, what="it is registered again")


def has_left(mq: RunningBroker) -> bool:
    connections = mq._do(lambda: mq._running()._registration._connections)
    return len(connections.servers) == 2 and not connections.removed()


# The list of a client

STARTED: dict[str, Callable[[str], Any]] = {
    "producer": lambda at: Producer("g", nameserver=at),
    "push": lambda at: PushConsumer("g-push", nameserver=at, subscribe={"orders": "*"}),
    "lite": lambda at: LitePullConsumer("g-lite", nameserver=at, subscribe={"orders": "*"}),
    "pull": lambda at: PullConsumer("g-pull", nameserver=at),
    "admin": lambda at: Admin(nameserver=at),
}
BLOCKING: dict[str, Callable[[str], Any]] = {
    "producer": lambda at: sync.Producer("g", nameserver=at),
    "push": lambda at: sync.PushConsumer("g-push", nameserver=at, subscribe={"orders": "*"}),
    "lite": lambda at: sync.LitePullConsumer("g-lite", nameserver=at, subscribe={"orders": "*"}),
    "pull": lambda at: sync.PullConsumer("g-pull", nameserver=at),
    "admin": lambda at: sync.Admin(nameserver=at),
}


def moved_to(mq: RunningBroker, names: NameServers) -> str:
    """A second NameServer, with which the broker registers too."""
    new = names.start()
    change(mq, mq.nameserver, f"{mq.nameserver};{new}")
    mq.wait_until(lambda: listed(new) == ONLY, what="the new NameServer lists the broker")
    return new


@pytest.mark.parametrize("kind", STARTED)
def test_asyncio_client_uses_the_new_list(
    run: Run, mq: RunningBroker, names: NameServers, kind: str
) -> None:
    mq.create_topic("orders")
    new = moved_to(mq, names)

    async def body() -> None:
        # A started client of the same list shares its connections, and shows which list they use.
        async with STARTED[kind](mq.nameserver) as client, Producer("p", nameserver=new) as probe:
            await probe.send(Message("orders", b"known"))
            client.update_name_servers(new)
            mq.stop_nameserver()
            if kind == "producer":
                await client.send(Message("created-later", b"one"))
            elif kind == "admin":
                assert "orders" in await client.topics.all()
            elif kind in ("pull", "lite"):
                assert await client.queues("orders")
            assert new in repr(client)

    run(body)


@pytest.mark.parametrize("kind", BLOCKING)
def test_blocking_client_uses_the_new_list(
    mq: RunningBroker, names: NameServers, kind: str
) -> None:
    mq.create_topic("orders")
    new = moved_to(mq, names)
    with BLOCKING[kind](mq.nameserver) as client:
        client.update_name_servers(new)
        mq.stop_nameserver()
        if kind == "producer":
            client.send(Message("created-later", b"one"))
        elif kind == "admin":
            assert "orders" in client.topics.all()
        elif kind in ("pull", "lite"):
            assert client.queues("orders")
        assert new in repr(client)


def test_client_that_joins_later_shares_the_client_whose_list_changed(
    run: Run, mq: RunningBroker, names: NameServers
) -> None:
    new = moved_to(mq, names)

    async def body() -> None:
        async with Producer("a", nameserver=mq.nameserver) as first:
            first.update_name_servers(new)
            async with (
                Producer("b", nameserver=new) as same,
                Producer("c", nameserver=mq.nameserver) as other,
            ):
                assert same.client_id == first.client_id
                assert other.client_id != first.client_id
                # The list of a closed client changes no other one.
                await same.close()
                same.update_name_servers(mq.nameserver)
                assert first.client_id != other.client_id
                await first.send(Message("orders", b"one"))

    run(body)


@pytest.mark.parametrize("wanted", ["", ";", "host:99999", 7])
def test_client_rejects_an_invalid_list_and_keeps_its_own(
    run: Run, mq: RunningBroker, wanted: Any
) -> None:
    async def body() -> None:
        async with Producer("a", nameserver=mq.nameserver) as producer:
            with pytest.raises(UsageError):
                producer.update_name_servers(wanted)
            await producer.send(Message("orders", b"one"))

    run(body)


def test_client_finds_a_topic_although_one_nameserver_has_no_broker_yet(
    run: Run, mq: RunningBroker, names: NameServers
) -> None:
    """A NameServer that was just started, or that was not added to the brokers."""
    mq.create_topic("orders")
    empty = names.start()

    async def body() -> None:
        for _ in range(8):  # a client chooses one at random
            async with PullConsumer("g", nameserver=f"{mq.nameserver};{empty}") as consumer:
                assert await consumer.queues("orders")

    run(body)


# Names in DNS


def two_servers(names: NameServers) -> tuple[str, str]:
    """Two NameServers with the same port."""
    first = names.start("127.0.0.2")
    second = names.start("127.0.0.3", int(first.rpartition(":")[2]))
    return first, second


def in_dns(address: str) -> str:
    return f"{HOST}:{address.rpartition(':')[2]}"


FOLLOWS = BrokerConfig(address="127.0.0.1", register_interval_ms=1_000)
"""Without an address, clients of 127.0.0.3 would get that address for the broker, too."""


def test_broker_registers_with_every_address_of_a_name_and_follows_its_changes(
    mq_factory: Callable[..., RunningBroker], names: NameServers, hosts: Hosts
) -> None:
    first, second = two_servers(names)
    hosts.addresses[HOST] = ["127.0.0.2", "127.0.0.3"]
    mq = mq_factory(nameserver=in_dns(first), config=FOLLOWS)
    assert listed(first) == listed(second) == ONLY
    hosts.addresses[HOST] = ["127.0.0.3"]
    mq.wait_until(lambda: listed(first) == NONE, what="the broker left the first NameServer")
    hosts.addresses[HOST] = []
    mq.create_topic("while-dns-is-down")
    with sync.Admin(nameserver=second) as admin:
        mq.wait_until(lambda: "while-dns-is-down" in admin.topics.all(), what="it is registered")
    hosts.addresses[HOST] = ["127.0.0.2"]
    mq.wait_until(lambda: (listed(first), listed(second)) == (ONLY, NONE), what="it moved back")


def test_client_uses_the_other_address_of_a_name_when_one_does_not_respond(
    run: Run, mq_factory: Callable[..., RunningBroker], names: NameServers, hosts: Hosts
) -> None:
    first, second = two_servers(names)
    hosts.addresses[HOST] = ["127.0.0.2", "127.0.0.3"]
    mq = mq_factory(nameserver=in_dns(first), config=FOLLOWS)
    mq.create_topic("orders")
    names.stop(first)

    async def body() -> None:
        for _ in range(4):
            async with Producer("p", nameserver=in_dns(second)) as producer:
                await producer.send(Message("orders", b"one"))

    run(body)


def test_client_follows_a_name_that_moves_while_the_old_server_still_runs(
    run: Run, mq_factory: Callable[..., RunningBroker], names: NameServers, hosts: Hosts
) -> None:
    """The broker has left the old NameServer, which now knows no topic at all."""
    first, second = two_servers(names)
    hosts.addresses[HOST] = ["127.0.0.2"]
    mq = mq_factory(nameserver=in_dns(first), config=FOLLOWS)

    async def body() -> None:
        async with Producer("p", nameserver=in_dns(first), client=FAST) as producer:
            await producer.send(Message("orders", b"one"))
            hosts.addresses[HOST] = ["127.0.0.3"]
            await mq.until(lambda: (listed(first), listed(second)) == (NONE, ONLY), what="moved")
            names.stop(first)
            await producer.send(Message("created-later", b"two"))

    run(body)


def test_client_with_a_name_that_does_not_exist_says_so(run: Run, hosts: Hosts) -> None:
    hosts.addresses[HOST] = []

    async def body() -> None:
        async with PullConsumer("g", nameserver=f"{HOST}:1") as consumer:
            with pytest.raises(Exception, match=f"{HOST}:1.*Name or service not known"):
                await consumer.queues("orders")

    run(body)


def test_reader_of_spark_follows_a_name(
    mq_factory: Callable[..., RunningBroker],
    names: NameServers,
    hosts: Hosts,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It has no background work: it resolves a name before a request, at most every 30 seconds."""
    first, second = two_servers(names)
    hosts.addresses[HOST] = ["127.0.0.2"]
    mq = mq_factory(nameserver=second)
    mq.create_topic("orders")
    with Brokers(in_dns(first)) as brokers:
        assert "orders" not in brokers.topics()
        hosts.addresses[HOST] = ["127.0.0.3"]
        assert "orders" not in brokers.topics(), "still the connection from before"
        with monkeypatch.context() as time_passes:
            later_s = time.monotonic() + bulk.RESOLVE_AGAIN_S
            time_passes.setattr(time, "monotonic", lambda: later_s)
            assert "orders" in brokers.topics()


def test_doctor_names_brokers_that_one_nameserver_does_not_list(
    mq: RunningBroker, names: NameServers
) -> None:
    from tianzhou.admin.doctor.reach import listing_findings

    empty = names.start()
    (found,) = listing_findings([mq.nameserver, empty])
    assert found.about == f"NameServer {empty}"
    assert f"does not list {NAME}" in found.said
    assert not list(listing_findings([mq.nameserver]))


def test_many_changes_of_the_list_leave_the_broker_registered(
    mq: RunningBroker, names: NameServers
) -> None:
    """Changes overlap with registrations in progress; the last list counts."""
    servers = [mq.nameserver, *(names.start() for _ in range(3))]

    async def body() -> None:
        async with Admin(nameserver=servers[0]) as admin:
            for n in range(40):
                wanted = f"{servers[0]};{servers[1 + n % 3]}"
                await admin.brokers.configure(NAME, {"namesrvAddr": wanted})

    asyncio.run(body())
    last = servers[1 + 39 % 3]
    others = [at for at in servers[1:] if at != last]
    mq.wait_until(
        lambda: listed(last) == ONLY and all(listed(at)[0] == [] for at in others),
        what="the broker is registered with the last list only",
    )
