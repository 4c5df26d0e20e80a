"""What untrusted text looks like in a log, and how many lines of one kind are written."""

import logging
import sys

import pytest

from tianzhou.net.log_guard import (
    LINES_MAX,
    TEXT_CHARS_MAX,
    TRACES_MAX,
    WINDOW_S,
    RateLimit,
    one_entry,
)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain", "plain"),
        ("two\nlines", "two\n    lines"),
        ("back\rward", "back\\rward"),
        ("\x1b[31mred", "\\x1b[31mred"),
        ("nul\x00", "nul\\x00"),
        ("line\u2028separator", "line\\u2028separator"),
        ("天舟", "天舟"),
    ],
)
def test_one_entry_escapes_untrusted_text(text: str, shown: str) -> None:
    assert one_entry(text) == shown


def test_one_entry_truncates_long_text() -> None:
    assert len(one_entry(10 * TEXT_CHARS_MAX * "x")) == TEXT_CHARS_MAX


def record_of(text: str, at_s: float = 0.0, **facts: object) -> logging.LogRecord:
    return logging.makeLogRecord({"msg": text, "created": at_s, **facts})


def written(guard: RateLimit, records: list[logging.LogRecord]) -> list[int]:
    """How many lines each written record says were left out before it."""
    return [int(getattr(one, "left_out", 0)) for one in records if guard.filter(one)]


def failing(kind: type[Exception], text: str, at_s: float = 0.0) -> logging.LogRecord:
    try:
        raising(kind(text))
    except Exception:
        return record_of(f"failed at {id(text)}", at_s, exc_info=sys.exc_info(), peer=f"{text}:1")
    raise AssertionError


def raising(error: Exception) -> None:
    raise error


def test_rate_limit_counts_suppressed_lines_within_and_after_a_burst() -> None:
    guard = RateLimit()
    burst = [record_of("flood") for _ in range(1_500)]
    assert written(guard, burst) == [0] * LINES_MAX + [79, 899]
    assert written(guard, [record_of("flood", WINDOW_S)]) == [500]
    assert written(guard, [record_of("flood", WINDOW_S)]) == [0], "counted once"


def test_rate_limit_writes_few_tracebacks_of_one_error_for_any_text_and_peer() -> None:
    guard = RateLimit()
    burst = [failing(ValueError, f"10.0.0.{number}") for number in range(100)]
    assert written(guard, burst) == [0] * TRACES_MAX + [6, 89]
    assert written(guard, [failing(KeyError, "x")]) == [0], "another error has its own limit"
    assert written(guard, [failing(ValueError, "x", WINDOW_S)]) == [0]


def test_rate_limit_counts_errors_of_different_places_separately() -> None:
    guard = RateLimit()
    written(guard, [failing(ValueError, "x") for _ in range(50)])
    with pytest.raises(ValueError, match="elsewhere") as caught:
        int("elsewhere")
    elsewhere = (caught.type, caught.value, caught.tb)
    assert written(guard, [record_of("failed", exc_info=elsewhere)]) == [0]


def test_rate_limit_accepts_a_record_whose_error_has_no_traceback() -> None:
    guard = RateLimit()
    bare = ValueError("never raised")
    records = [record_of("x", exc_info=(ValueError, bare, None)) for _ in range(5)]
    assert len(written(guard, records)) == TRACES_MAX
    assert len(written(guard, [record_of("x", exc_info=(None, None, None))])) == 1
