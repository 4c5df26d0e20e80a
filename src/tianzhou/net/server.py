"""Listening: accept connections up to a limit, and let go of those that misbehave in time."""

import asyncio
import contextlib
import socket
from collections.abc import Iterable
from typing import Final

from tianzhou.net.link import SHARED_CAPACITY, Link, Service
from tianzhou.wire.frame import FrameBatch, FrameBuffer

IDLE_S: Final = 120.0
"""As Java: a connection on which nothing was heard for so long is closed."""
PARTIAL_S: Final = 15.0
"""A frame that began must be whole by then."""
BLOCKED_S: Final = 30.0
"""A peer that does not read for so long is dropped."""
SWEEP_S: Final = 1.0
CLOSE_S: Final = 1.0
"""How long queued answers may take to leave when the server stops."""
CONNECTIONS_MAX: Final = 20_000


class Server:
    """Owner: the event loop."""

    def __init__(self, service: Service, *, connections_max: int = CONNECTIONS_MAX) -> None:
        self._service = service
        self._connections_max = connections_max
        self._shared = FrameBuffer(SHARED_CAPACITY)
        self._links: set[Link] = set()
        self._listeners: list[asyncio.Server] = []
        self._sweeper: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()
        self._emptied: asyncio.Event | None = None
        self.refused_count = 0

    async def listen(self, bound: socket.socket) -> None:
        """Accept connections on a socket that `bind` made."""
        listener = await self._loop.create_server(
            lambda: Link(self, self._loop, self._shared), sock=bound, backlog=1024
        )
        self._listeners.append(listener)
        if self._sweeper is None:
            self._sweeper = self._loop.call_later(SWEEP_S, self._sweep)

    @property
    def links(self) -> Iterable[Link]:
        return self._links

    def stop_listening(self) -> None:
        for listener in self._listeners:
            listener.close()

    async def close(self) -> None:
        """Stop accepting, let queued answers leave, close every connection."""
        self.stop_listening()
        if self._sweeper is not None:
            self._sweeper.cancel()
        for link in tuple(self._links):
            link.close()
        if self._links:
            self._emptied = asyncio.Event()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._emptied.wait(), CLOSE_S)
        for link in tuple(self._links):
            link.abort()

    # Service, seen by links

    def opened(self, link: Link) -> None:
        if len(self._links) >= self._connections_max:
            self.refused_count += 1
            link.abort()
            return
        _no_delay(link)
        self._links.add(link)
        self._service.opened(link)

    def received(self, link: Link, batch: FrameBatch) -> None:
        self._service.received(link, batch)

    def closed(self, link: Link) -> None:
        if link in self._links:
            self._links.discard(link)
            self._service.closed(link)
            if not self._links and self._emptied is not None:
                self._emptied.set()

    def _sweep(self) -> None:
        now = self._loop.time()
        for link in tuple(self._links):
            link.expire(now)
            if _is_over(link.partial_since, PARTIAL_S, now) or _is_over(
                link.blocked_since, BLOCKED_S, now
            ):
                link.abort()
            elif now - link.heard_at > IDLE_S:
                link.close()
        self._sweeper = self._loop.call_later(SWEEP_S, self._sweep)


def bind(host: str, port: int) -> socket.socket:
    """A socket at this address; port 0 takes a free one. Nobody can connect before `listen`."""
    family, kind, proto, _, address = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    made = socket.socket(family, kind, proto)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(address)
    except OSError:
        made.close()
        raise
    return made


def _is_over(since: float | None, allowed_s: float, now: float) -> bool:
    return since is not None and now - since > allowed_s


def _no_delay(link: Link) -> None:
    sock: socket.socket | None = link.extra("socket")
    if sock is not None:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
