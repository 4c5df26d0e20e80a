"""Times in forms: milliseconds since 1970 from the script of the page or, without scripts, the text
of a field, which has no zone and is read in the zone of the server."""

from datetime import datetime

from tianzhou.base.errors import UsageError


def moment_ms(text: str) -> int:
    """Raises UsageError."""
    try:
        return int(text) if text.isdecimal() else _local_ms(text)
    except (ValueError, OverflowError, OSError):
        raise UsageError(f"invalid time {text[:64]!r}; use 2026-11-16T08:30") from None


def _local_ms(text: str) -> int:
    return round(datetime.fromisoformat(text).timestamp() * 1000)
