"""One direction of a link: what the network does to its bytes.

A cut network does not lose bytes that TCP has accepted: TCP retransmits them after the cut. So
bytes are held here, never dropped, and senders see the same effect as in a real network: their
buffers fill. A connection that was closed behind a cut still looks open from the other side.
"""

import asyncio
from typing import Final, NamedTuple

READ_BYTES: Final = 16 * 1024
HELD_PIECES: Final = 64
"""Held pieces of one direction of one connection before its sender must wait: 1 MiB at most."""


class Piece(NamedTuple):
    """Bytes in transit. Empty data means that the sender is gone."""

    due: float
    data: bytes


class Way:
    """The state of one direction, for all connections of a link. Owner: the loop of the proxies."""

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
