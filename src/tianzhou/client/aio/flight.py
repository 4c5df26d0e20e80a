"""How many sends may wait for answers at once, by number and by bytes."""

import asyncio
from collections import deque

from tianzhou.client.errors import TooManyInFlight


class Flight:
    """Owner: the event loop.

    Invariant: count == 0 exactly when nothing waits for an answer
    """

    def __init__(self, count_max: int, bytes_max: int) -> None:
        self._count_max = count_max
        self._bytes_max = bytes_max
        self.count = 0
        self.size = 0
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._landed: asyncio.Event | None = None

    @property
    def is_full(self) -> bool:
        # One message is always let through, however large.
        return self.count >= self._count_max or (self.size >= self._bytes_max and self.count > 0)

    def enter(self, size: int) -> None:
        if self.is_full:
            raise TooManyInFlight(
                f"{self.count} sends with {self.size} bytes wait for answers; at most"
                f" {self._count_max} and {self._bytes_max} bytes may: await some of them first"
            )
        self.count += 1
        self.size += size

    def leave(self, size: int) -> None:
        self.count -= 1
        self.size -= size
        if self._waiting and not self.is_full:
            waiting = self._waiting.popleft()
            if not waiting.done():
                waiting.set_result(None)
        if not self.count and self._landed is not None:
            self._landed.set()

    async def room(self) -> None:
        """Wait until one more may be sent."""
        while self.is_full:
            waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(waiting)
            try:
                await waiting
            except asyncio.CancelledError:
                # Whoever let us go meant one of us; it is the next one's turn.
                if waiting.done() and not waiting.cancelled() and self._waiting:
                    following = self._waiting.popleft()
                    if not following.done():
                        following.set_result(None)
                raise

    async def landed(self) -> None:
        """Wait until nothing is in flight."""
        if self.count:
            self._landed = asyncio.Event()
            await self._landed.wait()
