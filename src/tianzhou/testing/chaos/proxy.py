"""A TCP proxy for one link, whose network a test can make slow, cut, freeze or fill with garbage.

    with Proxies() as proxies:
        link = proxies.link("slave to master", master_ha_address)
        ...                                   # the slave connects to link.address
        link.cut(Toward.CALLER)               # the slave gets no more data from the master
        link.heal()

Methods may be called from any thread.
"""

import asyncio
import contextlib
import enum
import socket
import struct
from types import TracebackType
from typing import Final, NamedTuple, Self

from tianzhou.testing.kit.loop_thread import LoopThread

HOST: Final = "127.0.0.1"
CONNECT_S: Final = 5.0


READ_BYTES: Final = 16 * 1024
HELD_PIECES: Final = 64
"""Held pieces of one direction of one connection before its sender must wait: 1 MiB at most."""


class Piece(NamedTuple):
    """Bytes in transit. Empty data means that the sender is gone."""

    due: float
    data: bytes


class Way:
    """One direction of a link, for all its connections: what the network does to the bytes.

    A cut network does not lose bytes that TCP has accepted: TCP retransmits them after the cut. So
    bytes are held here, never dropped, and senders see the same effect as in a real network: their
    buffers fill. A connection that was closed behind a cut still looks open from the other side.

    Owner: the loop of the proxies.
    """

    def __init__(self) -> None:
        self.passed = 0
        """Bytes that have passed, of all connections."""
        self.heal()
        self._changed = asyncio.Condition()

    def heal(self) -> None:
        """End all faults. Call `notify` afterwards to wake waiting connections."""
        self.delay_s = 0.0
        self.bytes_per_s: int | None = None
        self.room: int | None = None
        """How many more bytes may pass; None means unlimited."""

    async def notify(self) -> None:
        """Wake waiting connections."""
        async with self._changed:
            self._changed.notify_all()

    async def carry(self, pieces: "asyncio.Queue[Piece]", writer: asyncio.StreamWriter) -> None:
        """Write pieces when they are due and the direction is open, until the sender is gone."""
        loop = asyncio.get_running_loop()
        while True:
            due, data = await pieces.get()
            await asyncio.sleep(max(0.0, due - loop.time()))
            if not data:
                await self._room()  # a cut also holds back that the sender is gone
                return
            while data:
                count = min(len(data), await self._room())
                if self.room is not None:
                    self.room -= count
                if self.bytes_per_s is not None:
                    await asyncio.sleep(count / self.bytes_per_s)
                writer.write(data[:count])
                await writer.drain()
                self.passed += count
                data = data[count:]

    async def _room(self) -> int:
        """Wait until at least one byte may pass, and return how many."""
        async with self._changed:
            await self._changed.wait_for(lambda: self.room is None or self.room > 0)
        return READ_BYTES if self.room is None else self.room


async def read_all(reader: asyncio.StreamReader, way: Way, pieces: "asyncio.Queue[Piece]") -> None:
    """Read until the sender is gone."""
    loop = asyncio.get_running_loop()
    while True:
        try:
            data = await reader.read(READ_BYTES)
        except ConnectionError:
            data = b""
        await pieces.put(Piece(loop.time() + way.delay_s, data))
        if not data:
            return


class Toward(enum.Enum):
    """The direction of bytes: to the target, or back to the caller."""

    TARGET = enum.auto()
    CALLER = enum.auto()


BOTH: Final = (Toward.TARGET, Toward.CALLER)


class Link:
    """All connections through one port. Owner: the loop of the proxies."""

    def __init__(self, loop: LoopThread, name: str, target: str) -> None:
        self.name = name
        self.target = target
        self.accepted = 0
        """Number of accepted connections."""
        self._loop = loop
        self._ways: dict[Toward, Way] = {}
        self._garbage: bytes | None = None
        self._open: dict[asyncio.Task[None], list[asyncio.StreamWriter]] = {}
        """The tasks of connections, and both ends of each."""
        self._server: asyncio.Server | None = None
        self.address = loop.run(self._listen())

    async def _listen(self) -> str:
        self._ways = {toward: Way() for toward in Toward}
        self._server = await asyncio.start_server(self._accepted, HOST, 0)
        return "{}:{}".format(*self._server.sockets[0].getsockname()[:2])

    # Faults

    def cut(self, *towards: Toward) -> None:
        """Block these directions, by default both. Connections stay open."""
        for toward in towards or BOTH:
            self._ways[toward].room = 0

    def freeze(self, toward: Toward, after_bytes: int) -> None:
        """Block a direction after this many bytes: the receiver has a partial frame."""
        self._ways[toward].room = after_bytes

    def slow(self, *, delay_s: float = 0.0, bytes_per_s: int | None = None) -> None:
        """Delay and limit both directions."""
        for way in self._ways.values():
            way.delay_s, way.bytes_per_s = delay_s, bytes_per_s

    def pretend(self, garbage: bytes) -> None:
        """Answer new connections with garbage instead of connecting them to the target."""
        self._garbage = garbage

    def reset(self) -> int:
        """Reset all connections at both ends, and return how many there were."""
        return self._loop.run(self._reset())

    async def _reset(self) -> int:
        ending = tuple(self._open)
        for task in ending:
            for writer in self._open[task]:
                _end_abruptly(writer)
            task.cancel()
        await asyncio.gather(*ending, return_exceptions=True)
        return len(ending)

    def heal(self) -> None:
        """End all faults. Bytes that were held are delivered."""
        self._garbage = None
        self._loop.run(self._heal())

    async def _heal(self) -> None:
        for way in self._ways.values():
            way.heal()
            await way.notify()

    def passed(self, toward: Toward) -> int:
        """Return the number of bytes that have passed."""
        return self._ways[toward].passed

    @property
    def connections(self) -> int:
        return len(self._open)

    async def close(self) -> None:
        assert self._server is not None, "the server listens since its creation"
        self._server.close()
        await self._reset()
        await self._server.wait_closed()

    # Connections

    async def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        task = asyncio.current_task()
        assert task is not None
        self._open[task] = ends = [writer]
        try:
            if self._garbage is not None:
                await _answer(self._garbage, reader, writer)
            else:
                await self._connect(reader, ends)
        except asyncio.CancelledError:
            pass  # cancelled by `_reset`, which waits for it; not an error of the server
        finally:
            del self._open[task]
            writer.transport.abort()

    async def _connect(
        self, reader: asyncio.StreamReader, ends: list[asyncio.StreamWriter]
    ) -> None:
        host, _, port = self.target.rpartition(":")
        try:
            async with asyncio.timeout(CONNECT_S):
                there, back = await asyncio.open_connection(host, int(port))
        except OSError:  # also a timeout: like a target that does not listen
            return
        (writer,) = ends
        ends.append(back)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(_pump(reader, back, self._ways[Toward.TARGET]))
                group.create_task(_pump(there, writer, self._ways[Toward.CALLER]))
        except* ConnectionError:
            pass  # the other side is gone; `abort` closes this one
        finally:
            back.transport.abort()


def _end_abruptly(writer: asyncio.StreamWriter) -> None:
    """Make closing this side a reset: pending bytes are not sent."""
    link = writer.get_extra_info("socket")
    link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, way: Way) -> None:
    pieces: asyncio.Queue[Piece] = asyncio.Queue(HELD_PIECES)
    reading = asyncio.get_running_loop().create_task(read_all(reader, way, pieces))
    try:
        await way.carry(pieces, writer)
    finally:
        reading.cancel()
    # A dead process neither reads nor writes, so both directions end here.
    raise ConnectionResetError("one side is gone")


async def _answer(
    garbage: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    writer.write(garbage)
    with contextlib.suppress(ConnectionError):
        while await reader.read(1024):
            pass


class Proxies:
    """The links of one cluster, in their own loop and thread."""

    def __init__(self) -> None:
        self._loop = LoopThread("chaos-proxies")
        self.links: list[Link] = []

    def link(self, name: str, target: str) -> Link:
        """Open a port that forwards to the target."""
        made = Link(self._loop, name, target)
        self.links.append(made)
        return made

    def heal(self) -> None:
        for link in self.links:
            link.heal()

    def close(self) -> None:
        for link in self.links:
            self._loop.run(link.close())
        self._loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
