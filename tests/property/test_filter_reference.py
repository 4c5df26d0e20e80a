"""A slow interpreter of filters, and the test of the fast one against it.

It walks the tree for every message and determines types from the values. It shares no code with
the product but the tree and the parsing of numbers.
"""

from collections.abc import Callable

from hypothesis import given
from test_filter_trees import messages, printed, trees

from tianzhou.filter.errors import NotComparable
from tianzhou.filter.sql92 import compile_sql
from tianzhou.filter.sql92 import tree as t
from tianzhou.filter.sql92.java_numbers import read_double, read_integer, read_long
from tianzhou.record.properties import encode

Value = str | int | float | bool | None
Lookup = Callable[[str], str | None]


class Long(int):
    """Distinguishes a Java Long from an Integer of the same value."""


def meaning(node: t.Node, lookup: Lookup) -> Value:
    match node:
        case t.Property(name):
            return lookup(name)
        case t.Whole(value):
            return value if value < 2**31 else Long(value)
        case t.Text(value) | t.Real(value) | t.Truth(value):
            return value
        case t.Negate(operand):
            return negated_value(meaning(operand, lookup))
        case _:
            return decision(node, lookup)


def negated_value(value: Value) -> Value:
    if value is None or isinstance(value, str | bool):
        return None
    return Long(-value) if isinstance(value, Long) else -value


def decision(node: t.Node, lookup: Lookup) -> bool | None:
    match node:
        case t.Property(name):
            return None if lookup(name) is None else False
        case t.Not(operand):
            return opposite(decision(operand, lookup))
        case t.And((first, *rest)):
            return both(decision(first, lookup), rest, lookup)
        case t.Or((first, *rest)):
            found = decision(first, lookup)
            others: list[t.Node] = [t.Not(other) for other in rest]
            return opposite(both(opposite(found), others, lookup))
        case t.IsNull(operand, negated):
            return (meaning(operand, lookup) is None) != negated
        case t.In(left, values, negated):
            value = lookup(left.name)
            return None if value is None else (value in values) != negated
        case t.Find():
            return found_in(node, lookup)
        case t.Compare(t.Comparison.UNEQUAL, left, right):
            return opposite(decision(t.Compare(t.Comparison.EQUAL, left, right), lookup))
        case t.Compare():
            return compared(node, lookup)
        case t.Between():
            return between(node, lookup)
        case _:
            assert isinstance(node, t.Truth)
            return node.value


def opposite(value: bool | None) -> bool | None:
    return None if value is None else not value


def both(one: bool | None, rest: list[t.Node], lookup: Lookup) -> bool | None:
    for node in rest:
        if one is False:
            return False
        other = decision(node, lookup)
        one = False if other is False else None if None in (one, other) else True
    return one


def found_in(node: t.Find, lookup: Lookup) -> bool:
    if not node.wanted:
        return False
    value = meaning(node.operand, lookup)
    if not isinstance(value, str):
        return False
    at = value.find(node.wanted)
    found = {
        t.Search.CONTAINS: at >= 0,
        t.Search.STARTS_WITH: at == 0,
        t.Search.ENDS_WITH: value[-len(node.wanted) :] == node.wanted,
    }
    return found[node.search] != node.negated


def between(node: t.Between, lookup: Lookup) -> bool | None:
    """By its definition: two comparisons, joined by AND."""
    above = t.Compare(t.Comparison.GREATER_EQUAL, node.operand, node.low)
    below = t.Compare(t.Comparison.LESS_EQUAL, node.operand, node.high)
    if not node.negated:
        return decision(t.And((above, below)), lookup)
    under = t.Compare(t.Comparison.LESS, node.operand, node.low)
    over = t.Compare(t.Comparison.GREATER, node.operand, node.high)
    return decision(t.Or((under, over)), lookup)


def compared(node: t.Compare, lookup: Lookup) -> bool | None:
    equality = node.comparison is t.Comparison.EQUAL
    left = meaning(node.left, lookup)
    if left is None and not equality:
        return None
    right = meaning(node.right, lookup)
    if left is None or right is None:
        if equality and left is None and right is None:
            return True
        return False if equality and left is not None else None
    order = three_way(left, right, equality=equality)
    return {
        t.Comparison.EQUAL: order == 0,
        t.Comparison.GREATER: order > 0,
        t.Comparison.GREATER_EQUAL: order >= 0,
        t.Comparison.LESS: order < 0,
        t.Comparison.LESS_EQUAL: order <= 0,
    }[node.comparison]


def three_way(left: Value, right: Value, *, equality: bool) -> int:
    """Negative, zero or positive, like `compareTo`."""
    if isinstance(left, str) and isinstance(right, str):
        if equality:
            return 0 if left == right else 1
        return doubles(read_double(left.encode()), read_double(right.encode()))
    if isinstance(left, str):
        left = read_as(left, right)
    elif isinstance(right, str):
        if isinstance(left, bool):
            raise NotComparable("text on the right")
        right = read_as(right, left)
    if isinstance(left, bool) or isinstance(right, bool):
        return 0 if isinstance(left, bool) and left is right else -1
    assert isinstance(left, int | float)
    assert isinstance(right, int | float)
    if isinstance(left, int) and isinstance(right, int):
        return (left > right) - (left < right)
    return doubles(float(left), float(right))


def read_as(text: str, like: Value) -> Value:
    if isinstance(like, bool):
        return text.lower() == "true"
    if isinstance(like, float):
        return read_double(text.encode())
    return (read_long if isinstance(like, Long) else read_integer)(text.encode())


def doubles(one: float, other: float) -> int:
    if one < other or one > other:
        return -1 if one < other else 1
    if one != one or other != other:
        return (one != one) - (other != other)
    return (str(one)[0] != "-") - (str(other)[0] != "-")


# The test


@given(trees, messages)
def test_compiled_filter_equals_the_interpreter(tree: t.Node, message: dict[str, str]) -> None:
    expression = compile_sql(printed(tree))
    try:
        expected = decision(tree, message.get)
    except NotComparable:
        try:
            said = expression.evaluate(message.get)
        except NotComparable:
            said = "error"
        assert said == "error"
        expected = None
    else:
        assert expression.evaluate(message.get) is expected
    assert expression.matches(encode(message)) is (expected is True)
