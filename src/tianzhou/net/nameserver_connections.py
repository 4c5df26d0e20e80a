"""The NameServers of a broker: their list, which may change, and one connection to each."""

import asyncio
import os
import socket
from collections.abc import Callable, Iterable
from typing import Final

from tianzhou.base.nameserver_addresses import NameServerList
from tianzhou.net.dial import dial
from tianzhou.net.resolver import Resolver
from tianzhou.net.server_connection import ServerConnection
from tianzhou.wire.codec import Header
from tianzhou.wire.signing import Credentials

ANSWER_S: Final = 6.0
NO_ANSWER: Final = "no answer"


class NameServerConnections:
    """Connections are opened when they are needed. Owner: the registration of the broker."""

    def __init__(self, entries: Iterable[str], credentials: Credentials | None) -> None:
        self._list = NameServerList(entries)
        self._resolver = Resolver()
        self._credentials = credentials
        self._connections: dict[str, ServerConnection] = {}

    @property
    def servers(self) -> tuple[str, ...]:
        """The address of each NameServer; a host name stands for all of its addresses."""
        return self._list.addresses

    def replace(self, entries: Iterable[str]) -> bool:
        """Use this list from now on; returns whether it differs. Connections to servers that are
        not in it stay open until `drop`."""
        before = self._list.entries
        self._list.replace(entries)
        return self._list.entries != before

    async def resolve(self) -> None:
        """Look up the host names of the list again."""
        self._list.learn(await self._resolver.addresses(self._list.names))

    def removed(self) -> list[str]:
        """The servers with a connection that are not in the list any more."""
        return [server for server in self._connections if server not in self._list.addresses]

    def drop(self, server: str) -> None:
        connection = self._connections.pop(server, None)
        if connection is not None:
            connection.close()

    def is_open(self, server: str) -> bool:
        connection = self._connections.get(server)
        return connection is not None and connection.is_open

    async def call(self, server: str, code: int, ext: dict[str, str], body: bytes) -> Header | str:
        """The response, or the reason why it is missing."""
        connection = self._connections.get(server)
        if connection is None or not connection.is_open:
            host, _, port = server.strip().rpartition(":")
            try:
                connection = self._connections[server] = await dial(host.strip("[]"), int(port))
            except OSError as error:  # a TimeoutError is one as well
                return _unreachable(host, error)
        answered: asyncio.Future[Header | None] = asyncio.get_running_loop().create_future()
        if self._credentials is not None:
            ext = self._credentials.sign(ext, body)
        connection.ask(code, ext, body, _resolve(answered), timeout_s=ANSWER_S)
        try:
            async with asyncio.timeout(ANSWER_S):
                return await answered or NO_ANSWER
        except TimeoutError:
            return NO_ANSWER

    def abort(self) -> None:
        for connection in self._connections.values():
            connection.abort()

    def close(self) -> None:
        for connection in self._connections.values():
            connection.close()


def _unreachable(host: str, error: OSError) -> str:
    """Why the connection failed; distinguishes a wrong host name from a server that is down."""
    if isinstance(error, socket.gaierror):
        return f"the host name {host!r} cannot be resolved ({error.strerror})"
    if isinstance(error, TimeoutError):
        return "it cannot be reached (connection timed out)"
    return f"it cannot be reached ({os.strerror(error.errno) if error.errno else error})"


def _resolve(
    answered: "asyncio.Future[Header | None]",
) -> Callable[[Header | None, bytes], None]:
    def on_answer(header: Header | None, _body: bytes) -> None:
        if not answered.done():
            answered.set_result(header)

    return on_answer
