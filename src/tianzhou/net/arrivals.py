"""When received bytes arrived, as far as a server can know: how long a request has waited.

A request that waited longer than its client does is better rejected than executed: the client has
already sent it elsewhere. A server can know three waits, and none of them needs the clock of a
client, which may be wrong:

- Bytes that were read wait for the turn of their connection, or because their frames were deferred.
- Bytes that were in the kernel's buffer when it was last asked have waited at least since then. It
  is asked when a read leaves some behind, and when reading is paused.
- After the event loop stood still, because the process was stopped or a call blocked, the bytes
  that are read next may have arrived at any time since. `Pulse` detects this.
"""

import asyncio
import fcntl
import math
import struct
import termios
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from tianzhou.net.rearm import rearm

BEAT_S: Final = 0.2
STOOD_STILL_S: Final = 1.0
"""A loop that is late by this long stood still. Clients give up after seconds, so that a shorter
pause does not make a request outdated, and on a busy machine it is common."""
LARGE_READ_BYTES: Final = 64 * 1024
"""A smaller read has most likely emptied the kernel's buffer."""
_INT: Final = struct.Struct("i")


@dataclass(slots=True)
class Arrival:
    """When the bytes of one connection arrived. Owner: the event loop."""

    at_s: float
    """The bytes that are being processed, or deferred, arrived at this time or earlier."""
    unread_bytes: int = 0
    """Bytes that are still in the kernel's buffer of those that were there at `unread_at_s`."""
    unread_at_s: float = 0.0

    def read(self, size: int, read_at_s: float, count_unread: Callable[[], int]) -> None:
        """Date a read that was large, or that follows one which left bytes behind."""
        if size <= self.unread_bytes:
            self.at_s = min(self.at_s, self.unread_at_s)
        self.unread_bytes = max(0, self.unread_bytes - size)
        self.ask(read_at_s, count_unread)

    def ask(self, at_s: float, count_unread: Callable[[], int]) -> None:
        """Ask the kernel how much it holds, unless bytes of an earlier answer are still there."""
        if not self.unread_bytes:
            self.unread_bytes, self.unread_at_s = count_unread(), at_s


def count_unread(descriptor: int) -> int:
    """How many received bytes the kernel holds for a socket; 0 if that is unknown."""
    try:
        return _INT.unpack(fcntl.ioctl(descriptor, termios.FIONREAD, bytes(_INT.size)))[0]
    except (OSError, ValueError):  # the socket is closed
        return 0


class Pulse:
    """Detects that the event loop stood still. Owner: the event loop.

    A timer fires a few times a second. While it is overdue, and in the next round of the loop,
    which reads what arrived meanwhile, `before_pause` moves times back to the last beat.
    """

    __slots__ = ("_beat_at_s", "_loop", "_pause_s", "_timer", "overdue_at_s")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._timer: asyncio.TimerHandle | None = None
        self._beat_at_s = 0.0
        self._pause_s = 0.0
        """How long the loop stood still; 0 once what arrived meanwhile was read."""
        self.overdue_at_s = math.inf
        """From this time on a read may be of bytes that waited; call `before_pause` then."""

    def start(self) -> None:
        if self._timer is None:
            self._beat_at_s = self._loop.time()
            self._rearm()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self.overdue_at_s = None, math.inf

    def before_pause(self, now_s: float) -> float:
        """The earliest time at which bytes may have arrived that are read now."""
        self._detect(now_s)
        return now_s - self._pause_s

    def _detect(self, now_s: float) -> None:
        if not self._pause_s and now_s - self._beat_at_s > STOOD_STILL_S + BEAT_S:
            self._pause_s = now_s - self._beat_at_s
            self.overdue_at_s = 0.0
            # What is scheduled now runs before the sockets of the next round are read, so the
            # pause counts for this round and the next.
            self._loop.call_soon(self._loop.call_soon, self._forget)

    def _forget(self) -> None:
        self._pause_s, self._beat_at_s = 0.0, self._loop.time()
        if self._timer is not None:
            self.overdue_at_s = self._beat_at_s + BEAT_S + STOOD_STILL_S

    def _beat(self) -> None:
        now_s = self._loop.time()
        self._detect(now_s)
        if not self._pause_s:
            self._beat_at_s = now_s
        self._rearm()

    def _rearm(self) -> None:
        self._timer = rearm(self._loop, BEAT_S, self._beat)
        if not self._pause_s:
            self.overdue_at_s = self._beat_at_s + BEAT_S + STOOD_STILL_S
