"""A slow interpreter of trees and a printer of them, for the property tests of filters; and the
proof that the language has a text for every tree.

The interpreter walks the tree for every message and finds out the types as it goes, from the values
themselves. It shares no code with the product but the tree and the reading of numbers.
"""

from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from tianzhou.filter.errors import NotComparable
from tianzhou.filter.limits import DEPTH_MAX, TOKENS_MAX, VISITS_MAX
from tianzhou.filter.sql92 import tree as t
from tianzhou.filter.sql92.java_numbers import read_double, read_integer, read_long
from tianzhou.filter.sql92.parser import parse
from tianzhou.filter.sql92.tokens import tokens_of

NAMES = ("a", "b", "TAGS", "_x$1", "missing")

# Trees

texts = st.sampled_from(["", "x", "5", "true", "it's", "苹果", "1.5", "--", "/*"]) | st.text(
    st.characters(exclude_categories=["Cs"]), max_size=3
)
properties = st.builds(t.Property, st.sampled_from(NAMES))
wholes = st.builds(
    t.Whole, st.sampled_from([0, 1, 5, 2**31 - 1, 2**31, 2**53 + 1, 2**63 - 1]) | st.integers(0, 9)
)
reals = st.builds(
    t.Real,
    st.sampled_from([0.5, 1.5, 5.0, 2.0**53, 1e300]) | st.floats(5e-324, 1.7e308, allow_nan=False),
)
numbers = wholes | reals
literals = numbers | st.builds(t.Text, texts)
truths = st.builds(t.Truth, st.sampled_from([True, False, None]))
flags = st.booleans()
equalities = (t.Comparison.EQUAL, t.Comparison.UNEQUAL)
orderings = tuple(comparison for comparison in t.Comparison if comparison not in equalities)


@st.composite
def conditions(draw: st.DrawFn, depth: int = 3) -> t.Node:
    """What the parser lets stand by itself, or beside AND and OR."""
    kind = draw(st.integers(0, 9)) if depth else draw(st.integers(0, 1))
    if kind <= 1:
        return draw((properties, truths)[kind])
    if kind == 2:
        return t.Not(draw(conditions(depth - 1)))
    if kind in (3, 4):
        parts = draw(st.lists(conditions(depth - 1), min_size=2, max_size=4))
        return (t.And, t.Or)[kind - 3](tuple(parts))
    if kind == 5:
        return t.IsNull(draw(operands(depth - 1)), draw(flags))
    if kind == 6:
        values = draw(st.lists(texts, min_size=1, max_size=3))
        return t.In(draw(properties), tuple(values), draw(flags))
    if kind == 7:
        search = draw(st.sampled_from(t.Search))
        return t.Find(search, draw(operands(depth - 1)), draw(texts), draw(flags))
    return draw(equations(depth - 1) if kind == 8 else inequations(depth - 1))


@st.composite
def operands(draw: st.DrawFn, depth: int) -> t.Node:
    kind = draw(st.integers(0, 3)) if depth else draw(st.integers(0, 1))
    if kind == 3:
        return t.Negate(draw(operands(depth - 1)))
    return draw((properties, literals, conditions(depth))[kind])


@st.composite
def equations(draw: st.DrawFn, depth: int) -> t.Node:
    left, right = draw(operands(depth)), draw(operands(depth))
    if isinstance(left, t.Truth):
        left, right = right, left
    if t.Truth(None) in (left, right) or isinstance(left, t.Truth):
        return t.IsNull(left)
    return t.Compare(draw(st.sampled_from(equalities)), left, right)


@st.composite
def inequations(draw: st.DrawFn, depth: int) -> t.Node:
    ordered = properties | numbers | st.builds(t.Negate, operands(depth))
    operand, low, high = draw(ordered), draw(ordered), draw(ordered)
    if draw(flags):
        return t.Compare(draw(st.sampled_from(orderings)), operand, low)
    if isinstance(low, t.Whole | t.Real) and isinstance(high, t.Whole | t.Real):
        low, high = sorted((low, high), key=lambda node: float(node.value))
        if float(low.value) == float(high.value):
            high = low
    return t.Between(operand, low, high, draw(flags))


trees = conditions()

# Text


def quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def printed(node: t.Node) -> str:
    """The text of a tree, with parentheses around everything that has parts."""
    match node:
        case t.Property(name):
            return name
        case t.Text(value):
            return quoted(value)
        case t.Whole(value) | t.Real(value):
            return repr(value)
        case t.Truth(value):
            return {True: "TRUE", False: "FALSE", None: "NULL"}[value]
        case t.Negate(operand):
            return f"- {inner(operand)}"
        case t.Not(operand):
            return f"NOT {inner(operand)}"
        case t.And(operands):
            return " AND ".join(map(inner, operands))
        case t.Or(operands):
            return " OR ".join(map(inner, operands))
        case _:
            return printed_comparison(node)


def printed_comparison(node: t.Compare | t.IsNull | t.Between | t.In | t.Find) -> str:
    match node:
        case t.Compare(comparison, left, right):
            return f"{inner(left)} {comparison.value} {inner(right)}"
        case t.IsNull(operand, negated):
            return f"{inner(operand)} IS {'NOT ' if negated else ''}NULL"
        case t.Between(operand, low, high, negated):
            word = "NOT BETWEEN" if negated else "BETWEEN"
            return f"{inner(operand)} {word} {inner(low)} AND {inner(high)}"
        case t.In(left, values, negated):
            word = "NOT IN" if negated else "IN"
            return f"{left.name} {word} ({', '.join(map(quoted, values))})"
        case t.Find(search, operand, wanted, negated):
            word = f"{'NOT ' if negated else ''}{search.value}"
            return f"{inner(operand)} {word} {quoted(wanted)}"


def inner(node: t.Node) -> str:
    return f"({printed(node)})" if t.children(node) else printed(node)


# Meaning

Value = str | int | float | bool | None
Lookup = Callable[[str], str | None]


class Long(int):
    """Tells a Java Long from an Integer of the same value."""


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
    """As it is explained: two comparisons, joined."""
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
    """Below, equal or above zero, as `compareTo`."""
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


# Tests


def count(node: t.Node) -> int:
    return 1 + sum(map(count, t.children(node)))


@given(trees)
def test_every_tree_has_a_text(tree: t.Node) -> None:
    assert parse(printed(tree)) == tree


@given(trees)
def test_no_node_without_a_token(tree: t.Node) -> None:
    """So the number of tokens bounds the visits: the relation that limits.py speaks of."""
    assert count(tree) <= len(tokens_of(printed(tree))) - 1
    assert TOKENS_MAX <= VISITS_MAX


@given(st.integers(1, DEPTH_MAX), trees)
def test_parentheses_mean_nothing(depth: int, tree: t.Node) -> None:
    text = printed(tree)
    if depth + text.count("(") <= DEPTH_MAX:
        assert parse("(" * depth + text + ")" * depth) == tree
