"""Connections between members: unresponsive members, and unknown clients at the port."""

import asyncio
import contextlib
import json
import socket
from collections.abc import Awaitable, Callable

import pytest
from raft_trio import until

from tianzhou.raft import codec
from tianzhou.raft.messages import Message, Term, TimeoutNow
from tianzhou.replication import raft_peers
from tianzhou.replication.raft_peers import Greeting, MemberKind, Peers

KINDS = {
    "n0": MemberKind.COPY,
    "n1": MemberKind.COPY,
    "n2": MemberKind.COPY,
    "w": MemberKind.WITNESS,
}
GREETING = {
    "group": "g",
    "member": "n1",
    "file_bytes": 4096,
    "broker": "",
    "to": "n0",
    "version": 1,
}


def peers_of(name: str, heard: list[Message] | None = None) -> Peers:
    def lost(_: str) -> None: ...

    greeting = Greeting("g", name, 4096, f"{name}:1", KINDS[name])
    heard = [] if heard is None else heard
    return Peers(greeting, heard.append, lost, KINDS.get)


def play(scene: Callable[[Peers, int], Awaitable[None]]) -> None:
    async def run() -> None:
        peers = peers_of("n0")
        try:
            await scene(peers, peers.listen("127.0.0.1", 0))
        finally:
            await peers.close()

    asyncio.run(run())


def frame(value: object) -> bytes:
    text = json.dumps(value).encode()
    return len(text).to_bytes(4, "big") + text


async def ended(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with contextlib.suppress(ConnectionError):
        await writer.wait_closed()


def test_peer_that_accepts_and_stays_silent_is_redialled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The peer is a machine that lost power, or the network dropped the connection."""
    monkeypatch.setattr(raft_peers, "GREET_S", 0.1)

    async def scene(peers: Peers, _port: int) -> None:
        with contextlib.ExitStack() as stack:
            deaf = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
            deaf.settimeout(20)
            port = deaf.getsockname()[1]
            peers.reach({"n1": f"127.0.0.1:{port}"})
            for _ in range(2):
                stack.enter_context((await asyncio.to_thread(deaf.accept))[0])
        other = peers_of("n1")
        other.listen("127.0.0.1", port)
        await until(lambda: peers.is_connected("n1"))
        await asyncio.sleep(0.3)
        assert peers.is_connected("n1"), "who has answered stays"
        await other.close()

    play(scene)


def test_silent_unknown_client_is_disconnected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(raft_peers, "GREET_S", 0.1)

    async def scene(_peers: Peers, port: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        async with asyncio.timeout(120):
            assert not await reader.read(1)
        await ended(writer)

    play(scene)


@pytest.mark.parametrize("field", ["group", "member", "to", "version", "file_bytes"])
@pytest.mark.parametrize("wrong", [None, [], {}, [["n1"]], "other", 7])
def test_invalid_greeting_is_rejected_with_a_reason(field: str, wrong: object) -> None:
    async def scene(_peers: Peers, port: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(frame({**GREETING, field: wrong}))
        async with asyncio.timeout(120):
            size = int.from_bytes(await reader.readexactly(4), "big")
            answer = json.loads(await reader.readexactly(size))
            assert answer["error"]
            assert not await reader.read(1)
        await ended(writer)

    play(scene)


@pytest.mark.parametrize("text", [b"[" * 100_000, b'{"a":' * 100_000])
def test_frame_nested_too_deeply_has_no_fields(text: bytes) -> None:
    assert raft_peers._json(text) == {}


@pytest.mark.parametrize(
    "text", [b"[" * 4000, b'{"a":' * 800, b'{"member":' + b"[" * 4000, b"1" * 4096, b'"\xff"']
)
@pytest.mark.parametrize("is_greeted", [False, True])
def test_frame_nested_too_deeply_is_rejected(text: bytes, *, is_greeted: bool) -> None:
    """Before and after the greeting, which a secret makes the first of two frames."""

    async def scene(peers: Peers, port: int) -> None:
        peers._secret = "secret" if is_greeted else ""
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        if is_greeted:
            writer.write(frame(GREETING))
            size = int.from_bytes(await reader.readexactly(4), "big")
            assert json.loads(await reader.readexactly(size))["member"] == "n0"
        writer.write(len(text).to_bytes(4, "big") + text)
        async with asyncio.timeout(120):
            size = int.from_bytes(await reader.readexactly(4), "big")
            assert json.loads(await reader.readexactly(size))["error"]
            assert not await reader.read(1)
        await ended(writer)

    play(scene)


def test_greeting_with_a_wrong_sender_or_receiver_is_rejected() -> None:
    heard: list[Message] = []

    async def run() -> None:
        peers = peers_of("n0", heard)
        port = peers.listen("127.0.0.1", 0)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(frame(GREETING))
        size = int.from_bytes(await reader.readexactly(4), "big")
        assert json.loads(await reader.readexactly(size))["member"] == "n0"
        assert "n1" in peers.brokers
        for sender, to in (("n2", "n0"), ("n1", "n2"), ("n1", "n0")):
            text = b"".join(map(bytes, codec.encode(TimeoutNow(Term(3), sender, to))))
            writer.write(len(text).to_bytes(4, "big") + text)
        await until(lambda: bool(heard))
        await ended(writer)
        await peers.close()

    asyncio.run(run())
    assert heard == [TimeoutNow(Term(3), "n1", "n0")]
