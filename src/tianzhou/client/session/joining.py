"""Which clients of an event loop share their connections, and how they change their NameServers."""

import threading
from collections.abc import Callable, Hashable
from typing import Generic, NamedTuple, Protocol, TypeVar

from tianzhou.client.options import ClientOptions, parse_nameservers


class Loop(Hashable, Protocol):
    """The part of an event loop that matters here."""

    def is_closed(self) -> bool: ...


AnyLoop = TypeVar("AnyLoop", bound=Loop)
Client = TypeVar("Client")


class Key(NamedTuple, Generic[AnyLoop]):
    """Clients that agree in all of this share their connections."""

    loop: AnyLoop
    nameservers: tuple[str, ...]
    options: ClientOptions


class JoinedClients(Generic[AnyLoop, Client]):
    """The clients that others can join. Several threads may each have an event loop; those of one
    loop are used by its thread only."""

    def __init__(self) -> None:
        self._by_key: dict[Key[AnyLoop], list[Client]] = {}
        self._changing = threading.Lock()

    def find(self, key: Key[AnyLoop], fits: Callable[[Client], bool]) -> Client | None:
        return next(filter(fits, self._by_key.get(key, ())), None)

    def add(self, key: Key[AnyLoop], client: Client) -> Client:
        with self._changing:
            for gone in [known for known in self._by_key if known.loop.is_closed()]:
                del self._by_key[gone]
            self._by_key.setdefault(key, []).append(client)
        return client

    def remove(self, key: Key[AnyLoop], client: Client) -> None:
        with self._changing:
            clients = self._by_key.get(key, [])
            clients.remove(client)
            if not clients:
                self._by_key.pop(key, None)

    def move(self, key: Key[AnyLoop], to: Key[AnyLoop]) -> list[Client]:
        """Give all clients with a key another one; returns these clients."""
        with self._changing:
            moved = self._by_key.pop(key, [])
            self._by_key.setdefault(to, []).extend(moved)
        return moved


class Joined(Protocol):
    """What a client has joined."""

    def check_loop(self) -> None: ...
    def update_name_servers(self, nameservers: tuple[str, ...]) -> None: ...


class ChangesNameServers:
    """The part of every client that replaces its NameServers while it runs."""

    _nameserver: str | None
    _joined: Joined | None = None
    """Set by `start`."""

    def update_name_servers(self, nameserver: str) -> None:
        """Use these NameServers from now on: `host:port;host:port`.

        Nothing is interrupted: requests that wait for a NameServer that is not in the list are
        sent to another one. The change applies to all clients of this event loop that were started
        with the same NameServers and options, because they share their connections. Raises
        UsageError for an invalid list.

            producer.update_name_servers("10.0.0.1:9876;10.0.0.4:9876")
        """
        found = parse_nameservers(nameserver)
        if self._joined is not None:
            self._joined.check_loop()
            self._joined.update_name_servers(found)
        self._nameserver = nameserver
