"""NameServers in this process, and names of hosts that a test can change."""

import socket
from types import TracebackType
from typing import Any, Self

import pytest

from tianzhou.client import sync
from tianzhou.client.sync import Admin
from tianzhou.nameserver.config import NameServerConfig
from tianzhou.nameserver.server import NameServer
from tianzhou.testing.kit.clock import KitClock
from tianzhou.testing.kit.loop_thread import LoopThread

__all__ = ["Hosts", "NameServers", "listed", "sync"]


class Hosts:
    """Host names and their addresses, which the resolver of this process finds before it asks DNS.
    A name without addresses does not exist."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.addresses: dict[str, list[str]] = {}
        self._ask_system = socket.getaddrinfo
        monkeypatch.setattr(socket, "getaddrinfo", self._look_up)

    def _look_up(self, host: Any, port: Any, *args: Any, **kwargs: Any) -> list[Any]:
        if host not in self.addresses:
            return self._ask_system(host, port, *args, **kwargs)
        found = self.addresses[host]
        if not found:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [row for one in found for row in self._ask_system(one, port, *args, **kwargs)]


class NameServers:
    """They run in an event loop of their own. Owner: one test."""

    def __init__(self) -> None:
        self._thread = LoopThread("name-servers")
        self._running: dict[str, NameServer] = {}

    def start(self, host: str = "127.0.0.1", port: int = 0) -> str:
        """Start one; returns its address."""
        server = NameServer(NameServerConfig(), KitClock())
        address = f"{host}:{self._thread.run(server.start(host, port))}"
        self._running[address] = server
        return address

    def stop(self, address: str) -> None:
        self._thread.run(self._running.pop(address).close())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for address in tuple(self._running):
            self.stop(address)
        self._thread.close()


def listed(nameserver: str) -> tuple[list[str], list[str]]:
    """The brokers that a NameServer lists, and those that it reports as missing."""
    with Admin(nameserver=nameserver) as admin:
        known = [place.name for place in admin.brokers.all()]
        return known, [broker.name for broker in admin.brokers.missing()]
