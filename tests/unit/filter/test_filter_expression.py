"""Expressions over the stored property string."""

import pytest

from tianzhou.base.errors import UsageError
from tianzhou.filter.errors import FilterError
from tianzhou.filter.limits import FIND_BYTES_MAX, FINDS_MAX
from tianzhou.filter.sql92 import compile_sql

FEW = "a > 5 AND region = 'x'"
MANY = " AND ".join([FEW] * FINDS_MAX)
"""Names more properties than are found one by one, so that the string is split."""


@pytest.mark.parametrize("text", [FEW, MANY])
@pytest.mark.parametrize(
    ("properties", "expected"),
    [
        (b"a\x017\x02region\x01x\x02", True),
        (b"region\x01x\x02a\x017", True),
        (b"a\x017\x02region\x01y\x02", False),
        (b"a\x015\x02region\x01x\x02", False),
        (b"a\x01seven\x02region\x01x\x02", False),
        (b"a\x01\xff\x02region\x01x\x02", False),
        (b"a\x017\x02", False),
        (b"", False),
        # The last of two with one name counts, and a piece without a value does not.
        (b"a\x011\x02a\x017\x02region\x01x", True),
        (b"a\x017\x02a\x011\x02region\x01x", False),
        (b"a\x017\x02a\x01\x02region\x01x", True),
        (b"aa\x017\x02region\x01x", False),
        (b"a\x02region\x01x\x01", False),
    ],
)
def test_expression_matches_the_expected_properties(
    text: str, properties: bytes, expected: bool
) -> None:
    assert compile_sql(text).matches(properties) is expected


@pytest.mark.parametrize("size", [FIND_BYTES_MAX, FIND_BYTES_MAX + 1])
def test_expression_finds_properties_in_long_strings(size: int) -> None:
    properties = b"a\x017\x02region\x01x\x02"
    filler = b"xa\x01" * size
    expression = compile_sql(FEW)
    assert expression.matches(filler[: size - len(properties) - 1] + b"\x02" + properties)
    assert not expression.matches(filler[:size])


def test_expression_has_its_text_and_property_names() -> None:
    expression = compile_sql(MANY)
    assert expression.text == MANY
    assert expression.names == {"a", "region"}


def test_expression_can_use_system_properties() -> None:
    assert compile_sql("TAGS = 'pear' AND KEYS IS NULL").matches(b"TAGS\x01pear\x02")


def test_compile_sql_error_has_the_position() -> None:
    with pytest.raises(UsageError, match=r"^character 5: expected a property or a number") as found:
        compile_sql("a > 'x'")
    assert isinstance(found.value, FilterError)
    assert found.value.at == 4
