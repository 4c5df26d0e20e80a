"""Connections that are slow, silent, too many, too fast, or never read."""

import asyncio
import socket
from dataclasses import replace
from pathlib import Path

import pytest
from live import Live, Witness, running, wait_for
from raw_client import RawClient, pull_of, request, send_v2
from small_server import (
    ECHO,
    LARGE,
    PARKED,
    TRICKLE_PAUSE_S,
    Echo,
    World,
    ended,
    run,
    trickle,
    until,
)

from tianzhou.net.limits import CLIENT_PORT, NetLimits

FLOW_CONTROL = 215
ONEWAY = 2
SOON = NetLimits(idle_s=0.4, partial_s=0.2, blocked_s=0.2, close_s=0.2, sweep_s=0.02)
TURNS = 4
"""Bytes that a trickle sends between its deadline and the end that the client sees."""


def encode(code: int, body: bytes = b"") -> bytes:
    return request(code, body=body)[1]


@pytest.mark.parametrize("kept", [1, 4, 8, 20], ids=["1", "size", "prefix", "half"])
def test_s05_connection_silent_within_a_frame_is_closed(kept: int) -> None:
    async def play(world: World) -> None:
        reader, writer = await world.connect()
        writer.write(encode(ECHO)[:kept])
        assert await ended(reader)
        await until(lambda: world.count() == 0)

    run(play, SOON)


def test_s05_frame_sent_in_a_trickle_is_closed_at_its_deadline() -> None:
    limits = NetLimits(partial_s=0.2, sweep_s=0.02)

    async def play(world: World) -> None:
        start = asyncio.get_running_loop().time()
        sent = await trickle(world, encode(ECHO, bytes(1_000)))
        assert asyncio.get_running_loop().time() - start >= limits.partial_s
        assert sent <= (limits.partial_s + limits.sweep_s) / TRICKLE_PAUSE_S + TURNS

    run(play, limits)


def test_s05_idle_connection_is_closed_and_active_one_is_kept() -> None:
    async def play(world: World) -> None:
        silent, _ = await world.connect()
        reader, writer = await world.connect()
        while not silent.at_eof():
            writer.write(encode(ECHO))
            await reader.readexactly(1)
            await asyncio.sleep(0.02)
        assert world.count() == 1

    run(play, SOON)


def test_s05_default_limits_of_a_server() -> None:
    limits = NetLimits()
    assert (limits.partial_s, limits.idle_s, limits.blocked_s) == (15, 120, 30)


async def connect_proven(world: World) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Open a connection that has sent a valid frame and received the response."""
    reader, writer = await world.connect()
    writer.write(encode(ECHO))
    assert await reader.readexactly(4)
    return reader, writer


@pytest.mark.parametrize("allowed", [1, 7])
def test_s06_connections_beyond_the_limit_are_closed_at_once(allowed: int) -> None:
    async def play(world: World) -> None:
        for _ in range(allowed):
            await connect_proven(world)
        for _ in range(20):
            reader, _ = await world.connect()
            assert await ended(reader)
        assert world.server.refused_count == 20
        assert world.count() == allowed
        world.writers[0].close()
        await until(lambda: world.count() < allowed)
        await connect_proven(world)

    run(play, NetLimits(), port_limits=replace(CLIENT_PORT, connections_max=allowed))


def test_s06_silent_connections_are_closed_to_make_room() -> None:
    """A port full of silent connections still accepts every peer that sends requests."""

    async def play(world: World) -> None:
        kept = await connect_proven(world)
        silent = [await world.connect() for _ in range(12)]
        for reader, _ in silent[:-4]:
            assert await ended(reader)
        for _ in range(3):
            await connect_proven(world)
        assert world.count() <= 8
        kept[1].write(encode(ECHO))
        assert await kept[0].readexactly(4), "a proven connection is never closed"

    run(play, NetLimits(), port_limits=replace(CLIENT_PORT, connections_max=8))


def test_s05_connection_without_a_whole_frame_is_closed_at_its_deadline() -> None:
    """A frame's deadline starts with its first byte, a connection's when it is accepted."""
    # On a busy machine the first connection may need a while for its first frame.
    port = replace(CLIENT_PORT, prove_s=1.0)

    async def play(world: World) -> None:
        spoke, _ = await connect_proven(world)
        start = asyncio.get_running_loop().time()
        sent = await trickle(world, encode(ECHO, bytes(1_000)))
        assert asyncio.get_running_loop().time() - start >= port.prove_s
        assert sent <= port.prove_s / TRICKLE_PAUSE_S + TURNS
        assert world.server.expired_count == 1
        assert not spoke.at_eof()

    run(play, NetLimits(), port_limits=port)


def test_s06_connections_from_one_address_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    """Connections of this machine are not limited, so the test fakes another source address."""
    from tianzhou.net import acceptor

    def fake_source(_: str) -> str:
        return "10.1.1.1"

    async def play(world: World) -> None:
        for _ in range(5):
            await connect_proven(world)
        monkeypatch.setattr(acceptor, "source_of", fake_source)
        writers = [(await connect_proven(world))[1] for _ in range(2)]
        reader, _ = await world.connect()
        assert await ended(reader)
        assert world.count() == 7
        for writer in writers:  # closing a connection makes room
            writer.close()
        await until(lambda: world.count() == 5)
        for _ in range(2):
            await connect_proven(world)

    run(play, NetLimits(), port_limits=replace(CLIENT_PORT, per_source_max=2))


def test_s06_connection_churn_leaks_no_descriptor(live: Live) -> None:
    before = live.fd_count()
    for _ in range(10):
        clients = [live.to_broker() for _ in range(50)]
        for client in clients:
            client.socket.close()
    wait_for(lambda: live.fd_count() <= before)


def test_s07_server_stops_reading_at_the_limit_of_requests_in_flight() -> None:
    service = Echo()

    async def play(world: World) -> None:
        reader, writer = await world.connect()
        for _ in range(100):
            writer.write(encode(PARKED))
        await until(lambda: len(service.parked) == 10)
        other, pen = await world.connect()
        pen.write(encode(ECHO))
        assert await other.readexactly(4)
        assert len(service.parked) == 10
        for released in range(10, 101, 10):
            service.release()
            await until(lambda done=released: service.handled == min(done + 10, 100) + 1)
        service.release()
        assert await reader.readexactly(100)

    run(play, NetLimits(waiting_count_max=10), service)


def test_s07_server_stops_reading_at_the_limit_of_bytes_in_flight() -> None:
    service = Echo()

    async def play(world: World) -> None:
        reader, writer = await world.connect()
        for _ in range(20):
            writer.write(encode(PARKED, bytes(50_000)))
        await until(lambda: len(service.parked) == 3)
        while service.handled < 20:
            service.release(50_000)
            await asyncio.sleep(0.005)
        service.release(50_000)
        assert await reader.readexactly(20)

    run(play, NetLimits(waiting_bytes_max=120_000), service)


def test_s07_waiting_pulls_of_a_connection_are_limited(live: Live) -> None:
    with live.to_broker() as client:
        client.ask(310, send_v2("Patience"), b"x")
        pull = pull_of("Patience", offset=1, queue_id=1, sysFlag="6", suspendTimeoutMillis="60000")
        pull["queueOffset"] = "0"
        for _ in range(1_025):
            client.send(request(11, pull)[1])
        response = client.receive()
        assert response.code == FLOW_CONTROL
        assert "1024 pulls" in response.remark
        assert "retry" in response.remark
        # Other requests of this connection are still served.
        assert client.ask(34, {}, b'{"clientID":"patient"}').code == 0


def test_s07_sends_that_wait_for_the_disk_all_get_responses(live: Live) -> None:
    with live.to_broker() as client:
        client.ask(310, send_v2("Eager"), b"x")
        data = b"".join(request(310, send_v2("Eager"), bytes(2_000))[1] for _ in range(5_000))
        client.socket.setblocking(False)
        sent = received = 0
        while received < 5_000:
            if sent < len(data):
                try:
                    sent += client.socket.send(data[sent : sent + 2**18])
                except BlockingIOError:
                    client.socket.setblocking(True)
                    assert client.receive().code == 0
                    received += 1
                    client.socket.setblocking(False)
            else:
                client.socket.setblocking(True)
                assert client.receive().code == 0
                received += 1


@pytest.mark.slow
def test_s07_flood_of_oneway_sends_is_bounded_and_stored(tmp_path: Path) -> None:
    """The client does not wait for responses, so only the broker can slow it down: the number of
    messages that wait for the disk is bounded, others are served in time, and all are stored."""
    flood, messages = 40 * 2**20, 20_000
    with running(tmp_path, "--sync-flush") as live, live.to_broker() as client:
        witness = Witness(live)
        assert client.ask(310, send_v2("Flood"), b"x").code == 0
        witness.check()
        before, heap_max = live.heap_bytes(), 0
        _, one = request(310, send_v2("Flood"), bytes(flood // messages), flag=ONEWAY)
        for _ in range(messages // 500):
            client.send(one * 500)
            heap_max = max(heap_max, live.heap_bytes())
        witness.check()
        # The response follows after all earlier sends were processed.
        assert client.ask(30, {"topic": "Flood", "queueId": "0"}, wait_s=60).code == 0
        wait_for(lambda: end_of(client, "Flood") == messages + 1, 30)
        assert heap_max - before < flood // 2, f"{(heap_max - before) >> 10} KiB"
        witness.check()
        witness.stop()


def end_of(client: RawClient, topic: str) -> int:
    return int(client.ask(30, {"topic": topic, "queueId": "0"}).header.ext["offset"])


def test_s08_client_that_never_reads_is_dropped() -> None:
    service = Echo(large_bytes=256 * 1024)

    async def play(world: World) -> None:
        reader, writer = await world.connect()
        for _ in range(500):
            writer.write(encode(LARGE))
        await until(lambda: world.service.handled > 5)
        await until(lambda: world.count() == 0)
        assert await ended(reader)
        assert service.handled < 100  # it stopped long before it had served all

    # The client never reads; only its own socket buffer takes some responses.
    run(play, NetLimits(write_bytes_max=2**20, blocked_s=0.5, sweep_s=0.02), service)


def test_s08_client_that_reads_slowly_gets_everything() -> None:
    service = Echo(large_bytes=100_000)

    async def play(world: World) -> None:
        reader, writer = await world.connect()
        for _ in range(200):
            writer.write(encode(LARGE))
        got = 0
        while got < 200 * 100_000:
            got += len(await reader.read(2**18))
            await asyncio.sleep(0.001)
        assert service.handled == 200

    run(play, NetLimits(write_bytes_max=2**18), service)


def test_s08_closing_a_client_that_never_reads_is_bounded() -> None:
    """Closing waits until responses are sent, which never happens here."""
    service = Echo(large_bytes=256 * 1024)

    async def play(world: World) -> None:
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(sock, ("127.0.0.1", world.port))
        for _ in range(30):
            await loop.sock_sendall(sock, encode(LARGE))
        await loop.sock_sendall(sock, bytes(8))
        await until(lambda: service.handled == 30)
        await until(lambda: world.count() == 0)
        sock.close()

    run(play, NetLimits(write_bytes_max=2**26, close_s=0.1, sweep_s=0.02), service)


def test_s08_unsent_bytes_of_all_connections_are_bounded() -> None:
    service = Echo(large_bytes=2**20)

    async def play(world: World) -> None:
        for _ in range(20):
            _, writer = await world.connect()
            for _ in range(30):
                writer.write(encode(LARGE))
        await until(lambda: service.closed_count > 0)
        assert world.count() > 0

    run(play, NetLimits(write_bytes_max=2**23, unsent_bytes_max=2**25, sweep_s=0.02), service)


def test_s08_partial_frames_of_all_connections_are_bounded() -> None:
    async def play(world: World) -> None:
        for _ in range(30):
            _, writer = await world.connect()
            writer.write(encode(ECHO, bytes(4 * 2**20))[: 2**20])
            await writer.drain()
        await until(lambda: world.service.closed_count > 5)
        reader, writer = await world.connect()
        writer.write(encode(ECHO, bytes(2 * 2**20)))
        assert await reader.readexactly(4)

    run(play, NetLimits(partial_bytes_max=2**24))


def test_s08_many_large_pulls_in_one_read_use_bounded_memory(live: Live) -> None:
    with live.to_broker() as client:
        for _ in range(8):
            assert client.ask(310, send_v2("LargePulls"), bytes(2**20)).code == 0
    before = live.rss_bytes()
    with RawClient(live.broker, receive_buffer=65_536) as client:
        pull = pull_of("LargePulls", maxMsgBytes=str(4 * 2**20))
        client.send(b"".join(request(11, pull)[1] for _ in range(600)))
        with live.to_broker() as other:
            for _ in range(20):
                assert other.ask(31_999).code == 3
        assert live.rss_bytes() - before < 64 * 2**20
