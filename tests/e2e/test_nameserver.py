"""A name server on a real socket, exercised with raw frames."""

import asyncio
import json
from collections.abc import Awaitable, Callable

import pytest
from name_client import World, identity, name_server

from tianzhou.nameserver.config import NameServerConfig
from tianzhou.wire.routes import decode_cluster_table
from tianzhou.wire.tables import decode_kv_table, decode_topic_list


def run(play: Callable[[World], Awaitable[None]], config: NameServerConfig | None = None) -> None:
    async def whole() -> None:
        async with name_server(config) as world:
            await play(world)

    asyncio.run(whole())


@pytest.mark.parametrize("compressed", [False, True])
def test_registered_broker_is_found_by_a_client(compressed: bool) -> None:
    async def play(world: World) -> None:
        broker, client = await world.client(), await world.client()
        assert (await broker.register(compressed=compressed)).code == 0
        route = await client.route()
        assert route is not None
        assert route.broker_datas[0].broker_addrs == {0: "10.0.0.1:10911"}
        assert route.queue_datas[0].read_queue_nums == 4
        _, body = await client.ask(106)
        assert decode_cluster_table(body).cluster_addr_table == {"c": ["broker-a"]}
        _, body = await client.ask(206)
        assert set(decode_topic_list(body).topic_list) == {"T", "U"}

    run(play)


def test_response_header_uses_the_encoding_of_the_request() -> None:
    async def play(world: World) -> None:
        broker, client = await world.client(), await world.client()
        await broker.register()
        for binary in (True, False):
            header, body = await client.ask(105, {"topic": "T"}, binary=binary)
            assert header.serialise_type == binary
            assert json.loads(body)["brokerDatas"]

    run(play)


def test_old_clients_get_json_with_unquoted_keys() -> None:
    async def play(world: World) -> None:
        broker, client = await world.client(), await world.client()
        await broker.register()
        _, body = await client.ask(105, {"topic": "T"}, version=63)
        assert b'"brokerAddrs":{0:"10.0.0.1:10911"}' in body
        _, body = await client.ask(
            105, {"topic": "T", "acceptStandardJsonOnly": "true"}, version=63
        )
        assert json.loads(body)

    run(play)


def test_route_lists_the_connected_address_first() -> None:
    async def play(world: World) -> None:
        broker, client = await world.client(), await world.client()
        await broker.register(brokerAddr="0.0.0.0:10911", tzAddressByDial="true")
        route = await client.route()
        assert route is not None
        assert route.broker_datas[0].broker_addrs == {0: "127.0.0.1:10911"}

    run(play)


def test_silent_broker_is_removed_and_its_connection_closed() -> None:
    async def play(world: World) -> None:
        broker, client = await world.client(), await world.client()
        await broker.register()
        assert await client.route()
        world.clock.advance(seconds=121)
        assert await broker.ended()
        assert await client.route() is None

    run(play)


def test_heartbeat_keeps_a_broker_registered() -> None:
    async def play(world: World) -> None:
        broker, client = await world.client(), await world.client()
        await broker.register()
        world.clock.advance(seconds=100)
        assert (await broker.ask(904, identity()))[0].code == 0
        world.clock.advance(seconds=100)
        world.server.scan()
        assert await client.route()

    run(play)


def test_broker_is_removed_when_its_connection_closes() -> None:
    async def play(world: World) -> None:
        broker, client = await world.client(), await world.client()
        await broker.register()
        assert await client.route()
        await broker.close()
        # The event loop notices it a little later; each request gives it time.
        while await client.route():
            pass
        assert world.clock.monotonic_s() == 0

    run(play)


def test_unregistered_broker_is_removed() -> None:
    async def play(world: World) -> None:
        broker = await world.client()
        await broker.register()
        assert (await broker.ask(104, identity()))[0].code == 0
        assert await broker.route() is None

    run(play)


def test_write_permission_is_wiped_and_restored() -> None:
    async def play(world: World) -> None:
        broker, client = await world.client(), await world.client()
        await broker.register()

        async def perm() -> int:
            route = await client.route()
            assert route is not None
            return route.queue_datas[0].perm

        header, _ = await client.ask(205, {"brokerName": "broker-a"})
        assert header.ext == {"wipeTopicCount": "2"}
        assert await perm() == 4
        await broker.register()
        assert await perm() == 4
        header, _ = await client.ask(327, {"brokerName": "broker-a"})
        assert header.ext == {"addTopicCount": "2"}
        assert await perm() == 6

    run(play)


def test_key_value_entries_are_stored_and_deleted() -> None:
    async def play(world: World) -> None:
        client = await world.client()
        key = {"namespace": "n", "key": "k"}
        assert (await client.ask(101, key))[0].code == 22
        assert (await client.ask(100, key | {"value": "ü"}))[0].code == 0
        assert (await client.ask(101, key))[0].ext == {"value": "ü"}
        assert decode_kv_table((await client.ask(219, key))[1]).table == {"k": "ü"}
        await client.ask(102, key)
        header, body = await client.ask(219, key)
        assert (header.code, json.loads(body)) == (0, {"table": {}}), "empty, not unknown"

    run(play)


def test_unknown_topic_and_unknown_code_get_error_responses() -> None:
    async def play(world: World) -> None:
        client = await world.client()
        header, _ = await client.ask(105, {"topic": "nobody's"})
        assert header.code == 17
        assert header.remark is not None
        assert "nobody's" in header.remark
        assert (await client.ask(9999))[0].code == 3
        assert (await client.ask(10))[0].code == 3
        header, _ = await client.ask(105)
        assert (header.code, "topic" in (header.remark or "")) == (1, True)

    run(play)


def test_oneway_request_is_executed_without_a_response() -> None:
    async def play(world: World) -> None:
        client = await world.client()
        await client.tell(100, {"namespace": "n", "key": "k", "value": "v"})
        await client.tell(9999, {})
        assert (await client.ask(101, {"namespace": "n", "key": "k"}))[0].ext == {"value": "v"}

    run(play)


def test_requests_of_one_write_get_responses_in_order() -> None:
    async def play(world: World) -> None:
        client = await world.client()
        sent = [client.send(105, {"topic": "T"}) for _ in range(50)]
        received = [await client.receive() for _ in sent]
        assert [header.opaque for header, _ in received] == sent

    run(play)


@pytest.mark.parametrize(
    "garbage",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"\xff" * 64,
        bytes(64),
        b"\0\0\0\x08\0\0\0\x04nope",
        b"\0\0\0\x08\x02\0\0\x04{}  ",
    ],
)
def test_garbage_closes_only_its_own_connection(garbage: bytes) -> None:
    async def play(world: World) -> None:
        broker, attacker = await world.client(), await world.client()
        await broker.register()
        attacker.send_bytes(garbage)
        assert await attacker.ended()
        assert await broker.route()

    run(play)


def test_invalid_body_gets_an_error_response_and_keeps_the_connection() -> None:
    async def play(world: World) -> None:
        broker = await world.client()
        header, _ = await broker.ask(103, identity(haServerAddr=""), b"\x78\x9cgarbage")
        assert header.code == 1
        assert (await broker.register(bodyCrc32="1")).code == 1
        assert (await broker.register()).code == 0

    run(play)


def test_changed_scan_interval_applies_from_the_next_scan() -> None:
    async def play(world: World) -> None:
        client = await world.client()
        header, _ = await client.ask(318, {}, b"scanNotActiveBrokerInterval=20\n")
        assert header.code == 0
        assert world.server.config.scan_interval_ms == 20
        _, body = await client.ask(319)
        assert b"scanNotActiveBrokerInterval=20\n" in body
        assert (await client.ask(318, {}, b"bindAddress=0.0.0.0\n"))[0].code == 16

    run(play)


def test_stop_closes_open_connections() -> None:
    async def play(world: World) -> None:
        client = await world.client()
        assert await client.route() is None
        await world.server.close()
        assert await client.ended()
        with pytest.raises(OSError):
            await world.client()

    run(play)
