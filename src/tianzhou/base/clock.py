"""Time as something that is handed in. Nothing here reads a clock."""

from typing import Protocol


class Clock(Protocol):
    """Implementations live where the process is put together, or in the test kit."""

    def now_ms(self) -> int:
        """Wall time in milliseconds since 1970: what is stored in records."""
        ...

    def monotonic_s(self) -> float:
        """For intervals and deadlines; never goes back."""
        ...
