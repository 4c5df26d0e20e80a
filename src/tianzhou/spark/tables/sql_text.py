"""The SQL of `tianzhou sql`: Spark SQL, with two more clauses after the name of a topic.

    orders TIMESTAMP AS OF '2026-11-16T08:00:00Z'
    orders OFFSET BETWEEN 100 AND 200

A topic is a name that exists in the cluster or in the archive, plain or in backquotes. Spark parses
everything else, so the text is only split into tokens: strings, comments and quoted names.
"""

import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from tianzhou.spark.option_values import read_time_ms
from tianzhou.spark.tables.errors import TableError
from tianzhou.spark.tables.history_table import Range

_TOKEN: Final = re.compile(
    r"""(?P<space>\s+|--[^\n]*|/\*.*?\*/)
      | (?P<string>'(?:[^'\\]|\\.|'')*'|"(?:[^"\\]|\\.|"")*")
      | (?P<quoted>`(?:[^`]|``)*`)
      | (?P<word>\w+)
      | (?P<sign>.)""",
    re.VERBOSE | re.DOTALL,
)

_BEFORE_TABLES: Final = {"FROM", "JOIN", ","}
_AFTER_TABLES: Final = {
    "WHERE", "GROUP", "ORDER", "HAVING", "LIMIT", "JOIN", "INNER", "LEFT", "RIGHT", "FULL",
    "CROSS", "SEMI", "ANTI", "NATURAL", "ON", "USING", "UNION", "EXCEPT", "INTERSECT", "MINUS",
    "WINDOW", "LATERAL", "TABLESAMPLE", "PIVOT", "UNPIVOT", "CLUSTER", "DISTRIBUTE", "SORT",
    "OFFSET", "FROM", "QUALIFY",
}  # fmt: skip
"""Words after a table that are not its alias."""


@dataclass(frozen=True, slots=True)
class TopicUse:
    """A topic in a query, the selected rows, and the view that replaces them."""

    topic: str
    wanted: Range
    view: str


@dataclass(slots=True)
class _Token:
    kind: str
    text: str

    def is_word(self, word: str) -> bool:
        return self.kind == "word" and self.text.upper() == word


def read_sql(text: str, topics: Collection[str]) -> tuple[str, list[TopicUse]]:
    """Return Spark SQL with views in place of topics, and the topics. Raises TableError."""
    tokens = [_Token(str(m.lastgroup), m[0]) for m in _TOKEN.finditer(text)]
    uses: dict[tuple[str, Range], TopicUse] = {}
    out: list[str] = []
    at = 0
    before = _Token("sign", "")
    while at < len(tokens):
        token = tokens[at]
        topic = _topic(token, topics) if before.text.upper() in _BEFORE_TABLES else None
        before = token if token.kind != "space" else before
        if topic is None:
            out.append(token.text)
            at += 1
            continue
        wanted, at = _range(tokens, at + 1)
        new = TopicUse(topic, wanted, _view(topic, wanted, len(uses)))
        use = uses.setdefault((topic, wanted), new)
        out.append(f"`{use.view}`" if _has_name(tokens, at) else f"`{use.view}` AS `{topic}`")
    return "".join(out), list(uses.values())


def _topic(token: _Token, topics: Collection[str]) -> str | None:
    if token.kind == "word" and token.text in topics:
        return token.text
    if token.kind == "quoted":
        name = token.text[1:-1].replace("``", "`")
        return name if name in topics else None
    return None


def _has_name(tokens: list[_Token], at: int) -> bool:
    """Return whether the table has an alias; without one the alias is the topic's name."""
    behind = next((token for token in tokens[at:] if token.kind != "space"), None)
    if behind is None or behind.kind == "sign":
        return False
    return behind.kind == "quoted" or behind.text.upper() not in _AFTER_TABLES


def _view(topic: str, wanted: Range, rank: int) -> str:
    return topic if wanted == Range() else f"{topic} {rank}"


def _range(tokens: list[_Token], at: int) -> tuple[Range, int]:
    """Parse the clause after a topic's name; also return where the rest of the text starts."""
    ahead = [(n, token) for n, token in enumerate(tokens[at:], at) if token.kind != "space"][:6]
    words = [token for _, token in ahead]
    if _are(words, "TIMESTAMP", "AS", "OF"):
        value = words[3] if len(words) > 3 else _Token("sign", "the end")
        if value.kind not in ("string", "word"):
            raise TableError(f"TIMESTAMP AS OF needs a time in quotes, not {value.text}")
        return Range(as_of_ms=_time(value)), ahead[3][0] + 1
    if _are(words, "OFFSET", "BETWEEN"):
        if len(words) < 5 or not (words[2].text + words[4].text).isdigit():
            raise TableError("OFFSET BETWEEN needs two whole numbers joined by AND")
        if not words[3].is_word("AND"):
            raise TableError(f"OFFSET BETWEEN needs AND, not {words[3].text}")
        first, last = int(words[2].text), int(words[4].text)
        return Range(first_offset=first, last_offset=last), ahead[4][0] + 1
    return Range(), at


def _are(tokens: list[_Token], *words: str) -> bool:
    found = tokens[: len(words)]
    return len(found) == len(words) and all(map(_Token.is_word, found, words))


def _time(value: _Token) -> int:
    text = value.text.strip("'\"")
    try:
        return read_time_ms(text)
    except ValueError as error:
        raise TableError(f"TIMESTAMP AS OF {value.text}: it {error}") from error
