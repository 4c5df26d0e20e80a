"""What the broker does without being asked: delays, timers, checks of transactions."""

from typing import Protocol


class Watch(Protocol):
    """Driven by the server, about ten times a second. Never does more than a slice at once."""

    def tick(self) -> bool:
        """Whether more is due already than fitted into this slice."""
        ...

    def finish(self) -> None:
        """The broker stops; the log is flushed. Save how far you came."""
        ...


class Service(Watch, Protocol):
    """What only the master does, because it writes messages."""

    def begin(self) -> None:
        """The broker is the master from now on: the log is dispatched to its end and may be
        written to. Read what you keep from the store; forget what you knew before."""
        ...
