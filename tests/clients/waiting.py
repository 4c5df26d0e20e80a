"""Waiting for other processes: for a condition, within the time that `Patience` allows.

This is the only place in the tests that sleeps: other processes do not use a clock of the test.
"""

import time
from collections.abc import Callable
from typing import Final, TypeVar

from tianzhou.testing.kit.patience import Patience

T = TypeVar("T")

PAUSE_S: Final = 0.02


def wait_until(
    look: Callable[[], T | None],
    *,
    within_s: float,
    what: str,
    progress: Callable[[], object] = lambda: None,
) -> T:
    """Return the first true value of `look`. While `progress` changes, the wait continues."""
    patience = Patience(within_s, progress=progress)
    while True:
        found = look()
        if found:
            return found
        if patience.is_over():
            raise AssertionError(f"after {within_s} s still not: {what}; last seen: {found!r}")
        time.sleep(PAUSE_S)
