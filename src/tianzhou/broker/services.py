"""What the broker does without being asked: delays, timers, checks of transactions."""

from typing import Protocol


class Service(Protocol):
    """Driven by the server, about ten times a second. Never does more than a slice at once."""

    def tick(self) -> bool:
        """Whether more is due already than fitted into this slice."""
        ...

    def finish(self) -> None:
        """The broker stops; the log is flushed. Save how far you came."""
        ...
