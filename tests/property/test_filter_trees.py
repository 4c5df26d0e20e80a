"""Random filter trees and their texts, and the proof that every tree has a text."""

from hypothesis import given
from hypothesis import strategies as st

from tianzhou.filter.limits import DEPTH_MAX, TOKENS_MAX, VISITS_MAX
from tianzhou.filter.sql92 import tree as t
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
    """Expressions that the parser accepts alone, or as operands of AND and OR."""
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

# Messages

some_text = st.text(
    st.characters(exclude_characters="\x01\x02", exclude_categories=["Cs"]), min_size=1
)
values = some_text | st.sampled_from(
    [
        "5", "-5", "+5", "5.0", "1.5", "x", "it's", "true", "TRUE", "false", "NaN", "-0.0", "0.0",
        "2147483647", "2147483648", "9223372036854775807", "9223372036854775808", " 5", "5d",
        "0x1p3", "-Infinity", "1e300", "苹果", "９",
    ]
)  # fmt: skip
messages = st.dictionaries(st.sampled_from(NAMES[:-1]), values)

# Text


def quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def printed(node: t.Node) -> str:
    """The text of a tree, with parentheses around everything compound."""
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


# Tests


def count(node: t.Node) -> int:
    return 1 + sum(map(count, t.children(node)))


@given(trees)
def test_filter_tree_survives_printing_and_parsing(tree: t.Node) -> None:
    assert parse(printed(tree)) == tree


@given(trees)
def test_filter_tree_has_no_more_nodes_than_tokens(tree: t.Node) -> None:
    """So the number of tokens bounds the visits, as limits.py relies on."""
    assert count(tree) <= len(tokens_of(printed(tree))) - 1
    assert TOKENS_MAX <= VISITS_MAX


@given(st.integers(1, DEPTH_MAX), trees)
def test_filter_parentheses_do_not_change_the_tree(depth: int, tree: t.Node) -> None:
    text = printed(tree)
    if depth + text.count("(") <= DEPTH_MAX:
        assert parse("(" * depth + text + ")" * depth) == tree
