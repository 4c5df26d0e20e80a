"""Timers that must never be lost.

A server's housekeeping is a timer that reschedules itself each time it fires. If that fails once
for lack of memory, housekeeping stops for the life of the process, although memory may be available
a second later. So a little memory is kept in reserve for this purpose.
"""

import asyncio
import contextlib
from collections.abc import Callable
from typing import Final

RESERVE_BYTES: Final = 256 * 1024
"""Far more than a timer needs: other code may allocate from the released memory first."""

_reserve: Final[list[bytes]] = []


def rearm(
    loop: asyncio.AbstractEventLoop, delay_s: float, act: Callable[[], None]
) -> asyncio.TimerHandle:
    """Like `loop.call_later`, but releases the reserve if there is no other memory."""
    if not _reserve:
        with contextlib.suppress(MemoryError):  # retried when the timer fires
            _reserve.append(bytes(RESERVE_BYTES))
    try:
        return loop.call_later(delay_s, act)
    except MemoryError:
        _reserve.clear()
        return loop.call_later(delay_s, act)
