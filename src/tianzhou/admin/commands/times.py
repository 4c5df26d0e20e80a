"""Times and durations on the command line.

now, 2026-11-16, 2026-11-16T08:30, "2026-11-16 08:30:00+08:00"   local time unless a zone is given
20261116083000                                                   as Java's tools write it
1794817800000                                                    milliseconds since 1970
10m, 2h, 3d                                                      this long ago
"""

import re
from datetime import datetime, timedelta
from typing import Final

import click

from tianzhou.base.clock import Clock

_SPAN: Final = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")
_UNITS_S: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
_MILLISECOND_DIGITS: Final = (12, 13)
_JAVA_DIGITS: Final = 14


def span_of(text: str) -> timedelta | None:
    found = _SPAN.fullmatch(text)
    if found is None:
        return None
    return timedelta(seconds=float(found[1]) * _UNITS_S[found[2]])


def time_ms_of(text: str, now_ms: int) -> int:
    """Milliseconds since 1970. Raises ValueError."""
    span = span_of(text)
    if text == "now":
        return now_ms
    if span is not None:
        return now_ms - round(span.total_seconds() * 1000)
    if text.isdecimal() and len(text) in _MILLISECOND_DIGITS:
        return int(text)
    if text.isdecimal() and len(text) == _JAVA_DIGITS:
        found = datetime.strptime(text, "%Y%m%d%H%M%S")  # noqa: DTZ007 - local, as Java's tools
    else:
        found = datetime.fromisoformat(text)
    return round(found.timestamp() * 1000)


def parse_time(text: str) -> int:
    """The type of an option: milliseconds since 1970."""
    clock: Clock = click.get_current_context().find_root().obj
    try:
        return time_ms_of(text, clock.now_ms())
    except (ValueError, OverflowError) as error:
        raise click.BadParameter(
            f"invalid time {text!r}; use 2026-11-16T08:30, 20261116083000, milliseconds since "
            "1970, now, or a duration before now: 10m, 2h, 3d"
        ) from error


def span(text: str) -> timedelta:
    """The type of an option."""
    found = span_of(text)
    if found is None:
        raise click.BadParameter(f"invalid duration {text!r}; use 500ms, 30s, 10m, 2h or 3d")
    return found
