"""Fair division of the event loop's rounds among connections.

The loop serves every readable connection once in a round, so a client waits for the work of all
others. Most of it takes microseconds. Work that takes longer, such as reading 4 MiB for each of 300
peers at once, is therefore spread over rounds: once a round has done enough of it, connections
whose turns are long, or that never had one, queue for later rounds. Connections whose turns are
short are served meanwhile.
"""

import asyncio
import math
import time
from collections import deque
from collections.abc import Callable
from typing import Final

SHORT_S: Final = 0.0002
"""Connections whose turns take this long never wait. Such turns are not counted either, and cost
nothing but reading the clock."""
MEDIUM_S: Final = 0.001
"""Connections whose turns take this long wait, but not for those whose turns take longer."""
ROUND_S: Final = 0.005
"""The total duration of the counted turns in one round. One more turn may start just before it is
reached."""
WRITE_BYTE_S: Final = 0.5e-9
"""How long the loop takes to write one byte of a large response, after the turn that queued it."""
DOUBT_S: Final = 0.002
_RISE: Final = 0.25
_FALL: Final = 0.5
"""Weight of the last turn in the average of a connection, if it was longer and if it was shorter: a
single long turn has little effect, but a peer that alternates between the two counts as slow."""


def clock_for(cost_s: float | None) -> tuple[Callable[[], float], float]:
    """The clock that measures the next turn of a connection, and the largest value that counts.

    The time of the thread is exact: a turn is not long because another process had the core. But
    reading it is a system call, which connections with short turns avoid: their turns are measured
    by the wall clock, and a long one counts only if the next ones, measured exactly, are long too.
    """
    if cost_s is not None and cost_s <= SHORT_S:
        return time.monotonic, DOUBT_S
    return time.thread_time, math.inf


def average_s(before_s: float | None, last_s: float) -> float:
    """The average duration of a connection's turns, updated with one more."""
    if before_s is None:
        return last_s
    return before_s + (_RISE if last_s > before_s else _FALL) * (last_s - before_s)


class Turns:
    """Owner: the event loop."""

    __slots__ = ("_long", "_medium", "_new", "_round_s", "_spent_s")

    def __init__(self, round_s: float = ROUND_S) -> None:
        self._round_s = round_s
        self._spent_s = 0.0
        """Total duration of the counted turns in this round."""
        self._medium: deque[Callable[[], None]] = deque()
        self._new: deque[Callable[[], None]] = deque()
        """Connections that never had a turn. Most need little, but 300 at once may need much."""
        self._long: deque[Callable[[], None]] = deque()

    def may_begin(self, cost_s: float | None) -> bool:
        """Whether a connection may work in this round; its turns take `cost_s`, None if it never
        had one."""
        return self._spent_s < self._round_s or (cost_s is not None and cost_s <= SHORT_S)

    def took(self, seconds: float, loop: asyncio.AbstractEventLoop) -> None:
        """Count a turn that has ended."""
        if seconds > SHORT_S:
            self._count(seconds, loop)

    def queued(self, size: int, loop: asyncio.AbstractEventLoop) -> None:
        """Count a large response that the loop has yet to write."""
        self._count(size * WRITE_BYTE_S, loop)

    def _count(self, seconds: float, loop: asyncio.AbstractEventLoop) -> None:
        if not self._spent_s:
            loop.call_soon(self._begin_round)
        self._spent_s += seconds

    def wait(self, resume: Callable[[], None], cost_s: float | None) -> None:
        """Call `resume` when it is this connection's turn. Call it only after `may_begin` returned
        False: the turns that filled the round have scheduled the next one."""
        assert self._spent_s, "a round in which nothing was done has room"
        if cost_s is None:
            self._new.append(resume)
        else:
            (self._medium if cost_s <= MEDIUM_S else self._long).append(resume)

    def _begin_round(self) -> None:
        self._spent_s = 0.0
        while self._spent_s < self._round_s:
            line = self._medium or self._new or self._long
            if not line:
                return
            line.popleft()()
