"""The cluster against real servers in the same loop: routes, calls, heartbeats, requests."""

import asyncio
import socket

import pytest
from loops import Run

from tianzhou.broker.config import BrokerConfig
from tianzhou.client.core.routing import TopicRoute
from tianzhou.client.errors import (
    CallTimeout,
    ConnectionLost,
    NoNameServer,
    NoRoute,
    RequestCodeNotSupported,
    TopicNotFound,
    Unreachable,
)
from tianzhou.client.options import ClientOptions
from tianzhou.client.session.shared_client import SharedClient
from tianzhou.net.rpc import Reply, Request
from tianzhou.testing import RunningBroker
from tianzhou.wire._generated_codes import RequestCode
from tianzhou.wire.heartbeat import ConsumerData, SubscriptionData, decode_producer_connections

QUICK = ClientOptions(call_timeout_s=1.0, connect_timeout_s=1.0)


def refused_address() -> str:
    """Where nobody listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{taken.getsockname()[1]}"


def test_shared_client_is_shared_until_the_last_member_leaves(mq: RunningBroker, run: Run) -> None:
    async def body() -> None:
        one = SharedClient.join(mq.nameserver)
        two = SharedClient.join(f" {mq.nameserver} ; ")
        apart = SharedClient.join(mq.nameserver, QUICK)
        assert one is two
        assert apart is not one
        address = (await one.route("TBW102")).address("broker-a")
        assert address is not None
        await two.leave()
        await one.call_ok(address, RequestCode.GET_BROKER_RUNTIME_INFO, {})
        await one.leave()
        await apart.leave()
        again = SharedClient.join(mq.nameserver)
        assert again is not one
        await again.leave()

    run(body)


def test_shared_client_is_separate_for_two_consumers_of_one_group(
    mq: RunningBroker, run: Run
) -> None:
    async def body() -> None:
        one = SharedClient.join(mq.nameserver, consumer_group="g")
        other_group = SharedClient.join(mq.nameserver, consumer_group="h")
        second = SharedClient.join(mq.nameserver, consumer_group="g")
        assert other_group is one
        assert second is not one
        assert second.client_id != one.client_id
        await one.leave(consumer_group="g")
        third = SharedClient.join(mq.nameserver, consumer_group="g")
        assert third is one
        for cluster, group in ((third, "g"), (second, "g"), (other_group, "h")):
            await cluster.leave(consumer_group=group)

    run(body)


def test_shared_client_caches_routes(mq: RunningBroker, run: Run) -> None:
    async def body() -> None:
        cluster = SharedClient.join(mq.nameserver, QUICK)
        route = await cluster.route("TBW102")
        assert [queue.queue_id for queue in route.write_queues] == list(range(8))
        await asyncio.to_thread(mq.stop_nameserver)
        assert await cluster.route("TBW102") is route
        with pytest.raises(NoNameServer, match=r"127\.0\.0\.1"):
            await cluster.refresh("TBW102")
        assert cluster.known_route("TBW102") is route
        await cluster.leave()

    run(body)


def test_shared_client_unknown_topic_can_use_the_default_route(mq: RunningBroker, run: Run) -> None:
    async def body() -> None:
        cluster = SharedClient.join(mq.nameserver)
        with pytest.raises(TopicNotFound, match="'nowhere'"):
            await cluster.route("nowhere")
        borrowed = await cluster.route_for_sending("nowhere")
        assert borrowed.is_borrowed
        assert len(borrowed.write_queues) == 4
        with pytest.raises(TopicNotFound):
            await cluster.route("nowhere")
        with pytest.raises(NoRoute, match="broker-z"):
            await cluster.broker_address("broker-z")
        assert await cluster.broker_address("broker-a") == mq.broker
        await cluster.leave()

    run(body)


def test_shared_client_notifies_watchers_of_a_changed_route(mq: RunningBroker, run: Run) -> None:
    async def body() -> None:
        cluster = SharedClient.join(mq.nameserver, ClientOptions(route_interval_s=0.05))
        seen: asyncio.Queue[TopicRoute] = asyncio.Queue()
        stop = cluster.watch_route("TBW102", seen.put_nowait)
        first = await asyncio.wait_for(seen.get(), 120)
        async with RunningBroker(nameserver=mq, config=BrokerConfig(name="broker-b")):
            second = await asyncio.wait_for(seen.get(), 120)
        assert set(first.brokers) == {"broker-a"}
        assert set(second.brokers) == {"broker-a", "broker-b"}
        assert len(second.write_queues) == 16
        stop()
        await cluster.leave()

    run(body)


def test_shared_client_asks_the_next_nameserver_when_one_is_gone(
    mq: RunningBroker, run: Run
) -> None:
    async def body() -> None:
        dead = [refused_address() for _ in range(3)]
        cluster = SharedClient.join(";".join([*dead, mq.nameserver]), QUICK)
        assert await cluster.route("TBW102")
        assert cluster.nameservers.current == mq.nameserver
        await cluster.leave()

    run(body)


def test_shared_client_reconnects_to_a_restarted_nameserver(mq: RunningBroker, run: Run) -> None:
    async def body() -> None:
        cluster = SharedClient.join(mq.nameserver, QUICK)
        await cluster.route("TBW102")
        await asyncio.to_thread(mq.stop_nameserver)
        await asyncio.to_thread(mq.start_nameserver)
        async with asyncio.timeout(120):
            while True:
                try:
                    route = await cluster.refresh("TBW102")
                    break
                except TopicNotFound:  # the broker is not back yet
                    await asyncio.sleep(0.05)
        assert route.brokers
        await cluster.leave()

    run(body)


def test_shared_client_call_errors_have_address_and_reason(mq: RunningBroker, run: Run) -> None:
    async def body() -> None:
        cluster = SharedClient.join(mq.nameserver, QUICK)
        broker = mq.broker
        nobody = refused_address()
        with pytest.raises(Unreachable, match=nobody):
            await cluster.call(nobody, RequestCode.HEART_BEAT, {}, timeout_s=1)
        with pytest.raises(RequestCodeNotSupported, match="31999"):
            await cluster.call_ok(broker, 31_999, {})
        await cluster.leave()

    run(body)


class Silent(asyncio.Protocol):
    """A server that listens and never answers."""

    def __init__(self) -> None:
        self.heard = asyncio.Event()
        self.gone = asyncio.Event()

    def data_received(self, data: bytes) -> None:
        self.heard.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self.gone.set()


def test_shared_client_replaces_a_silent_connection(run: Run) -> None:
    """The peer lost its power: the connection is still open, but no response will arrive."""

    async def body() -> None:
        made: list[Silent] = []

        def accept() -> Silent:
            made.append(Silent())
            return made[-1]

        server = await asyncio.get_running_loop().create_server(accept, "127.0.0.1", 0)
        address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        cluster = SharedClient.join("127.0.0.1:1", ClientOptions(silent_s=0.25))
        for _ in range(2):
            with pytest.raises(CallTimeout):
                await cluster.call(address, 34, {}, timeout_s=0.1)
        assert len(made) == 1  # it might only be slow
        with pytest.raises((CallTimeout, ConnectionLost)):
            await cluster.call(address, 34, {}, timeout_s=0.3)
        with pytest.raises(CallTimeout):
            await cluster.call(address, 34, {}, timeout_s=0.1)
        assert len(made) == 2
        await cluster.leave()
        await asyncio.gather(*(silent.gone.wait() for silent in made))
        server.close()

    run(body)


def test_shared_client_distinguishes_timeouts_from_lost_connections(run: Run) -> None:
    async def body() -> None:
        silent = Silent()
        loop = asyncio.get_running_loop()
        server = await loop.create_server(lambda: silent, "127.0.0.1", 0)
        address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        cluster = SharedClient.join("127.0.0.1:1", QUICK)
        expected = rf"{address} did not respond to request 34 within 0\.1"
        with pytest.raises(CallTimeout, match=expected):
            await cluster.call(address, 34, {}, timeout_s=0.1)
        silent.heard.clear()
        asking = asyncio.create_task(cluster.call(address, 34, {}, timeout_s=10))
        await silent.heard.wait()
        connection = cluster.connections.maybe_connection(address)
        assert connection is not None
        connection.abort()
        with pytest.raises(ConnectionLost, match=address):
            await asking
        await cluster.leave()
        await silent.gone.wait()
        server.close()

    run(body)


def test_shared_client_registers_members_until_they_leave(mq: RunningBroker, run: Run) -> None:
    async def producers(cluster: SharedClient, address: str, group: str) -> list[str]:
        header, body = await cluster.call(
            address,
            RequestCode.GET_PRODUCER_CONNECTION_LIST,
            {"producerGroup": group},
            timeout_s=1,
        )
        if header.code:
            return []
        return [known.client_id for known in decode_producer_connections(body).connection_set]

    async def body() -> None:
        cluster = SharedClient.join(mq.nameserver)
        looking = SharedClient.join(mq.nameserver, QUICK)
        broker = mq.broker
        leave = cluster.add_producer("makers")
        also = cluster.add_producer("makers")
        await cluster.route("TBW102")
        async with asyncio.timeout(120):
            while not (known := await producers(looking, broker, "makers")):
                pass  # each look is a question to the broker
        assert known == [cluster.client_id]
        await also()
        assert await producers(looking, broker, "makers") == [cluster.client_id]
        await leave()
        assert await producers(looking, broker, "makers") == []
        await cluster.leave()
        await looking.leave()

    run(body)


def test_shared_client_passes_broker_requests_to_their_group(mq: RunningBroker, run: Run) -> None:
    def described(group: str) -> ConsumerData:
        wanted = SubscriptionData(topic="TBW102")
        return ConsumerData(group_name=group, subscription_data_set=(wanted,))

    async def body() -> None:
        noticed: asyncio.Queue[str] = asyncio.Queue()
        clusters: list[SharedClient] = []
        for name in ("first", "second"):
            cluster = SharedClient.join(mq.nameserver, consumer_group="readers")
            clusters.append(cluster)

            def notice(request: Request, name: str = name) -> Reply | None:
                assert request.header.ext["consumerGroup"] == "readers"
                noticed.put_nowait(name)
                return None

            cluster.on_request(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, notice, group="readers")
            await cluster.route("TBW102")
            cluster.add_consumer("readers", lambda: described("readers"))
            await cluster.heartbeat_now()
        told: set[str] = set()
        async with asyncio.timeout(120):
            while told != {"first", "second"}:
                told.add(await noticed.get())
        for cluster in clusters:
            await cluster.leave(consumer_group="readers")

    run(body)


def test_shared_client_resolves_host_names_at_each_connect(
    mq: RunningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The name server moves to another address behind its name; clients are not restarted."""
    port = int(mq.nameserver.rpartition(":")[2])
    moved_to = "127.0.0.1"
    looked_up: list[str] = []
    original = socket.getaddrinfo

    def lookup(host: str | None, *arguments: object, **named: object) -> object:
        if host == "names.test":
            looked_up.append(moved_to)
            host = moved_to
        return original(host, *arguments, **named)  # pyright: ignore[reportArgumentType, reportCallIssue] # handed on as it came

    monkeypatch.setattr(socket, "getaddrinfo", lookup)

    async def body() -> None:
        nonlocal moved_to
        moved_to = "127.0.0.2"  # nobody is there yet
        cluster = SharedClient.join(f"names.test:{port}", QUICK)
        with pytest.raises(NoNameServer):
            await cluster.route("TBW102")
        moved_to = "127.0.0.1"
        assert (await cluster.route("TBW102")).write_queues
        await cluster.leave()

    # uvloop asks the system's resolver itself, where a test has no say.
    asyncio.run(body())
    assert looked_up[0] == "127.0.0.2"
    assert looked_up[-1] == "127.0.0.1"
