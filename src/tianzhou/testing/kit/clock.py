"""A clock one can hold. It goes as the machine's does, until a test moves or stops it.

What a test moves is wall time: the moments of delays, timers, retries, transaction checks and
retention. Intervals in which peers must be heard of stay real, as the peers are: a test that lets
two hours pass in a millisecond does not want to lose its clients because they missed a heartbeat.
"""

import threading
import time
from collections.abc import Callable

from tianzhou.base.errors import UsageError

_DAY_S = 86_400


class KitClock:
    """May be used from any thread, and shared by several brokers."""

    def __init__(self, now_ms: int | None = None, *, held: bool = False) -> None:
        self._lock = threading.Lock()
        self._ahead_ms = 0 if now_ms is None else now_ms - _system_ms()
        self._held_ms: int | None = None
        self._moved: list[Callable[[], None]] = []
        if held:
            self.hold()

    def now_ms(self) -> int:
        held_ms = self._held_ms
        return _system_ms() + self._ahead_ms if held_ms is None else held_ms

    def monotonic_s(self) -> float:
        return time.monotonic()

    def advance(
        self,
        *,
        ms: int = 0,
        seconds: float = 0,
        minutes: float = 0,
        hours: float = 0,
        days: float = 0,
    ) -> None:
        """Let so much time pass at once. When this returns, everything that became due is done:
        delayed, timed and retried messages can be consumed, producers were asked about their
        transactions, expired files are gone.

        It is one jump: what happens at intervals, such as a transaction check, happens once.
        """
        step_ms = ms + round((seconds + 60 * minutes + 3600 * hours + _DAY_S * days) * 1000)
        if step_ms < 0:
            raise UsageError(f"can't advance by {step_ms} ms: time in a broker does not go back")
        with self._lock:
            if self._held_ms is None:
                self._ahead_ms += step_ms
            else:
                self._held_ms += step_ms
        for moved in tuple(self._moved):
            moved()

    def hold(self) -> None:
        """Stand still, until `advance` or `go_on`."""
        with self._lock:
            if self._held_ms is None:
                self._held_ms = _system_ms() + self._ahead_ms

    def go_on(self) -> None:
        """Go again, from the moment that was held."""
        with self._lock:
            if self._held_ms is not None:
                self._ahead_ms = self._held_ms - _system_ms()
                self._held_ms = None

    def on_move(self, moved: Callable[[], None]) -> Callable[[], None]:
        """Have this called after every `advance`, before that returns; returns how to stop it."""
        self._moved.append(moved)
        return lambda: self._moved.remove(moved)


def _system_ms() -> int:
    return time.time_ns() // 1_000_000
