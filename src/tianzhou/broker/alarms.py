"""Alarms: conditions of this broker that an operator must see until they end.

Every subsystem that can raise alarms adds a source: a function that returns its current alarms.
`tianzhou doctor`, `tianzhou broker status`, the dashboard, `/metrics` and the log all read the same
list, so that no two of them can disagree.

A source returns `Alarm`s whose `since_ms` stays the same while the condition holds: `kind` and
`since_ms` together identify a condition, and the log gets one line when it begins and one when it
ends. `Since` remembers the time for subsystems that do not.
"""

import logging
from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass, field
from typing import Final

from tianzhou.base.clock import Clock

log: Final = logging.getLogger("tianzhou.broker")


@dataclass(frozen=True, slots=True, kw_only=True)
class Alarm:
    kind: str
    """A stable identifier, such as `store_damaged`: the label in metrics and JSON."""
    text: str
    """What is wrong, as a sentence with its values."""
    remedy: str
    """What to do about it, with the command."""
    since_ms: int
    """When the condition began; constant while it holds."""
    is_problem: bool = True
    """False for a warning: everything still works, but may soon fail."""


Source = Callable[[], Iterable[Alarm]]


class Alarms:
    """Owner: the broker loop."""

    def __init__(self) -> None:
        self._sources: list[Source] = []

    def add(self, source: Source) -> None:
        """Register a function that returns the current alarms; it is called for every view."""
        self._sources.append(source)

    def current(self) -> list[Alarm]:
        """Every condition that holds now, problems first, then the oldest first."""
        found = [alarm for source in self._sources for alarm in source()]
        return sorted(found, key=lambda alarm: (not alarm.is_problem, alarm.since_ms))


@dataclass(slots=True)
class Since:
    """Remembers when conditions began whose sources only report whether they hold. Owner: the
    broker loop.

    A source that uses it runs at least once a second, so the time is exact to a second."""

    clock: Clock
    _began_ms: dict[str, int] = field(default_factory=dict[str, int])

    def keep(self, kinds: Container[str]) -> None:
        """Forget every condition but these; the others have ended."""
        self._began_ms = {kind: at for kind, at in self._began_ms.items() if kind in kinds}

    def began_ms(self, kind: str, *, holds: bool) -> int:
        """When the condition began to hold; 0 if it does not hold now."""
        if not holds:
            self._began_ms.pop(kind, None)
            return 0
        return self._began_ms.setdefault(kind, self.clock.now_ms())


@dataclass(slots=True)
class AlarmLog:
    """Writes a log line when an alarm begins and when it ends. Owner: the broker loop."""

    alarms: Alarms
    _known: dict[tuple[str, int], Alarm] = field(default_factory=dict[tuple[str, int], Alarm])

    def check(self) -> None:
        """Compare the alarms with those of the last check; the server calls it every second."""
        current = {(alarm.kind, alarm.since_ms): alarm for alarm in self.alarms.current()}
        for key, alarm in current.items():
            if key not in self._known:
                level = logging.ERROR if alarm.is_problem else logging.WARNING
                log.log(level, "alarm.began", extra=_facts(alarm) | {"remedy": alarm.remedy})
        for key, alarm in self._known.items():
            if key not in current:
                log.info("alarm.ended", extra=_facts(alarm))
        self._known = current


def _facts(alarm: Alarm) -> dict[str, str | int]:
    return {"kind": alarm.kind, "said": alarm.text, "since_ms": alarm.since_ms}
