"""The cluster against real servers in the same loop: routes, calls, heartbeats, requests."""

import asyncio
import socket
from pathlib import Path

import pytest
from serving import serving

from tianzhou.client.aio.cluster import Cluster
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
from tianzhou.net.exchange import Reply, Request
from tianzhou.wire._generated_codes import RequestCode
from tianzhou.wire.heartbeat import ConsumerData, SubscriptionData, decode_producer_connections

QUICK = ClientOptions(call_timeout_s=1.0, connect_timeout_s=1.0)


def refused_address() -> str:
    """Where nobody listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{taken.getsockname()[1]}"


def test_members_of_one_loop_share_one_cluster_until_the_last_has_left(tmp_path: Path) -> None:
    async def body() -> None:
        async with serving(tmp_path) as served:
            one = Cluster.join(served.nameserver)
            two = Cluster.join(f" {served.nameserver} ; ")
            apart = Cluster.join(served.nameserver, QUICK)
            assert one is two
            assert apart is not one
            address = (await one.route("TBW102")).address("broker-a")
            assert address is not None
            await two.leave()
            await one.call_ok(address, RequestCode.GET_BROKER_RUNTIME_INFO, {})
            await one.leave()
            await apart.leave()
            again = Cluster.join(served.nameserver)
            assert again is not one
            await again.leave()

    asyncio.run(body())


def test_two_consumers_of_one_group_get_clusters_of_their_own(tmp_path: Path) -> None:
    async def body() -> None:
        async with serving(tmp_path) as served:
            one = Cluster.join(served.nameserver, consumer_group="g")
            other_group = Cluster.join(served.nameserver, consumer_group="h")
            second = Cluster.join(served.nameserver, consumer_group="g")
            assert other_group is one
            assert second is not one
            assert second.client_id != one.client_id
            await one.leave(consumer_group="g")
            third = Cluster.join(served.nameserver, consumer_group="g")
            assert third is one
            for cluster, group in ((third, "g"), (second, "g"), (other_group, "h")):
                await cluster.leave(consumer_group=group)

    asyncio.run(body())


def test_routes_are_asked_for_once_and_kept(tmp_path: Path) -> None:
    async def body() -> None:
        async with serving(tmp_path) as served:
            cluster = Cluster.join(served.nameserver, QUICK)
            route = await cluster.route("TBW102")
            assert [queue.queue_id for queue in route.write_queues] == list(range(8))
            await served.stop_nameserver()
            assert await cluster.route("TBW102") is route
            with pytest.raises(NoNameServer, match=r"127\.0\.0\.1"):
                await cluster.refresh("TBW102")
            assert cluster.known_route("TBW102") is route
            await cluster.leave()

    asyncio.run(body())


def test_an_unknown_topic_is_said_to_be_unknown_and_can_be_borrowed(tmp_path: Path) -> None:
    async def body() -> None:
        async with serving(tmp_path) as served:
            cluster = Cluster.join(served.nameserver)
            with pytest.raises(TopicNotFound, match="'nowhere'"):
                await cluster.route("nowhere")
            borrowed = await cluster.route_for_sending("nowhere")
            assert borrowed.is_borrowed
            assert len(borrowed.write_queues) == 4
            with pytest.raises(TopicNotFound):
                await cluster.route("nowhere")
            with pytest.raises(NoRoute, match="broker-z"):
                await cluster.broker_address("broker-z")
            assert await cluster.broker_address("broker-a") == served.brokers["broker-a"].address
            await cluster.leave()

    asyncio.run(body())


def test_a_changed_route_is_told_to_those_who_watch(tmp_path: Path) -> None:
    async def body() -> None:
        async with serving(tmp_path) as served:
            cluster = Cluster.join(served.nameserver, ClientOptions(route_interval_s=0.05))
            seen: asyncio.Queue[TopicRoute] = asyncio.Queue()
            stop = cluster.watch_route("TBW102", seen.put_nowait)
            first = await asyncio.wait_for(seen.get(), 5)
            await served.start_broker("broker-b")
            second = await asyncio.wait_for(seen.get(), 5)
            assert set(first.brokers) == {"broker-a"}
            assert set(second.brokers) == {"broker-a", "broker-b"}
            assert len(second.write_queues) == 16
            stop()
            await cluster.leave()

    asyncio.run(body())


def test_the_next_name_server_is_asked_when_one_is_gone(tmp_path: Path) -> None:
    async def body() -> None:
        async with serving(tmp_path) as served:
            dead = [refused_address() for _ in range(3)]
            cluster = Cluster.join(";".join([*dead, served.nameserver]), QUICK)
            assert await cluster.route("TBW102")
            assert cluster.nameservers.current == served.nameserver
            await cluster.leave()

    asyncio.run(body())


def test_a_name_server_may_restart(tmp_path: Path) -> None:
    async def body() -> None:
        async with serving(tmp_path) as served:
            cluster = Cluster.join(served.nameserver, QUICK)
            await cluster.route("TBW102")
            port = await served.stop_nameserver()
            await served.start_nameserver(port)
            async with asyncio.timeout(10):
                while True:
                    try:
                        route = await cluster.refresh("TBW102")
                        break
                    except TopicNotFound:  # the broker is not back yet
                        await asyncio.sleep(0.05)
            assert route.brokers
            await cluster.leave()

    asyncio.run(body())


def test_calls_that_fail_say_where_and_why(tmp_path: Path) -> None:
    async def body() -> None:
        async with serving(tmp_path) as served:
            cluster = Cluster.join(served.nameserver, QUICK)
            broker = served.brokers["broker-a"].address
            nobody = refused_address()
            with pytest.raises(Unreachable, match=nobody):
                await cluster.call(nobody, RequestCode.HEART_BEAT, {}, timeout_s=1)
            with pytest.raises(RequestCodeNotSupported, match="31999"):
                await cluster.call_ok(broker, 31_999, {})
            await cluster.leave()

    asyncio.run(body())


class Silent(asyncio.Protocol):
    """A server that listens and never answers."""

    def __init__(self) -> None:
        self.heard = asyncio.Event()
        self.gone = asyncio.Event()

    def data_received(self, data: bytes) -> None:
        self.heard.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self.gone.set()


def test_silence_and_a_lost_connection_are_told_apart() -> None:
    async def body() -> None:
        silent = Silent()
        loop = asyncio.get_running_loop()
        server = await loop.create_server(lambda: silent, "127.0.0.1", 0)
        address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        cluster = Cluster.join("127.0.0.1:1", QUICK)
        with pytest.raises(CallTimeout, match=rf"{address} did not answer request 34 within 0\.1"):
            await cluster.call(address, 34, {}, timeout_s=0.1)
        silent.heard.clear()
        asking = asyncio.create_task(cluster.call(address, 34, {}, timeout_s=10))
        await silent.heard.wait()
        channel = cluster.connections.maybe_channel(address)
        assert channel is not None
        channel.abort()
        with pytest.raises(ConnectionLost, match=address):
            await asking
        await cluster.leave()
        await silent.gone.wait()
        server.close()

    asyncio.run(body())


def test_brokers_know_the_members_from_the_first_word_to_the_last(tmp_path: Path) -> None:
    async def producers(cluster: Cluster, address: str, group: str) -> list[str]:
        header, body = await cluster.call(
            address, RequestCode.GET_PRODUCER_CONNECTION_LIST, {"producerGroup": group},
            timeout_s=1,
        )  # fmt: skip
        if header.code:
            return []
        return [known.client_id for known in decode_producer_connections(body).connection_set]

    async def body() -> None:
        async with serving(tmp_path) as served:
            cluster = Cluster.join(served.nameserver)
            looking = Cluster.join(served.nameserver, QUICK)
            broker = served.brokers["broker-a"].address
            leave = cluster.add_producer("makers")
            also = cluster.add_producer("makers")
            await cluster.route("TBW102")
            async with asyncio.timeout(5):
                while not (known := await producers(looking, broker, "makers")):
                    pass  # each look is a question to the broker
            assert known == [cluster.client_id]
            await also()
            assert await producers(looking, broker, "makers") == [cluster.client_id]
            await leave()
            assert await producers(looking, broker, "makers") == []
            await cluster.leave()
            await looking.leave()

    asyncio.run(body())


def test_requests_of_brokers_reach_the_group_they_concern(tmp_path: Path) -> None:
    def described(group: str) -> ConsumerData:
        wanted = SubscriptionData(topic="TBW102")
        return ConsumerData(group_name=group, subscription_data_set=(wanted,))

    async def body() -> None:
        async with serving(tmp_path) as served:
            noticed: asyncio.Queue[str] = asyncio.Queue()
            clusters: list[Cluster] = []
            for name in ("first", "second"):
                cluster = Cluster.join(served.nameserver, consumer_group="readers")
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
            async with asyncio.timeout(5):
                while told != {"first", "second"}:
                    told.add(await noticed.get())
            for cluster in clusters:
                await cluster.leave(consumer_group="readers")

    asyncio.run(body())
