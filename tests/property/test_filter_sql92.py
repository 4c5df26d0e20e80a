"""Filters with arbitrary input."""

from hypothesis import given
from hypothesis import strategies as st
from test_filter_trees import messages, printed, trees

from tianzhou.filter.errors import FilterError, NotComparable
from tianzhou.filter.limits import FINDS_MAX
from tianzhou.filter.sql92 import compile_sql
from tianzhou.filter.sql92.tree import Node
from tianzhou.filter.tags import parse_tags
from tianzhou.record.properties import decode, encode

words = st.sampled_from(
    [
        "NOT", "AND", "OR", "BETWEEN", "IN", "TRUE", "FALSE", "NULL", "IS", "CONTAINS", "a", "b",
        "STARTSWITH", "ENDSWITH", "(", ")", ",", "=", "<>", "<", ">=", "+", "-", "5", "5.5", "1e",
        "'x'", "''", "'", "/*", "*/", "--", "\n", "é", "!", ".",
    ]
)  # fmt: skip
almost = st.lists(words, max_size=30).map(" ".join) | st.lists(words, max_size=30).map("".join)


@given(trees, messages)
def test_filter_split_gives_the_same_result(tree: Node, message: dict[str, str]) -> None:
    text = printed(tree)
    more = f"({text}) AND ({' AND '.join(['a IS NULL OR a IS NOT NULL'] * FINDS_MAX)})"
    properties = encode(message)
    assert compile_sql(more).matches(properties) is compile_sql(text).matches(properties)


@given(
    trees,
    st.binary() | st.lists(st.sampled_from([b"a", b"b", b"\x01", b"\x02", b"5"])).map(b"".join),
)
def test_filter_accepts_any_property_bytes(tree: Node, properties: bytes) -> None:
    expression = compile_sql(printed(tree))
    said = expression.matches(properties)
    try:
        properties.decode()
    except UnicodeDecodeError:
        return
    try:
        assert said is (expression.evaluate(decode(properties).get) is True)
    except NotComparable:
        assert not said


def complaint(text: str) -> FilterError | None:
    try:
        compile_sql(text).matches(b"a\x015\x02b\x01x\x02")
    except FilterError as error:
        return error
    return None


@given(almost | st.text())
def test_filter_of_any_text_parses_or_raises_one_error(text: str) -> None:
    error = complaint(text)
    assert error is None or 0 <= error.at <= len(text)
    assert error is None or "expected" in error.reason


@given(trees, st.text(max_size=3), st.integers(0, 200))
def test_filter_of_a_damaged_expression_parses_or_raises_one_error(
    tree: Node, inserted: str, at: int
) -> None:
    text = printed(tree)
    error = complaint(text[:at] + inserted + text[at:])
    assert error is None or "expected" in error.reason


@given(st.text() | st.text("a|* "))
def test_any_text_is_a_tag_subscription_or_only_separators(text: str) -> None:
    try:
        found = parse_tags(text)
    except FilterError:
        assert set(text) == {"|"}
        return
    assert found.is_all == (text in ("", "*"))
    assert all(tag and tag in text for tag in found.tags)
    assert len(found.codes) <= len(found.tags)
