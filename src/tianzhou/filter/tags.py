"""Tag subscriptions: `*` for everything, or tags joined by `||`.

The broker compares hash codes, which it has in the consume queue, and so lets through a message
whose tag has the hash of another. The client compares the tags themselves.
"""

from dataclasses import dataclass
from typing import Final

from tianzhou.base.java import string_hash
from tianzhou.filter.errors import FilterError

ALL: Final = "*"
BAR: Final = "||"
# What Java's String.trim takes away. Python's own idea of a blank is wider.
BLANKS: Final = "".join(map(chr, range(33)))


@dataclass(frozen=True, slots=True)
class TagFilter:
    is_all: bool
    tags: frozenset[str]
    codes: frozenset[int]
    """Java's hash codes of the tags, signed, as the consume queue keeps them."""


EVERYTHING: Final = TagFilter(is_all=True, tags=frozenset(), codes=frozenset())


def parse_tags(text: str) -> TagFilter:
    """Raises FilterError for nothing but bars. Blanks between bars are allowed, and match nothing.

    >>> sorted(parse_tags("pear || apple").tags)
    ['apple', 'pear']
    """
    if text in ("", ALL):
        return EVERYTHING
    parts = text.split(BAR)
    if not any(parts):
        raise FilterError(0, f"found only {text!r}; expected tags between the bars, or {ALL!r}")
    tags = frozenset(tag for part in parts if (tag := part.strip(BLANKS)))
    return TagFilter(is_all=False, tags=tags, codes=frozenset(map(string_hash, tags)))
