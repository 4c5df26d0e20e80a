"""Parsing of option values. Invalid values are rejected with the reason."""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from difflib import get_close_matches
from typing import Any, Final, TypeVar, cast

from tianzhou.spark.errors import SourceError

T = TypeVar("T")

EARLIEST: Final = -2
LATEST: Final = -1
"""The numbers that the Java connector uses for these words."""

QueueTable = Mapping[str, Mapping[str, Mapping[int, int]]]
"""Topic to broker name to queue id to offset."""

_UNITS_MS: Final = {"": 1, "ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_DURATION: Final = re.compile(r"(\d+)\s*([a-z]*)")
_UNIT_NAMES: Final = {
    "seconds": "s",
    "second": "s",
    "sec": "s",
    "minutes": "m",
    "minute": "m",
    "min": "m",
    "hours": "h",
    "hour": "h",
    "days": "d",
    "day": "d",
    "milliseconds": "ms",
}


def read_text(text: str) -> str:
    if not text.strip():
        raise ValueError("must not be empty")
    return text.strip()


def read_words(text: str) -> tuple[str, ...]:
    """Parse names separated by commas."""
    found = tuple(word.strip() for word in text.split(",") if word.strip())
    if not found:
        raise ValueError("must contain at least one name")
    return found


def read_bool(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError("must be true or false")
    return text.lower() == "true"


def read_count(text: str) -> int:
    if not text.strip().isdecimal() or int(text) < 1:
        raise ValueError("must be a whole number, at least 1")
    return int(text)


def read_duration_ms(text: str) -> int:
    """`500ms`, `30s`, `15m`, `1h`, `2 minutes`; a bare number is milliseconds."""
    found = _DURATION.fullmatch(text.strip().lower())
    unit = _UNIT_NAMES.get(found[2], found[2]) if found else ""
    if not found or unit not in _UNITS_MS:
        raise ValueError("must be a duration such as 500ms, 30s, 15m or 1h")
    return int(found[1]) * _UNITS_MS[unit]


def read_time_ms(text: str) -> int:
    """Parse milliseconds since 1970, or ISO 8601. A time without a zone is UTC."""
    text = text.strip()
    if re.fullmatch(r"-?\d{1,18}", text):
        return int(text)
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(
            "must be milliseconds since 1970 or a time such as 2026-11-15T08:30:00+08:00"
        ) from None
    return int((found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp() * 1000)


def read_offsets(text: str) -> QueueTable | int:
    """`earliest`, `latest`, or JSON such as `{"orders": {"broker-a": {"0": 23, "1": -1}}}`."""
    word = text.strip().lower()
    if word in ("earliest", "latest"):
        return EARLIEST if word == "earliest" else LATEST
    try:
        table = json.loads(text)
        return {
            str(topic): {
                str(broker): {int(queue): _offset(value) for queue, value in queues.items()}
                for broker, queues in brokers.items()
            }
            for topic, brokers in cast("dict[str, Any]", table).items()
            if not str(topic).startswith("$")  # a marker in offsets copied from a checkpoint
        }
    except (ValueError, AttributeError, TypeError) as error:
        raise ValueError(
            'must be earliest, latest, or JSON such as {"orders": {"broker-a": {"0": 23, "1": -1}}}'
            f", where -2 is the earliest and -1 the latest ({error})"
        ) from None


def _offset(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < EARLIEST:
        raise ValueError(f"invalid offset {value!r}")
    return value


@dataclass(frozen=True, slots=True)
class Option:
    """One option of a table: its parser, its documentation and its other spellings."""

    read: Callable[[str], object]
    help: str
    aliases: tuple[str, ...] = field(default=())


def read_options(
    given: Mapping[str, str], known: Mapping[str, Option], passed_over: frozenset[str]
) -> dict[str, Any]:
    """Return values by option name. Raises SourceError that lists every invalid option."""
    names = {name.lower(): name for name in known}
    names |= {alias.lower(): name for name, option in known.items() for alias in option.aliases}
    found: dict[str, Any] = {}
    problems: list[str] = []
    for key, text in given.items():
        name = names.get(key.lower())
        if name is None:
            if key.lower() not in passed_over:
                problems.append(_unknown(key, list(names.values())))
            continue
        try:
            value = known[name].read(text)
        except ValueError as error:
            problems.append(f"option {name} is {text!r}; it {error}")
            continue
        if found.setdefault(name, value) != value:
            problems.append(f"option {name} is set twice: {found[name]!r} and, as {key}, {text!r}")
    if problems:
        raise SourceError("WRONG_OPTION", "; ".join(problems))
    return found


def _unknown(key: str, names: list[str]) -> str:
    lower = {name.lower(): name for name in names}
    near = get_close_matches(key.lower(), lower, 1)
    hint = (
        f"did you mean {lower[near[0]]}?" if near else f"known are {', '.join(sorted(set(names)))}"
    )
    return f"unknown option {key!r}: {hint}"
