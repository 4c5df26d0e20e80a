"""Parse tokens to a tree: recursive descent, one method for each level of precedence.

From loose to tight: OR; AND; `=` `<>` IS NULL; ordering, BETWEEN, IN and searches; `+` `-` NOT.
NOT binds tightly: `NOT a = 1` is `(NOT a) = 1`, which surprises everyone once. Operands that
can never be compared are rejected here, so that a subscriber gets an error instead of no messages.
"""

import math
from collections.abc import Callable
from typing import Final, NamedTuple, NoReturn

from tianzhou.filter.errors import FilterError, NotComparable
from tianzhou.filter.limits import DEPTH_MAX, IN_VALUES_MAX
from tianzhou.filter.sql92.java_numbers import INT64_MAX, rank, read_long
from tianzhou.filter.sql92.tokens import END, INTEGER, NAME, REAL, STRING, Token, tokens_of
from tianzhou.filter.sql92.tree import (
    And,
    Between,
    Compare,
    Comparison,
    Condition,
    Find,
    In,
    IsNull,
    Negate,
    Node,
    Not,
    Or,
    Property,
    Real,
    Search,
    Text,
    Truth,
    Whole,
)

_EQUALITIES: Final = {sign: Comparison(sign) for sign in ("=", "<>")}
_ORDERINGS: Final = {sign: Comparison(sign) for sign in (">", ">=", "<", "<=")}
_SEARCHES: Final = {search.value: search for search in Search}
_TRUTHS: Final = {"TRUE": True, "FALSE": False, "NULL": None}
_PREFIXES: Final = ("+", "-", "NOT")


class Part(NamedTuple):
    """A parsed piece of the text, and what its surroundings must know of it."""

    node: Node
    at: int
    depth: int = 0


def parse(text: str) -> Node:
    """Parse an expression. Raises FilterError with the position and the expected token."""
    return _Parser(tokens_of(text)).whole()


class _Parser:
    def __init__(self, tokens: list[Token]) -> None:
        self._tokens = tokens
        self._next = 0
        self._open = 0
        """Parentheses that are open here."""

    # Tokens

    @property
    def _kind(self) -> str:
        return self._tokens[self._next].kind

    def _take(self) -> Token:
        token = self._tokens[self._next]
        self._next += 1
        return token

    def _expect(self, kind: str, said: str = "") -> Token:
        if self._kind != kind:
            self._refuse(said or kind)
        return self._take()

    def _refuse(self, expected: str) -> NoReturn:
        token = self._tokens[self._next]
        found = "the end" if token.kind == END else repr(token.text)
        raise FilterError(token.at, f"found {found}; expected {expected}")

    # Levels

    def whole(self) -> Node:
        part = self._either()
        if self._kind != END:
            self._refuse("AND, OR, a comparison or the end")
        return _condition(part)

    def _either(self) -> Part:
        return self._chain("OR", Or, self._both)

    def _both(self) -> Part:
        return self._chain("AND", And, self._equality)

    def _chain(
        self,
        word: str,
        node: Callable[[tuple[Node, ...]], Node],
        operand: Callable[[], Part],
    ) -> Part:
        parts = [operand()]
        while self._kind == word:
            self._take()
            parts.append(operand())
        if len(parts) == 1:
            return parts[0]
        return _joined(node(tuple(map(_condition, parts))), *parts)

    def _equality(self) -> Part:
        left = self._ordering()
        while True:
            if self._kind in _EQUALITIES:
                comparison = _EQUALITIES[self._take().kind]
                right = self._ordering()
                _check_equality(left, right)
                left = _joined(Compare(comparison, left.node, right.node), left, right)
            elif self._kind == "IS":
                self._take()
                negated = self._takes_not()
                self._expect("NULL", "NULL" if negated else "NULL or NOT NULL")
                left = _joined(IsNull(left.node, negated), left)
            else:
                return left

    def _ordering(self) -> Part:
        left = self._prefixed()
        while True:
            if self._kind in _ORDERINGS:
                comparison = _ORDERINGS[self._take().kind]
                right = self._prefixed()
                _check_ordered(left, right)
                left = _joined(Compare(comparison, left.node, right.node), left, right)
            elif self._kind in ("NOT", "BETWEEN", "IN") or self._kind in _SEARCHES:
                left = self._worded(left, self._takes_not())
            else:
                return left

    def _takes_not(self) -> bool:
        if self._kind != "NOT":
            return False
        self._take()
        return True

    def _worded(self, left: Part, negated: bool) -> Part:
        if self._kind == "BETWEEN":
            return self._between(left, negated)
        if self._kind == "IN":
            return self._in(left, negated)
        if self._kind not in _SEARCHES:
            self._refuse("BETWEEN, IN, CONTAINS, STARTSWITH or ENDSWITH")
        search = _SEARCHES[self._take().kind]
        wanted = _unquoted(self._expect(STRING))
        return _joined(Find(search, left.node, wanted, negated), left)

    def _between(self, left: Part, negated: bool) -> Part:
        self._take()
        low = self._prefixed()
        self._expect("AND")
        high = self._prefixed()
        _check_ordered(left, low, high)
        if not negated:
            _check_range(low, high)
        return _joined(Between(left.node, low.node, high.node, negated), left, low, high)

    def _in(self, left: Part, negated: bool) -> Part:
        self._take()
        if not isinstance(left.node, Property):
            raise FilterError(left.at, "expected a property on the left of IN")
        self._expect("(")
        values = [_unquoted(self._expect(STRING))]
        while self._kind == ",":
            if len(values) == IN_VALUES_MAX:
                self._refuse(f"at most {IN_VALUES_MAX} strings in a list")
            self._take()
            values.append(_unquoted(self._expect(STRING)))
        self._expect(")", "',' or ')'")
        return _joined(In(left.node, tuple(values), negated), left)

    def _prefixed(self) -> Part:
        prefixes: list[Token] = []
        while self._kind in _PREFIXES:
            prefixes.append(self._take())
        part = self._primary()
        for prefix in reversed(prefixes):
            part = _with_prefix(prefix, part)
        return part

    def _primary(self) -> Part:
        kind = self._kind
        if kind == "(":
            return self._parenthesised()
        if kind not in _TRUTHS and kind not in (NAME, STRING, INTEGER, REAL):
            self._refuse("a property, a value or '('")
        token = self._take()
        return Part(_leaf(token), token.at)

    def _parenthesised(self) -> Part:
        if self._open == DEPTH_MAX:
            self._refuse(f"at most {DEPTH_MAX} parentheses within each other")
        at = self._take().at
        self._open += 1
        inner = self._either()
        self._expect(")")
        self._open -= 1
        return inner._replace(at=at)


def _joined(node: Node, *parts: Part) -> Part:
    at = parts[0].at
    depth = 1 + max(part.depth for part in parts)
    if depth > DEPTH_MAX:
        raise FilterError(at, f"expected at most {DEPTH_MAX} operators within each other")
    return Part(node, at, depth)


def _with_prefix(prefix: Token, part: Part) -> Part:
    moved = part._replace(at=prefix.at)
    match prefix.kind:
        case "-":
            return _joined(Negate(part.node), moved)
        case "NOT":
            return _joined(Not(_condition(part)), moved)
        case _:
            return moved


# Leaves


def _leaf(token: Token) -> Node:
    if token.kind == NAME:
        return Property(token.text)
    if token.kind == STRING:
        return Text(_unquoted(token))
    if token.kind == INTEGER:
        return _whole(token)
    if token.kind == REAL:
        return _real(token)
    return Truth(_TRUTHS[token.kind])


def _unquoted(token: Token) -> str:
    return token.text[1:-1].replace("''", "'")


def _whole(token: Token) -> Whole:
    try:
        return Whole(read_long(token.text.rstrip("lL").encode()))
    except NotComparable as error:
        raise FilterError(token.at, f"expected an integer up to {INT64_MAX}") from error


def _real(token: Token) -> Real:
    value = float(token.text)
    if value == 0 or math.isinf(value):
        # Zero is a mistake of RocketMQ that its users have worked around; `0` is accepted.
        raise FilterError(token.at, "expected a decimal number from 4.9e-324 to 1.797e308")
    return Real(value)


# What can be compared


def _condition(part: Part) -> Node:
    """A property is a condition too: it is never true, because no property is a Boolean."""
    if isinstance(part.node, Condition | Property):
        return part.node
    raise FilterError(part.at, "expected something that is true or false")


def _check_equality(left: Part, right: Part) -> None:
    for part in (left, right):
        if part.node == Truth(None):
            raise FilterError(part.at, "nothing equals NULL; expected IS NULL or IS NOT NULL")
    if isinstance(left.node, Truth) and isinstance(right.node, Text | Whole | Real):
        raise FilterError(right.at, "expected a condition or a property to compare with")


def _check_ordered(*parts: Part) -> None:
    for part in parts:
        if isinstance(part.node, Text | Condition):
            raise FilterError(part.at, "expected a property or a number to compare")


def _check_range(low: Part, high: Part) -> None:
    if not (isinstance(low.node, Whole | Real) and isinstance(high.node, Whole | Real)):
        return
    if _is_above(low.node.value, high.node.value):
        raise FilterError(high.at, f"expected at least {low.node.value}, the lower bound")


def _is_above(one: float, other: float) -> bool:
    if isinstance(one, int) and isinstance(other, int):
        return one > other
    return rank(float(one)) > rank(float(other))
