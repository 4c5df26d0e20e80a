"""Bounds of an expression, each with its reason. A broker runs it for every message, so the text
that one client sends must not slow down the others."""

from typing import Final

TEXT_BYTES_MAX: Final = 4096
"""In UTF-8. Longer lists of conditions belong into a property that the producer writes."""

TOKENS_MAX: Final = 512
"""Words, signs and literals, but not comments, nor commas: with them a full IN list would not fit.
Bounds the tree, and by that the work a message costs."""

DEPTH_MAX: Final = 32
"""Parentheses within parentheses, or operators within operators. The parser and the compiled form
call themselves once for each; 32 is far from the interpreter's limit, and from what people read."""

IN_VALUES_MAX: Final = 256
"""Strings in one IN list."""

VISITS_MAX: Final = 1000
"""Parts of an expression that are evaluated for one message. Nothing counts them: evaluation visits
no part twice, and no part has less than one token of its own, so TOKENS_MAX holds this bound."""

FINDS_MAX: Final = 3
"""An expression that names properties at most this often searches for each in the property string;
beyond, splitting the string once is cheaper. `python -m bench.filters` measures both."""

FIND_BYTES_MAX: Final = 1024
"""A longer property string is always split: it could be written so that a search stops at every
third byte, and splitting takes the same time whatever it holds."""

assert TOKENS_MAX <= VISITS_MAX
assert IN_VALUES_MAX + 4 <= TOKENS_MAX, "beside the strings stand a property, IN and parentheses"
