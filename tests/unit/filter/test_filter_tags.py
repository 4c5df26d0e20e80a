"""Tag subscriptions, as RocketMQ's clients and brokers read them."""

import pytest

from tianzhou.base.java import string_hash
from tianzhou.filter.errors import FilterError
from tianzhou.filter.tags import EVERYTHING, parse_tags

ALIKE = ("Aa", "BB")
"""Two tags with one hash code."""


@pytest.mark.parametrize("text", ["", "*"])
def test_everything(text: str) -> None:
    found = parse_tags(text)
    assert found == EVERYTHING
    assert found.accepts_code(0)
    assert found.accepts_tag(None)
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
def test_tags(text: str, tags: set[str]) -> None:
    found = parse_tags(text)
    assert not found.is_all
    assert found.tags == tags
    assert found.codes == {string_hash(tag) for tag in tags}


@pytest.mark.parametrize("text", ["||", "||||", "||||||"])
def test_only_bars(text: str) -> None:
    with pytest.raises(FilterError, match=r"character 1: found only .* expected tags"):
        parse_tags(text)


def test_the_broker_lets_a_tag_of_the_same_hash_through_and_the_client_does_not() -> None:
    wanted, other = ALIKE
    found = parse_tags(wanted)
    assert found.accepts_code(string_hash(other))
    assert found.accepts_tag(wanted)
    assert not found.accepts_tag(other)
    assert not found.accepts_tag(None)


def test_codes_of_64_bits() -> None:
    """The consume queue keeps a negative code as a negative long, or its low half alone."""
    found = parse_tags("orange")
    (code,) = found.codes
    assert code < 0
    assert found.accepts_code(code)
    assert found.accepts_code(code & 0xFFFFFFFF)
    assert not found.accepts_code(code + 1)
