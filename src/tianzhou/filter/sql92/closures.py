"""Compile a tree to nested functions, which run several times faster than walking the tree.

The types of the operands are known at compile time: a property is text or missing, and a literal
has the type of its notation. So each comparison selects its implementation here, once.

The functions take a message in any form that the property getters accept, and raise NotComparable.
They evaluate operands from left to right, each once, and skip those that AND and OR do not need:
an error in a skipped operand must not be raised, because RocketMQ does not raise it either.
"""

import operator
from collections.abc import Callable
from typing import Final, Generic, NamedTuple, TypeAlias, TypeVar

from tianzhou.filter.sql92.comparing import EQUALITIES, Kind, Test, Value, kind_of_whole, test_for
from tianzhou.filter.sql92.java_numbers import rank
from tianzhou.filter.sql92.tree import (
    And,
    Between,
    Compare,
    Comparison,
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

M = TypeVar("M")
"""A message."""
Run: TypeAlias = Callable[[M], Value]
Decide: TypeAlias = Callable[[M], bool | None]
Getter: TypeAlias = Callable[[str], Callable[[M], bytes | None]]
"""From the name of a property to the function that gets it."""

_SEARCHES: Final[dict[Search, Callable[[bytes, bytes], bool]]] = {
    Search.CONTAINS: operator.contains,
    Search.STARTS_WITH: bytes.startswith,
    Search.ENDS_WITH: bytes.endswith,
}


class Operand(NamedTuple, Generic[M]):
    kind: Kind
    run: Run[M]


class Closures(Generic[M]):
    """Makes functions out of nodes."""

    def __init__(self, getter: Getter[M]) -> None:
        self._getter = getter

    def condition(self, node: Node) -> Decide[M]:
        match node:
            case Property(name):
                return _cast(self._getter(name))
            case Truth(value):
                return _always(value)
            case Not(operand):
                return _not(self.condition(operand))
            case And(operands):
                return _chain([self.condition(each) for each in operands], ends=False)
            case Or(operands):
                return _chain([self.condition(each) for each in operands], ends=True)
            case IsNull(operand, negated):
                return _is_null(self._operand(operand).run, negated)
            case In(Property(name), values, negated):
                return _in(self._getter(name), frozenset(map(str.encode, values)), negated)
            case Find():
                return self._find(node)
            case Compare(comparison, left, right):
                return _compare(comparison, self._operand(left), self._operand(right))
            case Between():
                return self._between(node)
            case Text() | Whole() | Real() | Negate():
                raise AssertionError(f"the parser lets no {node} pass as a condition")

    def _operand(self, node: Node) -> Operand[M]:
        match node:
            case Property(name):
                return Operand(Kind.TEXT, self._getter(name))
            case Text(value):
                return Operand(Kind.TEXT, _always(value.encode()))
            case Whole(value):
                return Operand(kind_of_whole(value), _always(value))
            case Real(value):
                return Operand(Kind.DOUBLE, _always(rank(value)))
            case Truth(None):
                return Operand(Kind.NOTHING, _always(None))
            case Negate(operand):
                return self._negated(operand)
            case _:
                return Operand(Kind.TRUTH, self.condition(node))

    def _negated(self, node: Node) -> Operand[M]:
        """The minus of a number has its type: no literal is one whose minus has not."""
        sign = -1
        inner = node
        while isinstance(inner, Negate):
            sign, inner = -sign, inner.operand
        if isinstance(inner, Whole):
            return Operand(kind_of_whole(inner.value), _always(sign * inner.value))
        if isinstance(inner, Real):
            return Operand(Kind.DOUBLE, _always(rank(sign * inner.value)))
        # Null, but an error inside must come to light.
        return Operand(Kind.NOTHING, _null_after(self._operand(inner).run))

    def _find(self, node: Find) -> Decide[M]:
        if not node.wanted:
            return _always(False)
        operand = self._operand(node.operand)
        if operand.kind is not Kind.TEXT:
            return _false_after(operand.run)
        return _search(operand.run, _SEARCHES[node.search], node.wanted.encode(), node.negated)

    def _between(self, node: Between) -> Decide[M]:
        operand, low, high = map(self._operand, (node.operand, node.low, node.high))
        first, second = (
            (Comparison.LESS, Comparison.GREATER)
            if node.negated
            else (Comparison.GREATER_EQUAL, Comparison.LESS_EQUAL)
        )
        below = test_for(first, operand.kind, low.kind)
        above = test_for(second, operand.kind, high.kind)
        return _range(operand.run, (low.run, below), (high.run, above), ends=node.negated)


# The compiled functions. SQL null is None.


def _always(value: Value) -> Callable[[object], Value]:
    return lambda _message: value


def _null_after(run: Run[M]) -> Run[M]:
    def null(message: M) -> None:
        run(message)

    return null


def _false_after(run: Run[M]) -> Decide[M]:
    def false(message: M) -> bool:
        run(message)
        return False

    return false


def _cast(get: Callable[[M], bytes | None]) -> Decide[M]:
    return lambda message: None if get(message) is None else False


def _not(decide: Decide[M]) -> Decide[M]:
    def opposite(message: M) -> bool | None:
        found = decide(message)
        return None if found is None else not found

    return opposite


def _chain(parts: list[Decide[M]], *, ends: bool) -> Decide[M]:
    """AND stops at the first false operand, OR at the first true one. A null operand does not
    stop the evaluation, but makes the result null unless a later operand decides it."""

    def chain(message: M) -> bool | None:
        result: bool | None = not ends
        for part in parts:
            found = part(message)
            if found is ends:
                return ends
            if found is None:
                result = None
        return result

    return chain


def _is_null(run: Run[M], negated: bool) -> Decide[M]:
    return lambda message: (run(message) is None) is not negated


def _in(get: Callable[[M], bytes | None], values: frozenset[bytes], negated: bool) -> Decide[M]:
    def within(message: M) -> bool | None:
        value = get(message)
        return None if value is None else (value in values) is not negated

    return within


def _search(
    run: Run[M], search: Callable[[bytes, bytes], bool], wanted: bytes, negated: bool
) -> Decide[M]:
    def find(message: M) -> bool:
        value = run(message)
        # A missing property neither contains nor does not contain.
        return value is not None and search(value, wanted) is not negated

    return find


def _compare(comparison: Comparison, left: Operand[M], right: Operand[M]) -> Decide[M]:
    test = test_for(comparison, left.kind, right.kind)
    if comparison in EQUALITIES:
        return _equal(left.run, right.run, test, equal=comparison is Comparison.EQUAL)
    return _ordered(left.run, right.run, test)


def _equal(left: Run[M], right: Run[M], test: Test, *, equal: bool) -> Decide[M]:
    def compare(message: M) -> bool | None:
        one, other = left(message), right(message)
        if one is None:
            return equal if other is None else None
        return (not equal) if other is None else test(one, other)

    return compare


def _ordered(left: Run[M], right: Run[M], test: Test) -> Decide[M]:
    def compare(message: M) -> bool | None:
        one = left(message)
        if one is None:
            return None
        other = right(message)
        return None if other is None else test(one, other)

    return compare


def _range(
    run: Run[M], low: tuple[Run[M], Test], high: tuple[Run[M], Test], *, ends: bool
) -> Decide[M]:
    """The two comparisons of BETWEEN, joined as AND joins, or for NOT BETWEEN as OR does. The
    operand is evaluated once: twice at each of many levels would be exponential."""

    def within(message: M) -> bool | None:
        value = run(message)
        if value is None:
            return None
        result: bool | None = not ends
        for bound, test in (low, high):
            limit = bound(message)
            if limit is None:
                result = None
            elif test(value, limit) is ends:
                return ends
        return result

    return within
