"""Parsing of sizes, intervals and charsets."""

import codecs
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


def read_charset(name: str) -> str:
    """Return a charset that Python knows. Raises ValueError."""
    try:
        codec = codecs.lookup(name)
    except LookupError:
        raise ValueError(
            f"is {name!r}, which is not a charset; use utf-8, gbk or gb18030, for example"
        ) from None
    if not getattr(codec, "_is_text_encoding", True):
        raise ValueError(f"is {name!r}, which is not a charset for text; use utf-8 or gb18030")
    return name
