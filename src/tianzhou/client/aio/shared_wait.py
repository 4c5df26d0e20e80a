"""Shared waits: any number of sends wait for one route or connection with one task and one timer.

    waits = SharedWaits(connect)              # `connect(address)` is a coroutine
    waits.add(address, deadline_s, on_end)    # `on_end(None)` once the coroutine has returned

A task and a timeout for each send would cost a burst more than the sends themselves, and a future
that thousands of tasks wait for removes a waiter that times out in linear time.
"""

import asyncio
import math
from collections.abc import Callable, Coroutine
from functools import partial
from heapq import heappop, heappush

from tianzhou.client.errors import ClientClosed

OnEnd = Callable[[BaseException | None], None]
"""Gets None when the wait succeeded, DeadlinePassed at the waiter's deadline, or the error."""


class DeadlinePassed(Exception):
    """A waiter's deadline passed before what it waits for happened."""


class SharedWait:
    """Callbacks that wait for the same event, in order of arrival, each with a deadline.

    Owner: the event loop. `on_abandoned` is called when the last waiter's deadline has passed.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, on_abandoned: Callable[[], None]) -> None:
        self._loop = loop
        self._on_abandoned = on_abandoned
        self._waiting: dict[int, OnEnd] = {}
        self._deadlines: list[tuple[float, int]] = []
        """A heap of deadlines, each with the waiter's key in `_waiting`."""
        self._count = 0
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = math.inf

    def add(self, deadline_s: float, on_end: OnEnd) -> None:
        number = self._count
        self._count = number + 1
        self._waiting[number] = on_end
        heappush(self._deadlines, (deadline_s, number))
        if deadline_s < self._timer_at:
            self._set_timer(deadline_s)

    def end(self, error: BaseException | None) -> None:
        """Call every waiter back, the earliest first."""
        if self._timer is not None:
            self._timer.cancel()
        waiting, self._waiting, self._deadlines = self._waiting, {}, []
        for on_end in waiting.values():
            on_end(error)

    def _set_timer(self, at_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = at_s
        self._timer = self._loop.call_at(at_s, self._expire)

    def _expire(self) -> None:
        self._timer, self._timer_at = None, math.inf
        now_s, deadlines, late = self._loop.time(), self._deadlines, list[OnEnd]()
        while deadlines and deadlines[0][0] <= now_s:
            late.append(self._waiting.pop(heappop(deadlines)[1]))
        if deadlines:
            self._set_timer(deadlines[0][0])
        else:
            self._on_abandoned()
        for on_end in late:
            on_end(DeadlinePassed())


class SharedWaits:
    """One shared wait for each key (a topic or an address). Owner: the event loop.

    `event` is a coroutine function; the first waiter of a key starts it. It is cancelled when no
    waiter is left.
    """

    def __init__(self, event: Callable[[str], Coroutine[None, None, object]]) -> None:
        self._event = event
        self._loop = asyncio.get_running_loop()
        self._waits: dict[str, tuple[SharedWait, asyncio.Task[object]]] = {}

    def __contains__(self, key: str) -> bool:
        return key in self._waits

    def add(self, key: str, deadline_s: float, on_end: OnEnd) -> None:
        """Call `on_end` once: later, never from within this call."""
        found = self._waits.get(key)
        if found is None:
            wait = SharedWait(self._loop, partial(self._abandon, key))
            task = self._loop.create_task(self._event(key))
            self._waits[key] = found = wait, task
            task.add_done_callback(partial(self._ended, key, wait))
        found[0].add(deadline_s, on_end)

    def close(self) -> None:
        """End every wait with ClientClosed."""
        for _, task in tuple(self._waits.values()):
            task.cancel()

    def _abandon(self, key: str) -> None:
        _, task = self._waits.pop(key)
        task.cancel()

    def _ended(self, key: str, wait: SharedWait, task: "asyncio.Task[object]") -> None:
        # First the table: a waiter that is called back may have to wait for the key again.
        if key in self._waits and self._waits[key][1] is task:
            del self._waits[key]
        if task.cancelled():
            wait.end(ClientClosed("the producer was closed before the message was sent"))
        else:
            wait.end(task.exception())
