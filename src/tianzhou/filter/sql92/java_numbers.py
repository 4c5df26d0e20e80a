"""Parse numbers in property values exactly as Java does.

Python accepts more (`1_0`, `inf`, blanks around integers) and less (`5d`, hexadecimal fractions),
so this module decides which text is a number, and Python only converts it.
"""

import math
import re
import unicodedata
from typing import Final, TypeAlias

from tianzhou.filter.errors import NotComparable

INT32_MIN: Final = -(1 << 31)
INT32_MAX: Final = (1 << 31) - 1
INT64_MIN: Final = -(1 << 63)
INT64_MAX: Final = (1 << 63) - 1
_INT64_DIGITS: Final = len(str(INT64_MAX))

_WHOLE: Final = re.compile(rb"[+-]?[0-9]++")
# String.trim, a sign, a number, and the letter that Java's source code would have.
_REAL: Final = re.compile(
    rb"""
    [\x00-\x20]*+
    (?P<number> [+-]?
      (?: (?P<named> NaN | Infinity )
        | (?P<hex> 0[xX] (?: [0-9a-fA-F]++\.? | [0-9a-fA-F]*+\.[0-9a-fA-F]++ ) [pP][+-]?[0-9]++ )
        | (?: [0-9]++ (?:\.[0-9]*+)? | \.[0-9]++ ) (?:[eE][+-]?[0-9]++)?
      )
    )
    (?(named) | [fFdD]? )
    [\x00-\x20]*+
    """,
    re.VERBOSE,
)

Rank: TypeAlias = tuple[bool, float, float]


def read_integer(value: bytes) -> int:
    """`Integer.parseInt`. Raises NotComparable, as all of these."""
    if len(value) < 10 and value.isdigit():  # nearly all there are
        return int(value)
    return _within(value, INT32_MIN, INT32_MAX)


def read_long(value: bytes) -> int:
    """`Long.parseLong`."""
    if len(value) < _INT64_DIGITS and value.isdigit():
        return int(value)
    return _within(value, INT64_MIN, INT64_MAX)


def _within(value: bytes, low: int, high: int) -> int:
    if not value.isascii():
        value = _ascii_digits(value)
    if not _WHOLE.fullmatch(value):
        raise _unreadable(value, "an integer")
    # Python refuses to convert very long strings, but leading zeros may hide a short number.
    digits = value.lstrip(b"+-").lstrip(b"0") or b"0"
    if len(digits) <= _INT64_DIGITS:
        number = -int(digits) if value.startswith(b"-") else int(digits)
        if low <= number <= high:
            return number
    raise _unreadable(value, f"an integer from {low} to {high}")


def _ascii_digits(value: bytes) -> bytes:
    """The decimal digits of any script are digits to Java, if they are one UTF-16 unit."""
    text = value.decode("utf-8", "replace")
    digits = (unicodedata.decimal(sign, None) if sign <= "\uffff" else None for sign in text)
    return "".join(
        sign if digit is None else str(digit) for sign, digit in zip(text, digits, strict=True)
    ).encode()


def read_double(value: bytes) -> float:
    """`Double.parseDouble`."""
    match = _REAL.fullmatch(value)
    if match is None:
        raise _unreadable(value, "a number")
    if match["hex"] is None:
        return float(match["number"])
    try:
        return float.fromhex(match["number"].decode())
    except OverflowError:
        return -math.inf if match["number"].startswith(b"-") else math.inf


def rank(number: float) -> Rank:
    """Ranks compare as `Double.compareTo`: -0.0 is below 0.0, and NaN, equal to itself, on top."""
    if number != number:
        return True, 0.0, 0.0
    return False, number, math.copysign(1.0, number)


def read_rank(value: bytes) -> Rank:
    return rank(read_double(value))


def _unreadable(value: bytes, expected: str) -> NotComparable:
    return NotComparable(f"{value[:40]!r} is not {expected}")
