"""A call in the next round of the loop, once, however often it is requested.

Bytes that a handler writes leave the socket only after the handler has returned. A handler that
lets peers wait for a response therefore writes the response first, and requests the rest here.
"""

import asyncio
from collections.abc import Callable


class CoalescedCall:
    """Coalesces requests for one function. Owner: the event loop."""

    def __init__(self, act: Callable[[], None]) -> None:
        self._act = act
        self._planned: asyncio.Handle | None = None

    def __call__(self) -> None:
        """Request the call."""
        if self._planned is None:
            self._planned = asyncio.get_running_loop().call_soon(self._now)

    def cancel(self) -> None:
        if self._planned is not None:
            self._planned.cancel()
            self._planned = None

    def _now(self) -> None:
        self._planned = None
        self._act()
