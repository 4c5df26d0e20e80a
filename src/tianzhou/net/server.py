"""A server: its connections, their timeouts, and memory limits for all of them together."""

import asyncio
import contextlib
import socket
from collections.abc import Collection
from typing import Final

from tianzhou.net.acceptor import Acceptor
from tianzhou.net.admission import Slot
from tianzhou.net.limits import CLIENT_PORT, NetLimits, PortLimits
from tianzhou.net.rearm import rearm
from tianzhou.net.server_connection import SHARED_CAPACITY, ServerConnection, Service, Shared
from tianzhou.wire.frame import FrameBuffer

NOT_SENT_BYTES: Final = 256 * 1024
"""Unsent bytes that the kernel buffers per connection. By default it would buffer 4 MiB, which
costs time and memory for peers that may not read at all. Bytes in flight are not limited, so
connections with a long round trip stay fast."""


class Server:
    """Serves connections of one port. Owner: the event loop."""

    def __init__(
        self,
        service: Service,
        *,
        port: PortLimits = CLIENT_PORT,
        limits: NetLimits | None = None,
    ) -> None:
        self._service = service
        self._limits = limits or NetLimits()
        self._loop = asyncio.get_running_loop()
        self._shared = Shared(
            owner=self,
            received=service.received,
            loop=self._loop,
            limits=self._limits,
            buffer=FrameBuffer(SHARED_CAPACITY),
            relieve=self._relieve,
        )
        self._connections: set[ServerConnection] = set()
        self._acceptor = Acceptor(port, self._accepted)
        self._sweeper: asyncio.TimerHandle | None = None
        self._emptied: asyncio.Event | None = None

    def listen(self, bound: socket.socket) -> None:
        """Accept connections on a bound socket; all sockets share the port's limits."""
        self._acceptor.listen(bound)
        self._shared.pulse.start()
        if self._sweeper is None:
            self._sweeper = self._loop.call_later(self._limits.sweep_s, self._sweep)

    @property
    def broken_count(self) -> int:
        """Connections closed because of invalid frames."""
        return self._shared.broken_count

    @property
    def refused_count(self) -> int:
        """Connections closed because the limit was reached."""
        return self._acceptor.admission.refused_count

    @property
    def expired_count(self) -> int:
        """Connections closed because no valid frame arrived in time."""
        return self._acceptor.admission.expired_count

    @property
    def connections(self) -> Collection[ServerConnection]:
        return self._connections

    def stop_listening(self) -> None:
        self._acceptor.stop_listening()

    async def close(self) -> None:
        """Stop accepting, send queued responses and close every connection."""
        self._acceptor.close()
        self._shared.pulse.stop()
        if self._sweeper is not None:
            self._sweeper.cancel()
        for connection in tuple(self._connections):
            connection.close()
        if self._connections:
            self._emptied = asyncio.Event()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._emptied.wait(), self._limits.close_s)
        for connection in tuple(self._connections):
            connection.abort()

    def abort(self) -> None:
        """Close everything at once, as the end of a process does."""
        self._acceptor.close()
        self._shared.pulse.stop()
        if self._sweeper is not None:
            self._sweeper.cancel()
        for connection in tuple(self._connections):
            connection.abort()

    # The owner of connections

    def _accepted(self, slot: Slot) -> ServerConnection:
        return ServerConnection(self._shared, slot)

    def opened(self, connection: ServerConnection) -> None:
        _tune(connection)
        self._connections.add(connection)
        self._service.opened(connection)

    def closed(self, connection: ServerConnection) -> None:
        self._connections.discard(connection)
        self._service.closed(connection)
        if not self._connections and self._emptied is not None:
            self._emptied.set()

    # Time and memory

    def _sweep(self) -> None:
        self._sweeper = rearm(self._loop, self._limits.sweep_s, self._sweep)
        now, limits = self._loop.time(), self._limits
        for connection in tuple(self._connections):
            times = connection.times
            connection.expire(now)
            connection.count_unsent()
            if (
                _is_over(times.partial_since, limits.partial_s, now)
                or _is_over(times.blocked_since, limits.blocked_s, now)
                or _is_over(times.closing_since, limits.close_s, now)
            ):
                connection.abort()
            elif now - times.heard_at > limits.idle_s:
                connection.close()
        self._relieve()

    def _relieve(self) -> None:
        self._drop_oldest()
        self._drop_largest()

    def _drop_oldest(self) -> None:
        """Drop the connections with the oldest incomplete frames: a legitimate peer sends the rest
        at once."""
        limit = self._limits.partial_bytes_max
        if self._shared.partial_bytes <= limit:
            return
        begun = [
            (connection.times.partial_since, id(connection), connection)
            for connection in self._connections
            if connection.times.partial_since
        ]
        for _, _, connection in sorted(begun):
            if self._shared.partial_bytes <= limit * 0.9:
                break
            connection.abort()

    def _drop_largest(self) -> None:
        limit = self._limits.unsent_bytes_max
        if self._shared.unsent_bytes <= limit:
            return
        sizes = sorted(
            (connection.count_unsent(), id(connection), connection)
            for connection in self._connections
        )
        while sizes and self._shared.unsent_bytes > limit * 0.9:
            sizes.pop()[-1].abort()


def _is_over(since: float | None, allowed_s: float, now: float) -> bool:
    return since is not None and now - since > allowed_s


def _tune(connection: ServerConnection) -> None:
    sock: socket.socket | None = connection.extra("socket")
    if sock is not None:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if hasattr(socket, "TCP_NOTSENT_LOWAT"):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, NOT_SENT_BYTES)
