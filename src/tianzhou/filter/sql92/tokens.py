"""Text to tokens. One regular expression, possessive throughout, so that it never tries twice."""

import re
from typing import Final, NamedTuple

from tianzhou.filter.errors import FilterError
from tianzhou.filter.limits import TEXT_BYTES_MAX, TOKENS_MAX

NAME: Final = "a property"
INTEGER: Final = "an integer"
REAL: Final = "a decimal number"
STRING: Final = "a string"
END: Final = "the end"

KEYWORDS: Final = frozenset(
    {
        "AND",
        "BETWEEN",
        "CONTAINS",
        "ENDSWITH",
        "FALSE",
        "IN",
        "IS",
        "NOT",
        "NULL",
        "OR",
        "STARTSWITH",
        "TRUE",
    }
)

_PATTERN: Final = re.compile(
    r"""
      (?P<skip>   [ \t\n\r\f]++ | --[^\n\r]*+ | /\*(?s:.*?)\*/ )
    | (?P<word>   [A-Za-z_$][A-Za-z0-9_$]*+ )
    | (?P<real>   (?: [0-9]++\.[0-9]*+ | \.[0-9]++ ) (?:[eE][+-]?[0-9]++)?
                | [0-9]++[eE][+-]?[0-9]++ )
    | (?P<integer>(?:0(?![0-9])|[1-9][0-9]*+)[lL]? )
    | (?P<string> '(?:[^']++|'')*+' )
    | (?P<sign>   <> | <= | >= | [=<>(),+-] )
    """,
    re.VERBOSE,
)
_KINDS: Final = {"real": REAL, "integer": INTEGER, "string": STRING}


class Token(NamedTuple):
    kind: str
    """A constant above, a keyword in capitals, or the sign itself."""
    text: str
    at: int


def tokens_of(text: str) -> list[Token]:
    """All tokens, the last being END. Raises FilterError."""
    _check_size(text)
    found: list[Token] = []
    at = counted = 0
    while at < len(text):
        match = _PATTERN.match(text, at)
        if match is None:
            raise FilterError(at, _complaint(text, at))
        if match.lastgroup != "skip":
            counted += match[0] != ","
            if counted > TOKENS_MAX:
                raise FilterError(at, f"expected the end after {TOKENS_MAX} words and signs")
            found.append(_token(match, at))
        at = match.end()
    found.append(Token(END, "", at))
    return found


def _check_size(text: str) -> None:
    try:
        size = len(text.encode())
    except UnicodeEncodeError as error:
        raise FilterError(error.start, "half a surrogate pair; expected text") from error
    if size > TEXT_BYTES_MAX:
        raise FilterError(
            min(len(text), TEXT_BYTES_MAX),
            f"the expression has {size} bytes; expected at most {TEXT_BYTES_MAX}",
        )


def _token(match: re.Match[str], at: int) -> Token:
    text = match[0]
    if match.lastgroup == "sign":
        return Token(text, text, at)
    if match.lastgroup != "word":
        return Token(_KINDS[match.lastgroup or ""], text, at)
    # Words of the language are ASCII, so that no letter turns into two.
    capitals = text.upper()
    return Token(capitals if capitals in KEYWORDS else NAME, text, at)


def _complaint(text: str, at: int) -> str:
    if text[at] == "'":
        return "a string begins here; expected ' at its end"
    if text.startswith("/*", at):
        return "a comment begins here; expected */ at its end"
    return f"found {text[at]!r}; expected a property, a value or an operator"
