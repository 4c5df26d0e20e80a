"""Waiting for conditions that other threads and processes fulfil, with a `Patience`."""

import asyncio
import time
from collections.abc import Callable, Iterator
from typing import Final, TypeVar

from tianzhou.base.errors import UsageError
from tianzhou.testing.kit.patience import Patience

T = TypeVar("T")

WITHIN_S: Final = 5.0
PAUSE_S: Final = 0.005


def wait_until(
    look: Callable[[], T | None], describe: Callable[[], str], *, within_s: float, what: str
) -> T:
    """Return the first true result of `look`. Raises AssertionError with a description."""
    if _is_in_loop():
        raise UsageError("wait_until would block this event loop; use: await mq.until(...)")
    for found in _looks(look, describe, within_s=within_s, what=what):
        if found:
            return found
        time.sleep(PAUSE_S)
    raise AssertionError  # unreachable: the iterator ends by raising


async def until(
    look: Callable[[], T | None], describe: Callable[[], str], *, within_s: float, what: str
) -> T:
    """Like `wait_until`, for coroutines: the event loop keeps running."""
    for found in _looks(look, describe, within_s=within_s, what=what):
        if found:
            return found
        await asyncio.sleep(PAUSE_S)
    raise AssertionError  # unreachable: the iterator ends by raising


def _looks(
    look: Callable[[], T | None], describe: Callable[[], str], *, within_s: float, what: str
) -> Iterator[T | None]:
    patience = Patience(within_s, progress=describe)
    while True:
        # Check the time first, so that the last check comes after the deadline.
        is_over = patience.is_over()
        found = look()
        yield found
        if is_over:
            raise AssertionError(
                f"not within {within_s} s: {what}; last seen: {found!r}\n{describe()}"
            )


def _is_in_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
