"""A controllable clock. It runs like the machine's clock until a test advances or holds it.

A test controls wall time: the due times of delays, timers, retries, transaction checks and
retention. Timeouts of connections and heartbeats use real time: a test that advances the clock by
two hours in a millisecond must not lose its clients because they missed a heartbeat.
"""

import threading
import time
from collections.abc import Callable

from tianzhou.base.errors import UsageError

_DAY_S = 86_400


class KitClock:
    """A clock that a test can advance, hold and resume.

    `now_ms` is the initial time; by default it is the machine's. With `held` the clock starts
    stopped. It may be used from any thread and shared by several brokers.

        clock = KitClock(held=True)
        with running_broker(clock=clock) as mq:
            clock.advance(minutes=5)
    """

    def __init__(self, now_ms: int | None = None, *, held: bool = False) -> None:
        self._lock = threading.Lock()
        system_ms = _system_ms()
        start_ms = system_ms if now_ms is None else now_ms
        self._ahead_ms = start_ms - system_ms
        self._held_ms = start_ms if held else None
        self._moved: list[Callable[[], None]] = []

    def now_ms(self) -> int:
        """Return the wall time in milliseconds since 1970."""
        held_ms = self._held_ms
        return _system_ms() + self._ahead_ms if held_ms is None else held_ms

    def monotonic_s(self) -> float:
        """Return real seconds, which a test cannot move."""
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
        """Advance the clock. When this returns, everything that became due is done: delayed, timed
        and retried messages can be consumed, producers have been asked about their transactions,
        expired files are deleted.

        The clock jumps once: periodic work, such as a transaction check, runs once. Raises
        UsageError for a negative duration.

            mq.clock.advance(hours=2)
        """
        step_ms = ms + round((seconds + 60 * minutes + 3600 * hours + _DAY_S * days) * 1000)
        if step_ms < 0:
            raise UsageError(f"cannot advance by {step_ms} ms: the duration must not be negative")
        with self._lock:
            if self._held_ms is None:
                self._ahead_ms += step_ms
            else:
                self._held_ms += step_ms
        for moved in tuple(self._moved):
            moved()

    def hold(self) -> None:
        """Stop the clock until `resume`. `advance` still moves it."""
        with self._lock:
            if self._held_ms is None:
                self._held_ms = _system_ms() + self._ahead_ms

    def resume(self) -> None:
        """Let the clock run again from the time at which it stopped."""
        with self._lock:
            if self._held_ms is not None:
                self._ahead_ms = self._held_ms - _system_ms()
                self._held_ms = None

    def on_move(self, moved: Callable[[], None]) -> Callable[[], None]:
        """Call a function at the end of every `advance`. Returns a function that removes it."""
        self._moved.append(moved)
        return lambda: self._moved.remove(moved)


def _system_ms() -> int:
    return time.time_ns() // 1_000_000
