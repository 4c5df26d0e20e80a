"""Filters of a query that reduce what is read: which queues, offsets and tags can match.

Narrowing may keep rows that the filter rejects, because Spark applies the filter again, but it
must never drop a row that the filter accepts.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

from tianzhou.base.errors import UsageError
from tianzhou.record.names import checked_tag

CLOCK_MARGIN_MS: Final = 60_000
"""Store times of a queue ascend unless the broker's clock is set back; this is the margin."""

_UNBOUNDED: Final = 1 << 62


@dataclass(slots=True)
class Interval:
    """Whole numbers that a filter accepts: start <= number < end."""

    start: int = -_UNBOUNDED
    end: int = _UNBOUNDED

    def narrow(self, kind: type[Filter], value: int) -> None:
        if kind in (EqualTo, EqualNullSafe, GreaterThanOrEqual):
            self.start = max(self.start, value)
        if kind is GreaterThan:
            self.start = max(self.start, value + 1)
        if kind in (EqualTo, EqualNullSafe, LessThanOrEqual):
            self.end = min(self.end, value + 1)
        if kind is LessThan:
            self.end = min(self.end, value)


@dataclass(slots=True)
class Narrowed:
    """What can still match. None means everything."""

    topics: set[str] | None = None
    tags: set[str] | None = None
    queue_ids: set[int] | None = None
    queue_id: Interval = field(default_factory=Interval)
    offset: Interval = field(default_factory=Interval)
    time_ms: Interval = field(default_factory=Interval)

    def includes_queue(self, topic: str, queue_id: int) -> bool:
        return (
            (self.topics is None or topic in self.topics)
            and (self.queue_ids is None or queue_id in self.queue_ids)
            and self.queue_id.start <= queue_id < self.queue_id.end
        )

    @property
    def starting_ms(self) -> int | None:
        start = self.time_ms.start
        return None if start == -_UNBOUNDED else max(start - CLOCK_MARGIN_MS, 0)

    @property
    def ending_ms(self) -> int | None:
        return None if self.time_ms.end == _UNBOUNDED else self.time_ms.end + CLOCK_MARGIN_MS


def narrow(filters: Iterable[Filter]) -> Narrowed:
    found = Narrowed()
    for item in filters:
        if isinstance(item, EqualTo | EqualNullSafe | In) and len(item.attribute) == 1:
            values = item.value if isinstance(item, In) else (item.value,)
            _choose(found, item.attribute[0], tuple(values))
        if isinstance(item, _COMPARING) and len(item.attribute) == 1:
            _bound(found, item.attribute[0], type(item), item.value)
    return found


_COMPARING: Final = (
    EqualTo,
    EqualNullSafe,
    GreaterThan,
    GreaterThanOrEqual,
    LessThan,
    LessThanOrEqual,
)


def _choose(found: Narrowed, column: str, values: tuple[Any, ...]) -> None:
    if any(value is None for value in values):
        return
    match column.lower():
        case "topic":
            found.topics = _both(found.topics, values)
        case "tags" if all(map(_is_tag, values)):
            found.tags = _both(found.tags, values)
        case "queueid":
            found.queue_ids = _both(found.queue_ids, values)
        case _:
            pass


def _both(before: set[Any] | None, values: tuple[Any, ...]) -> set[Any]:
    return set(values) if before is None else before & set(values)


def _is_tag(value: object) -> bool:
    """Return whether the broker can filter by this value."""
    try:
        checked_tag(str(value))
    except UsageError:
        return False
    return True


def _bound(found: Narrowed, column: str, kind: type[Filter], value: object) -> None:
    match column.lower():
        case "queueid" if isinstance(value, int):
            found.queue_id.narrow(kind, value)
        case "queueoffset" if isinstance(value, int):
            found.offset.narrow(kind, value)
        case "storetimestamp" if isinstance(value, datetime):
            aware = value if value.tzinfo else value.astimezone(UTC)
            found.time_ms.narrow(kind, int(aware.timestamp() * 1000))
        case _:
            pass
