"""The grammar: precedence, what is refused, and where."""

from collections.abc import Callable

import pytest

from tianzhou.filter.errors import FilterError
from tianzhou.filter.limits import DEPTH_MAX, IN_VALUES_MAX
from tianzhou.filter.sql92.parser import parse
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
    children,
    property_names,
)

A, B, C, T = map(Property, "abct")
EQUAL, GREATER = Comparison.EQUAL, Comparison.GREATER


@pytest.mark.parametrize(
    ("text", "tree"),
    [
        ("a OR b AND c", Or((A, And((B, C))))),
        ("(a OR b) AND c", And((Or((A, B)), C))),
        ("a AND b AND c", And((A, B, C))),
        ("(a AND b) AND c", And((And((A, B)), C))),
        ("a = 1 AND b > 2", And((Compare(EQUAL, A, Whole(1)), Compare(GREATER, B, Whole(2))))),
        # Ordering binds more tightly than equality, and NOT more tightly than both.
        ("t = a > 1", Compare(EQUAL, T, Compare(GREATER, A, Whole(1)))),
        ("a > 1 = t", Compare(EQUAL, Compare(GREATER, A, Whole(1)), T)),
        ("NOT a = 1", Compare(EQUAL, Not(A), Whole(1))),
        ("NOT (a = 1)", Not(Compare(EQUAL, A, Whole(1)))),
        ("NOT a AND b", And((Not(A), B))),
        ("NOT a CONTAINS 'x'", Find(Search.CONTAINS, Not(A), "x")),
        ("NOT NOT a", Not(Not(A))),
        ("a = 1 = TRUE", Compare(EQUAL, Compare(EQUAL, A, Whole(1)), Truth(True))),
        ("a IS NULL IS NOT NULL", IsNull(IsNull(A), negated=True)),
        ("a = b IS NULL", IsNull(Compare(EQUAL, A, B))),
        ("a > -5", Compare(GREATER, A, Negate(Whole(5)))),
        ("- - a = 5", Compare(EQUAL, Negate(Negate(A)), Whole(5))),
        ("+a = +5", Compare(EQUAL, A, Whole(5))),
        ("a BETWEEN 1 AND 9 AND b", And((Between(A, Whole(1), Whole(9)), B))),
        ("a NOT BETWEEN b AND -c", Between(A, B, Negate(C), negated=True)),
        ("a NOT BETWEEN 9 AND 1", Between(A, Whole(9), Whole(1), negated=True)),
        ("a BETWEEN -1 AND -9", Between(A, Negate(Whole(1)), Negate(Whole(9)))),
        ("a IN ('x')", In(A, ("x",))),
        ("(+a) NOT IN ('x', 'it''s', 'x')", In(A, ("x", "it's", "x"), negated=True)),
        ("a NOT STARTSWITH ''", Find(Search.STARTS_WITH, A, "", negated=True)),
        ("a ENDSWITH 'x' = TRUE", Compare(EQUAL, Find(Search.ENDS_WITH, A, "x"), Truth(True))),
        ("a <> 5.5", Compare(Comparison.UNEQUAL, A, Real(5.5))),
        ("a = 9223372036854775807L", Compare(EQUAL, A, Whole(2**63 - 1))),
        ("a = 4.9e-324", Compare(EQUAL, A, Real(5e-324))),
        ("'x' = TRUE", Compare(EQUAL, Text("x"), Truth(True))),
        ("TRUE = -5", Compare(EQUAL, Truth(True), Negate(Whole(5)))),
        ("NULL", Truth(None)),
        ("((a))", A),
    ],
)
def test_parse_returns_the_expected_tree(text: str, tree: Node) -> None:
    assert parse(text) == tree


@pytest.mark.parametrize(
    ("text", "at", "reason"),
    [
        # Words in the wrong place.
        ("", 0, r"found the end; expected a property, a value or '\('"),
        ("-- x", 4, "found the end"),
        ("a =", 3, "found the end"),
        ("= 5", 0, "found '='; expected a property"),
        ("a == 5", 3, "found '='"),
        ("a > = 5", 4, "found '='"),
        ("a AND", 5, "found the end"),
        ("(a", 2, r"expected \)"),
        ("()", 1, "found '\\)'"),
        ("a IS 5", 5, "expected NULL or NOT NULL"),
        ("a IS NOT 5", 9, "found '5'; expected NULL"),
        ("a NOT = 5", 6, "expected BETWEEN, IN, CONTAINS, STARTSWITH or ENDSWITH"),
        ("between = 5", 0, "found 'between'"),
        ("a BETWEEN 1 OR 2", 12, "expected AND"),
        ("a IN 'x'", 5, r"expected \("),
        ("a IN ()", 6, "expected a string"),
        ("a IN (5)", 6, "expected a string"),
        ("a IN ('x',)", 10, "expected a string"),
        ("a IN ('x' 'y')", 10, r"expected ',' or '\)'"),
        ("a CONTAINS b", 11, "expected a string"),
        ("a CONTAINS ('x')", 11, "expected a string"),
        # RocketMQ ignores what follows; we say that it means nothing.
        ("a = 5 b", 6, "found 'b'; expected AND, OR, a comparison or the end"),
        ("a = 5)", 5, "or the end"),
        ("a LIKE 'x'", 2, "found 'LIKE'"),
        ("a = 5 + 1", 6, r"found '\+'"),
        ("a = 5 - 1", 6, "found '-'"),
        ("a = 00", 4, "found '0'"),
        # Numbers that Java's types do not hold.
        ("a = 9223372036854775808", 4, "up to 9223372036854775807"),
        ("a = -9223372036854775808", 5, "up to 9223372036854775807"),
        ("a = 1e400", 4, "expected a decimal number from"),
        ("a = 1e-400", 4, "expected a decimal number from"),
        ("a = 0.0", 4, "expected a decimal number from"),
        # No conditions.
        ("5", 0, "true or false"),
        ("'x'", 0, "true or false"),
        ("-a", 0, "true or false"),
        ("a AND 5", 6, "true or false"),
        ("NOT 'x'", 4, "true or false"),
        ("a OR (5)", 5, "true or false"),
        # What has no order.
        ("a > 'x'", 4, "a property or a number"),
        ("'x' < a", 0, "a property or a number"),
        ("a > TRUE", 4, "a property or a number"),
        ("a > NULL", 4, "a property or a number"),
        ("a > 1 > 2", 0, "a property or a number"),
        ("1 < (a = 5)", 4, "a property or a number"),
        ("a BETWEEN '1' AND '9'", 10, "a property or a number"),
        ("a BETWEEN 1 AND NULL", 16, "a property or a number"),
        ("a BETWEEN 1 AND NOT b", 16, "a property or a number"),
        ("a BETWEEN 9 AND 1", 16, "at least 9"),
        ("a BETWEEN 9.5 AND 9", 18, "at least 9.5"),
        # What equals nothing.
        ("a = NULL", 4, "IS NULL or IS NOT NULL"),
        ("NULL <> a", 0, "IS NULL or IS NOT NULL"),
        ("TRUE = 5", 7, "a condition or a property"),
        ("TRUE = 'true'", 7, "a condition or a property"),
        # IN wants a property.
        ("'x' IN ('x')", 0, "expected a property on the left"),
        ("NOT a IN ('x')", 0, "expected a property on the left"),
        ("-a IN ('x')", 0, "expected a property on the left"),
        ("a > 1 IN ('x')", 0, "expected a property on the left"),
    ],
)
def test_parse_rejects_invalid_text_with_a_position(text: str, at: int, reason: str) -> None:
    with pytest.raises(FilterError, match=reason) as caught:
        parse(text)
    assert caught.value.at == at


def test_parse_limits_the_values_of_an_in_list() -> None:
    full = ", ".join(["'x'"] * IN_VALUES_MAX)
    tree = parse(f"a IN ({full})")
    assert isinstance(tree, In)
    assert len(tree.values) == IN_VALUES_MAX
    with pytest.raises(FilterError, match="at most 256 strings"):
        parse(f"a IN ({full}, 'y')")


DEEP: list[tuple[str, Callable[[int], str]]] = [
    ("parentheses", lambda count: "(" * count + "a" + ")" * count),
    ("negations", lambda count: "NOT " * count + "a"),
    ("minus", lambda count: "- " * (count - 1) + "a = 5"),
    ("equalities", lambda count: "a" + " = TRUE" * count),
    ("nulls", lambda count: "a" + " IS NULL" * count),
    ("searches", lambda count: "a" + " CONTAINS 'x'" * count),
    ("chains", lambda count: "(a OR b AND " * (count // 2) + "c" + ")" * (count // 2)),
]


@pytest.mark.parametrize("make", [make for _, make in DEEP], ids=[name for name, _ in DEEP])
def test_parse_limits_the_nesting_depth(make: Callable[[int], str]) -> None:
    parse(make(DEPTH_MAX))
    with pytest.raises(FilterError, match="at most 32"):
        parse(make(DEPTH_MAX + 2))


def test_parse_of_a_long_chain_does_not_nest() -> None:
    tree = parse(" AND ".join(["a"] * 250) + " OR b")
    assert tree == Or((And((A,) * 250), B))


def test_parse_of_repeated_plus_signs_does_not_nest() -> None:
    assert parse("+ " * 400 + "a") == A


def test_property_names_are_in_order_of_appearance() -> None:
    tree = parse("b > a AND c BETWEEN 1 AND a OR t IN ('x')")
    assert property_names(tree) == ["b", "a", "c", "a", "t"]
    assert children(A) == ()
