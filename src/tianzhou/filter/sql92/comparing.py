"""How two values are compared, by their types. The types are Java's: text is read as the number
type that it meets, so `'1.5'` can be compared with `1.0` but not with `1`.

Doubles are compared by their rank, and so are held as one. Missing values never come here.
"""

import operator
from collections.abc import Callable
from enum import Enum, auto
from typing import Any, Final, TypeAlias

from tianzhou.filter.errors import NotComparable
from tianzhou.filter.sql92.java_numbers import (
    INT32_MAX,
    INT32_MIN,
    rank,
    read_integer,
    read_long,
    read_rank,
)
from tianzhou.filter.sql92.tree import Comparison

Value: TypeAlias = Any
"""bytes, int, a rank, bool or None; a Kind says which."""
Test: TypeAlias = Callable[[Value, Value], bool]


class Kind(Enum):
    TEXT = auto()
    INTEGER = auto()
    LONG = auto()
    DOUBLE = auto()
    TRUTH = auto()
    NOTHING = auto()
    """Always null, such as minus a text."""


EQUALITIES: Final = (Comparison.EQUAL, Comparison.UNEQUAL)
_OPERATORS: Final[dict[Comparison, Test]] = {
    Comparison.EQUAL: operator.eq,
    Comparison.UNEQUAL: operator.ne,
    Comparison.GREATER: operator.gt,
    Comparison.GREATER_EQUAL: operator.ge,
    Comparison.LESS: operator.lt,
    Comparison.LESS_EQUAL: operator.le,
}
_READ: Final[dict[Kind, Callable[[bytes], Value]]] = {
    Kind.INTEGER: read_integer,
    Kind.LONG: read_long,
    Kind.DOUBLE: read_rank,
}


def kind_of_whole(value: int) -> Kind:
    return Kind.INTEGER if INT32_MIN <= value <= INT32_MAX else Kind.LONG


def test_for(comparison: Comparison, left: Kind, right: Kind) -> Test:
    """What compares a value of the one kind with a value of the other."""
    compare = _OPERATORS[comparison]
    if Kind.NOTHING in (left, right):
        return _unreachable
    if left is Kind.TEXT:
        return _text_with(comparison, right)
    if right is Kind.TEXT:
        if left is Kind.TRUTH:
            return _refuse
        read = _READ[left]
        return lambda one, other: compare(one, read(other))
    if (left is Kind.TRUTH) != (right is Kind.TRUTH):
        unequal = comparison is Comparison.UNEQUAL
        return lambda _one, _other: unequal
    return _numbers(compare, left, right)


def _text_with(comparison: Comparison, right: Kind) -> Test:
    compare = _OPERATORS[comparison]
    if right in _READ:
        read = _READ[right]
        return lambda one, other: compare(read(one), other)
    if right is Kind.TRUTH:
        return lambda one, other: compare(one.lower() == b"true", other)
    if comparison in EQUALITIES:
        return compare
    return lambda one, other: compare(read_rank(one), read_rank(other))


def _numbers(compare: Test, left: Kind, right: Kind) -> Test:
    """Two numbers, or two truths. A double makes doubles of both."""
    if (left is Kind.DOUBLE) == (right is Kind.DOUBLE):
        return compare
    if left is Kind.DOUBLE:
        return lambda one, other: compare(one, rank(float(other)))
    return lambda one, other: compare(rank(float(one)), other)


def _refuse(_one: Value, other: Value) -> bool:
    # RocketMQ reads text as a boolean only on the left of an operator.
    raise NotComparable(f"{other[:40]!r} stands on the right of a condition")


def _unreachable(_one: Value, _other: Value) -> bool:
    raise AssertionError("a missing value was compared")
