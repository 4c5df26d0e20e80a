"""Connections: one for each address, made at first use, shared by all who use the address."""

import asyncio
from collections.abc import Callable
from typing import Final

from tianzhou.base.errors import UsageError
from tianzhou.base.kinds import Bytes
from tianzhou.client.aio.channel import Channel, resolve
from tianzhou.client.errors import CallTimeout, ClientClosed, ConnectionLost, Unreachable
from tianzhou.client.options import ClientOptions, split_address
from tianzhou.net.rpc import Request
from tianzhou.wire.header import Header

CLOSE_S: Final = 1.0
"""How long what was queued may take to leave when all is closed."""

OnRequest = Callable[[Channel, Request], None]
OnChannel = Callable[[Channel], None]


def _nothing(_channel: Channel) -> None:
    pass


class Connections:
    """Owner: the event loop.

    `on_request` gets what brokers ask of us; `on_open` and `on_close` are told of each connection.
    """

    def __init__(
        self,
        options: ClientOptions,
        on_request: OnRequest,
        on_open: OnChannel = _nothing,
        on_close: OnChannel = _nothing,
    ) -> None:
        self._options = options
        self._on_request = on_request
        self._on_open = on_open
        self._on_close = on_close
        self._loop = asyncio.get_running_loop()
        self._channels: dict[str, Channel] = {}
        self._opening: dict[str, asyncio.Task[Channel]] = {}
        self._leaving: set[Channel] = set()
        self._emptied: asyncio.Event | None = None
        self._is_closed = False

    def maybe_channel(self, address: str) -> Channel | None:
        """The connection to an address, if there is one now."""
        channel = self._channels.get(address)
        return channel if channel is not None and channel.is_open else None

    async def channel(self, address: str, timeout_s: float | None = None) -> Channel:
        """The connection to an address, made if there is none. Raises Unreachable.

        Who gives up early leaves the attempt to the others that wait for it.
        """
        found = self.maybe_channel(address)
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
            if attempt.cancelled():  # not this caller was, but everything was closed
                raise ClientClosed(f"the client was closed before {address} answered") from None
            raise

    async def _open(self, address: str) -> Channel:
        limit_s = self._options.connect_timeout_s
        try:
            host, port = split_address(address)
            async with asyncio.timeout(limit_s):
                # Names are looked up here, so each time anew.
                _, channel = await self._loop.create_connection(
                    lambda: Channel(address, self, self._loop, self._options), host, port
                )
        except TimeoutError:
            raise Unreachable(address, f"no connection within {limit_s:.3g} s") from None
        except UnicodeError as error:
            raise Unreachable(address, "it is not a valid host name") from error
        except (OSError, UsageError) as error:
            raise Unreachable(address, str(error)) from error
        return channel

    def _opened(self, address: str, attempt: "asyncio.Task[Channel]") -> None:
        self._opening.pop(address, None)
        if attempt.cancelled() or attempt.exception() is not None:
            return
        channel = attempt.result()
        if self._is_closed:
            channel.abort()
            return
        if channel.is_open:
            self._channels[address] = channel
            self._on_open(channel)

    async def call(
        self, address: str, code: int, ext: dict[str, str], body: Bytes = b"", *, timeout_s: float
    ) -> tuple[Header, bytes]:
        """The answer to a request, whatever its code.

        Raises Unreachable if nothing was delivered, ConnectionLost or CallTimeout if that is
        not known.
        """
        begun = self._loop.time()
        channel = await self.channel(address, timeout_s)
        answered: asyncio.Future[tuple[Header, bytes] | None] = self._loop.create_future()
        left_s = timeout_s - (self._loop.time() - begun)
        channel.ask(code, ext, body, resolve(answered), left_s)
        answer = await answered
        if answer is None:
            if channel.is_open:
                raise CallTimeout(address, code, timeout_s)
            raise ConnectionLost(address, code)
        return answer

    async def close(self) -> None:
        """Let what was queued leave, then close every connection."""
        self._is_closed = True
        for attempt in tuple(self._opening.values()):
            attempt.cancel()
        self._leaving = set(self._channels.values())
        self._emptied = asyncio.Event()
        for channel in tuple(self._leaving):
            channel.close()
        if self._leaving:
            try:
                async with asyncio.timeout(CLOSE_S):
                    await self._emptied.wait()
            except TimeoutError:
                for channel in tuple(self._leaving):
                    channel.abort()

    # Owner of channels

    def requested(self, channel: Channel, request: Request) -> None:
        self._on_request(channel, request)

    def closed(self, channel: Channel) -> None:
        if self._channels.get(channel.address) is channel:
            del self._channels[channel.address]
            self._on_close(channel)
        self._leaving.discard(channel)
        if self._emptied is not None and not self._leaving:
            self._emptied.set()
