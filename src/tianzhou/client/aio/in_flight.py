"""Limit the sends that wait for a response, by number and by bytes."""

import asyncio
from collections import deque

from tianzhou.client.errors import TooManyInFlight


class Generation:
    """The sends that began between two calls of `drained`."""

    __slots__ = ("count", "drained")

    def __init__(self) -> None:
        self.count = 0
        self.drained = asyncio.Event()


class InFlightLimiter:
    """Count the sends in flight, and make callers wait while there are too many.

    Owner: the event loop.
    Invariant: count == 0 exactly when no send waits for a response
    """

    def __init__(self, count_max: int, bytes_max: int) -> None:
        self._count_max = count_max
        self._bytes_max = bytes_max
        self.count = 0
        self.size = 0
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._generation = Generation()
        self._earlier: list[Generation] = []
        """Generations that a caller of `drained` waits for."""

    @property
    def is_full(self) -> bool:
        # A single message is always allowed, however large it is.
        return self.count >= self._count_max or (self.size >= self._bytes_max and self.count > 0)

    def acquire(self, size: int) -> Generation:
        """Count one more send; pass the result to `release`. Raises TooManyInFlight."""
        if self.is_full:
            raise TooManyInFlight(
                f"{self.count} sends with {self.size} bytes are in flight; the limit is"
                f" {self._count_max} sends or {self._bytes_max} bytes; await some of them first"
            )
        self.count += 1
        self.size += size
        self._generation.count += 1
        if self._waiting:
            self._wake()  # a large send that ended may have freed capacity for several
        return self._generation

    def release(self, size: int, generation: Generation) -> None:
        self.count -= 1
        self.size -= size
        generation.count -= 1
        if not generation.count and generation is not self._generation:
            self._earlier.remove(generation)
            generation.drained.set()
        if self._waiting:
            self._wake()

    def _wake(self) -> None:
        """Wake the next waiter, if there is capacity for it."""
        while self._waiting and not self.is_full:
            waiting = self._waiting.popleft()
            if not waiting.done():  # a cancelled waiter is skipped
                waiting.set_result(None)
                return

    async def wait_for_capacity(self) -> None:
        """Wait until one more send is allowed."""
        while self.is_full:
            waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(waiting)
            try:
                await waiting
            except asyncio.CancelledError:
                # This waiter may have been cancelled after being woken; pass the wake-up on.
                self._wake()
                raise

    def release_waiters(self) -> None:
        """Wake every waiter, because no send will end any more and wake it."""
        while self._waiting:
            waiting = self._waiting.popleft()
            if not waiting.done():
                waiting.set_result(None)

    async def drained(self) -> None:
        """Wait for the sends that are in flight now; others may begin meanwhile."""
        if self._generation.count:
            self._earlier.append(self._generation)
            self._generation = Generation()
        for generation in tuple(self._earlier):
            await generation.drained.wait()
