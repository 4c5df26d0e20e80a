"""The clock protocol: time is passed in. Nothing here reads a clock."""

from typing import Protocol


class Clock(Protocol):
    """Implemented where a process is assembled (`cmd`), and by the test kit."""

    def now_ms(self) -> int:
        """Return the wall time in milliseconds since 1970, as stored in records."""
        ...

    def monotonic_s(self) -> float:
        """Return a time for intervals and deadlines, which never decreases."""
        ...
