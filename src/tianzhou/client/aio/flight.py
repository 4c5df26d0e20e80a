"""How many sends may wait for answers at once, by number and by bytes."""

import asyncio
from collections import deque

from tianzhou.client.errors import TooManyInFlight


class Wave:
    """Sends that began between two calls of `landed`."""

    __slots__ = ("count", "landed")

    def __init__(self) -> None:
        self.count = 0
        self.landed = asyncio.Event()


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
        self._wave = Wave()
        self._earlier: list[Wave] = []
        """Waves that somebody waits for."""

    @property
    def is_full(self) -> bool:
        # One message is always let through, however large.
        return self.count >= self._count_max or (self.size >= self._bytes_max and self.count > 0)

    def enter(self, size: int) -> Wave:
        """What to leave with. Raises TooManyInFlight."""
        if self.is_full:
            raise TooManyInFlight(
                f"{self.count} sends with {self.size} bytes wait for answers; at most"
                f" {self._count_max} and {self._bytes_max} bytes may: await some of them first"
            )
        self.count += 1
        self.size += size
        self._wave.count += 1
        if self._waiting:
            self._wake()  # a large one that left made room for several
        return self._wave

    def leave(self, size: int, wave: Wave) -> None:
        self.count -= 1
        self.size -= size
        wave.count -= 1
        if not wave.count and wave is not self._wave:
            self._earlier.remove(wave)
            wave.landed.set()
        if self._waiting:
            self._wake()

    def _wake(self) -> None:
        """The next one that still waits, if there is room for it."""
        while self._waiting and not self.is_full:
            waiting = self._waiting.popleft()
            if not waiting.done():  # who was cancelled is passed over
                waiting.set_result(None)
                return

    async def room(self) -> None:
        """Wait until one more may be sent."""
        while self.is_full:
            waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(waiting)
            try:
                await waiting
            except asyncio.CancelledError:
                # Whoever let us go meant one of us; it is the next one's turn.
                self._wake()
                raise

    def dismiss(self) -> None:
        """Whoever waits for room looks again: there will be nobody to leave and wake it."""
        while self._waiting:
            waiting = self._waiting.popleft()
            if not waiting.done():
                waiting.set_result(None)

    async def landed(self) -> None:
        """Wait until nothing is in flight of what is now; others may begin meanwhile."""
        if self._wave.count:
            self._earlier.append(self._wave)
            self._wave = Wave()
        for wave in tuple(self._earlier):
            await wave.landed.wait()
