"""Connections: one for each address, opened at first use and shared by all its users."""

import asyncio
from collections.abc import Callable
from typing import Final

from tianzhou.base.kinds import Bytes
from tianzhou.client.errors import ClientClosed, Unreachable
from tianzhou.client.options import ClientOptions
from tianzhou.client.transport.aio import Connection
from tianzhou.client.transport.connect import open_connection
from tianzhou.net.rpc import Request
from tianzhou.wire.codec import Header

CLOSE_S: Final = 1.0
"""How long `close` waits for queued data to be written."""

OnRequest = Callable[[Connection, Request], None]
OnConnection = Callable[[Connection], None]


def _nothing(_connection: Connection) -> None:
    pass


class Connections:
    """One connection for each address.

    `on_request` gets the requests of brokers; `on_open` and `on_close` are called for each
    connection.

    Owner: the event loop.
    """

    def __init__(
        self,
        options: ClientOptions,
        on_request: OnRequest,
        on_open: OnConnection = _nothing,
        on_close: OnConnection = _nothing,
    ) -> None:
        self._options = options
        self._on_request = on_request
        self._on_open = on_open
        self._on_close = on_close
        self._loop = asyncio.get_running_loop()
        self.by_address: Final[dict[str, Connection]] = {}
        """The connections, some of which may be closing. Only this class changes it."""
        self._opening: dict[str, asyncio.Task[Connection]] = {}
        self._leaving: set[Connection] = set()
        self._emptied: asyncio.Event | None = None
        self._is_closed = False

    def maybe_connection(self, address: str) -> Connection | None:
        """Return the open connection to an address, if there is one."""
        connection = self.by_address.get(address)
        return connection if connection is not None and connection.is_open else None

    async def connection(self, address: str, timeout_s: float | None = None) -> Connection:
        """Return the connection to an address; open it if there is none. Raises Unreachable.

        If one caller times out, the attempt continues for the others that wait for it.
        """
        found = self.maybe_connection(address)
        if found is not None:
            return found
        if self._is_closed:
            raise ClientClosed(f"the client is closed; {address} was not connected to")
        attempt = self._opening.get(address)
        if attempt is None:
            attempt = self._loop.create_task(self._open(address))
            self._opening[address] = attempt
            attempt.add_done_callback(lambda done: self._opened(address, done))
        try:
            async with asyncio.timeout(timeout_s):
                return await asyncio.shield(attempt)
        except TimeoutError:
            raise Unreachable(address, f"no connection within {timeout_s:.3g} s") from None
        except asyncio.CancelledError:
            if attempt.cancelled():  # the client was closed, not this caller cancelled
                raise ClientClosed(f"the client was closed before {address} responded") from None
            raise

    async def _open(self, address: str) -> Connection:
        return await open_connection(
            address,
            lambda: Connection(address, self, self._loop, self._options),
            timeout_s=self._options.connect_timeout_s,
        )

    def _opened(self, address: str, attempt: "asyncio.Task[Connection]") -> None:
        self._opening.pop(address, None)
        if attempt.cancelled() or attempt.exception() is not None:
            return
        connection = attempt.result()
        if self._is_closed:
            connection.abort()
            return
        if connection.is_open:
            self.by_address[address] = connection
            self._on_open(connection)

    async def call(
        self, address: str, code: int, ext: dict[str, str], body: Bytes = b"", *, timeout_s: float
    ) -> tuple[Header, bytes]:
        """Send a request and return the response, whatever its code.

        Raises Unreachable if nothing was sent, and ConnectionLost or CallTimeout if the request
        may have been executed.
        """
        begun = self._loop.time()
        connection = await self.connection(address, timeout_s)
        spent_s = self._loop.time() - begun
        return await connection.call(code, ext, body, timeout_s=timeout_s, spent_s=spent_s)

    def drop(self, address: str) -> None:
        """Close the connection to an address that is not used any more."""
        connection = self.maybe_connection(address)
        if connection is not None:
            connection.close()

    async def close(self) -> None:
        """Write queued data, then close every connection."""
        self._is_closed = True
        for attempt in tuple(self._opening.values()):
            attempt.cancel()
        self._leaving = set(self.by_address.values())
        self._emptied = asyncio.Event()
        for connection in tuple(self._leaving):
            connection.close()
        if self._leaving:
            try:
                async with asyncio.timeout(CLOSE_S):
                    await self._emptied.wait()
            except TimeoutError:
                for connection in tuple(self._leaving):
                    connection.abort()

    # Owner of connections

    def requested(self, connection: Connection, request: Request) -> None:
        self._on_request(connection, request)

    def closed(self, connection: Connection) -> None:
        if self.by_address.get(connection.address) is connection:
            del self.by_address[connection.address]
            self._on_close(connection)
        self._leaving.discard(connection)
        if self._emptied is not None and not self._leaving:
            self._emptied.set()
