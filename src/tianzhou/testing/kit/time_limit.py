"""A time limit for a whole test, in seconds of an idle machine.

A limit in plain seconds is either too short for a busy machine or lets a test that hangs on an idle
one waste minutes. This one is a `Patience`: on an idle machine it ends after its time, and on a
busy one it is extended in proportion to the load.
"""

import signal
from collections.abc import Callable
from types import FrameType
from typing import Final

from tianzhou.testing.kit.patience import Patience, crowding

CHECKS: Final = 24
"""How often the load is checked within the limit. Nearly all tests end before the first check and
are never interrupted by a signal."""


def start_limit(
    limit_s: float, expire: Callable[[], None], *, crowding: Callable[[], float] = crowding
) -> Callable[[], None]:
    """Call `expire` in the main thread when the time is up. Returns a function that cancels the
    limit.

    Uses SIGALRM, which interrupts a main thread that is blocked; call it in the main thread.
    """
    patience = Patience(limit_s, crowding=crowding)

    def look(_signal: int, _frame: FrameType | None) -> None:
        if patience.is_over():
            cancel()
            expire()

    def cancel() -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)

    signal.signal(signal.SIGALRM, look)
    signal.setitimer(signal.ITIMER_REAL, limit_s / CHECKS, limit_s / CHECKS)
    return cancel
