"""Waiting for other processes: for a condition, and never longer than a deadline.

This is the only place in the tests that sleeps: another process can't be given a clock to hold.
"""

import time
from collections.abc import Callable
from typing import Final, TypeVar

T = TypeVar("T")

PAUSE_S: Final = 0.02


def wait_until(look: Callable[[], T | None], *, within_s: float, what: str) -> T:
    """What `look` returns as soon as it is true."""
    deadline = time.monotonic() + within_s
    while True:
        found = look()
        if found:
            return found
        if time.monotonic() > deadline:
            raise AssertionError(f"after {within_s} s still not: {what}; last seen: {found!r}")
        time.sleep(PAUSE_S)
