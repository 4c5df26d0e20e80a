"""Tag subscriptions, as RocketMQ's clients and brokers read them."""

import pytest

from tianzhou.base.java import string_hash
from tianzhou.filter.errors import FilterError
from tianzhou.filter.tags import EVERYTHING, parse_tags

ALIKE = ("Aa", "BB")
"""Two tags with one hash code."""


@pytest.mark.parametrize("text", ["", "*"])
def test_parse_tags_of_a_wildcard_matches_everything(text: str) -> None:
    found = parse_tags(text)
    assert found == EVERYTHING
    assert not found.tags
    assert not found.codes


@pytest.mark.parametrize(
    ("text", "tags"),
    [
        ("a", {"a"}),
        ("a || b", {"a", "b"}),
        ("a||b||a", {"a", "b"}),
        ("\t a \n||  b b ", {"a", "b b"}),
        ("||a||||b||", {"a", "b"}),
        ("a | b", {"a | b"}),
        ("|", {"|"}),
        ("|||", {"|"}),
        ("a || *", {"a", "*"}),
        (" * ", {"*"}),
        ("苹果 || 梨", {"苹果", "梨"}),
        ("\u00a0a", {"\u00a0a"}),
        (" ", set[str]()),
        ("|| ||", set[str]()),
    ],
)
def test_parse_tags_returns_tags_and_hash_codes(text: str, tags: set[str]) -> None:
    found = parse_tags(text)
    assert not found.is_all
    assert found.tags == tags
    assert found.codes == {string_hash(tag) for tag in tags}


@pytest.mark.parametrize("text", ["||", "||||", "||||||"])
def test_parse_tags_of_separators_only_is_rejected(text: str) -> None:
    with pytest.raises(FilterError, match=r"character 1: found only .* expected tags"):
        parse_tags(text)


def test_parse_tags_with_equal_hashes_keep_different_names() -> None:
    wanted, other = map(parse_tags, ALIKE)
    assert wanted.codes == other.codes
    assert wanted.tags != other.tags


def test_parse_tags_hash_codes_are_signed() -> None:
    assert parse_tags("orange").codes == {-1008851410}
