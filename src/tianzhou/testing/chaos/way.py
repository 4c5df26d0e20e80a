"""One direction of a link: what the network does to bytes that go that way.

A network that is cut does not lose what TCP has taken: it is sent again once the cut is mended. So
bytes are held here, never dropped, and their senders feel it as they do in life: their buffers
fill. A connection that was closed behind a cut looks alive from the other side of it.
"""

import asyncio
from typing import Final, NamedTuple

READ_BYTES: Final = 16 * 1024
HELD_PIECES: Final = 64
"""What one direction of one connection holds before its sender must wait: 1 MiB at most."""


class Piece(NamedTuple):
    """Bytes on their way; none of them mean that the sender is gone."""

    due: float
    data: bytes


class Way:
    """The state of one direction, for all connections of a link. Owner: the loop of the proxies."""

    def __init__(self) -> None:
        self.passed = 0
        """Bytes that went through, of all connections."""
        self.mend()
        self._changed = asyncio.Condition()

    def mend(self) -> None:
        """No faults; whoever waits must be told with `tell`."""
        self.delay_s = 0.0
        self.bytes_per_s: int | None = None
        self.room: int | None = None
        """So many bytes still pass, then nothing; None: all of them."""

    async def tell(self) -> None:
        """Let those who wait look again."""
        async with self._changed:
            self._changed.notify_all()

    async def carry(self, pieces: "asyncio.Queue[Piece]", writer: asyncio.StreamWriter) -> None:
        """Write pieces as they come due and as the way is open, until the sender is gone."""
        loop = asyncio.get_running_loop()
        while True:
            due, data = await pieces.get()
            await asyncio.sleep(max(0.0, due - loop.time()))
            if not data:
                await self._room()  # that the other side is gone is also news
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
        """How many bytes may go now; waits until there is at least one."""
        async with self._changed:
            await self._changed.wait_for(lambda: self.room is None or self.room > 0)
        return READ_BYTES if self.room is None else self.room


async def read_all(reader: asyncio.StreamReader, way: Way, pieces: "asyncio.Queue[Piece]") -> None:
    """Take what comes until nothing comes any more."""
    loop = asyncio.get_running_loop()
    while True:
        try:
            data = await reader.read(READ_BYTES)
        except ConnectionError:
            data = b""
        await pieces.put(Piece(loop.time() + way.delay_s, data))
        if not data:
            return
