"""Work that comes a moment later, once, however often it was asked for.

What a handler writes leaves its socket only when the handler has returned. So whoever lets others
wait for an answer writes it first, and does the rest soon.
"""

import asyncio
from collections.abc import Callable


class CoalescedCall:
    """Owner: the event loop."""

    def __init__(self, act: Callable[[], None]) -> None:
        self._act = act
        self._planned: asyncio.Handle | None = None

    def __call__(self) -> None:
        """In the next round of the loop."""
        if self._planned is None:
            self._planned = asyncio.get_running_loop().call_soon(self._now)

    def cancel(self) -> None:
        if self._planned is not None:
            self._planned.cancel()
            self._planned = None

    def _now(self) -> None:
        self._planned = None
        self._act()
