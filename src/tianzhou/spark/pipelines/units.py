"""Parsing of sizes and intervals."""

import re
from typing import Final

from tianzhou.spark.option_values import read_duration_ms

_SIZES: Final = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}


def read_size(text: str) -> int:
    """Parse `64m`, `512k` or `1g`; a bare number is bytes."""
    found = re.fullmatch(r"(\d+)\s*([kmg]?)i?b?", text.strip().lower())
    if not found:
        raise ValueError(f"is {text!r}; it must be a size such as 512k, 64m or 1g")
    return int(found[1]) * _SIZES[found[2]]


def read_interval(text: str) -> str:
    """Convert a duration to an interval of Spark's triggers."""
    return f"{read_duration_ms(text)} milliseconds"
