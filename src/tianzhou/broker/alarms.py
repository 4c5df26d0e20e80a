"""Alarms: conditions of this broker that an operator must see until they end.

Every subsystem that can be in trouble adds a source: a function that returns its current alarms.
`tianzhou doctor`, `tianzhou broker status`, the dashboard, `/metrics` and the log all read the same
list, so that no two of them can disagree.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Alarm:
    kind: str
    """A stable identifier, such as `store_damaged`: the label in metrics and JSON."""
    text: str
    """What is wrong, as a sentence with its values."""
    remedy: str
    """What to do about it, with the command."""
    since_ms: int
    is_problem: bool = True
    """False for a warning: everything works, but may not for long."""


Source = Callable[[], Iterable[Alarm]]


class Alarms:
    """Owner: the broker loop."""

    def __init__(self) -> None:
        self._sources: list[Source] = []

    def add(self, source: Source) -> None:
        """Register a function that returns what is wrong now; it is called for every view."""
        self._sources.append(source)

    def current(self) -> list[Alarm]:
        """Every condition that holds now, problems first, then the oldest first."""
        found = [alarm for source in self._sources for alarm in source()]
        return sorted(found, key=lambda alarm: (not alarm.is_problem, alarm.since_ms))
