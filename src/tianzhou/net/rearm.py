"""Timers that must never be lost.

A server's housekeeping is a timer that plans itself again each time it fires. If that fails once,
for want of memory, housekeeping stops for the life of the process, although memory may be free
again a second later. So a little memory is kept in reserve for exactly this.
"""

import asyncio
import contextlib
from collections.abc import Callable
from typing import Final

RESERVE_BYTES: Final = 256 * 1024
"""Far more than a timer takes: others may allocate from what is given up before the timer does."""

_reserve: Final[list[bytes]] = []


def rearm(
    loop: asyncio.AbstractEventLoop, delay_s: float, act: Callable[[], None]
) -> asyncio.TimerHandle:
    """As `loop.call_later`, with the reserve if there is no other memory."""
    if not _reserve:
        with contextlib.suppress(MemoryError):  # it is tried again when the timer fires
            _reserve.append(bytes(RESERVE_BYTES))
    try:
        return loop.call_later(delay_s, act)
    except MemoryError:
        _reserve.clear()
        return loop.call_later(delay_s, act)
