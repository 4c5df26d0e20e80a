"""A clock that only a test moves."""


class ManualClock:
    """Stands still until a test advances it."""

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self._now_ms = now_ms
        self._monotonic_s = 0.0

    def now_ms(self) -> int:
        return self._now_ms

    def monotonic_s(self) -> float:
        return self._monotonic_s

    def advance(self, *, ms: int = 0, seconds: float = 0, hours: float = 0) -> None:
        step_ms = int(ms + seconds * 1000 + hours * 3_600_000)
        assert step_ms >= 0, "to set the wall clock back, use jump"
        self._now_ms += step_ms
        self._monotonic_s += step_ms / 1000

    def jump(self, ms: int) -> None:
        """Move only the wall time, in either direction, like a system clock that is set."""
        self._now_ms += ms
