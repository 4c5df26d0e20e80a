"""The resolver of host names, with DNS replaced by a table."""

import asyncio
import socket
import threading
from typing import Any

import pytest

from tianzhou.net import resolver
from tianzhou.net.resolver import Resolver, addresses_of


def answer(*hosts: str) -> list[tuple[Any, ...]]:
    return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (host, 1)) for host in hosts]


@pytest.mark.parametrize(
    ("found", "wanted"),
    [
        (("10.0.0.2", "10.0.0.1"), ("10.0.0.1:1", "10.0.0.2:1")),
        (("::1", "127.0.0.1"), ("127.0.0.1:1",)),
        (("::1",), ("[::1]:1",)),
    ],
)
def test_resolver_returns_every_address_of_one_family(
    monkeypatch: pytest.MonkeyPatch, found: tuple[str, ...], wanted: tuple[str, ...]
) -> None:
    def look_up(*_args: object, **_kwargs: object) -> list[tuple[Any, ...]]:
        return answer(*found)

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    assert asyncio.run(Resolver().addresses(["mq.test:1"])) == {"mq.test:1": wanted}
    assert addresses_of("mq.test:1") == wanted


@pytest.mark.parametrize("name", ["mq.invalid:1", "a..b:1"])
def test_resolver_leaves_out_a_name_that_cannot_be_resolved(name: str) -> None:
    assert asyncio.run(Resolver().addresses([name, "127.0.0.1:1"])) == {
        "127.0.0.1:1": ("127.0.0.1:1",)
    }
    assert addresses_of(name) == ()


def test_resolver_does_not_wait_for_a_server_that_hangs_and_uses_its_answer_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked, released = 0, threading.Event()

    def hang(*_args: object, **_kwargs: object) -> list[tuple[Any, ...]]:
        nonlocal asked
        asked += 1
        released.wait(30)
        return answer("10.0.0.1")

    monkeypatch.setattr(socket, "getaddrinfo", hang)
    monkeypatch.setattr(resolver, "RESOLVE_S", 0.01)

    async def body() -> None:
        names = Resolver()
        assert await names.addresses(["mq.test:1"]) == {}
        assert await names.addresses(["mq.test:1"]) == {}
        assert asked == 1, "one lookup at a time"
        monkeypatch.setattr(resolver, "RESOLVE_S", 30.0)
        released.set()
        assert await names.addresses(["mq.test:1"]) == {"mq.test:1": ("10.0.0.1:1",)}

    try:
        asyncio.run(body())
    finally:
        released.set()
