"""What Java reads as a number, and in which order it puts doubles. Checked against Java 17."""

import math
from itertools import pairwise

import pytest

from tianzhou.filter.errors import NotComparable
from tianzhou.filter.sql92.java_numbers import rank, read_double, read_integer, read_long

WHOLE = [
    ("5", 5),
    ("+5", 5),
    ("-5", -5),
    ("0", 0),
    ("-0", 0),
    ("00005", 5),
    ("-007", -7),
    ("2147483647", 2**31 - 1),
    ("-2147483648", -(2**31)),
    ("999999999", 999999999),
    ("５", 5),
    ("-٥٣", -53),
    ("0" * 5000 + "5", 5),
]
NOT_WHOLE = [
    "",
    "+",
    "-",
    "--5",
    "+-5",
    " 5",
    "5 ",
    "\t5",
    "5.0",
    "5L",
    "5_0",
    "0x5",
    "1e1",
    "x",
    "NaN",
    "𝟓",
    "5\u00a0",
    "²",
    "9" * 5000,
    "\ufffd",
]


@pytest.mark.parametrize(("text", "value"), WHOLE)
def test_read_integer_and_read_long_accept_integers(text: str, value: int) -> None:
    assert read_integer(text.encode()) == value
    assert read_long(text.encode()) == value


@pytest.mark.parametrize("text", NOT_WHOLE)
def test_read_integer_and_read_long_reject_other_text(text: str) -> None:
    for read in (read_integer, read_long):
        with pytest.raises(NotComparable, match="is not an integer"):
            read(text.encode())


def test_read_number_rejects_invalid_utf8() -> None:
    for read in (read_integer, read_long, read_double):
        with pytest.raises(NotComparable):
            read(b"5\xff")


@pytest.mark.parametrize("value", [2**31, -(2**31) - 1, 2**63 - 1, -(2**63), 4444444444])
def test_read_integer_rejects_values_that_need_a_long(value: int) -> None:
    assert read_long(b"%d" % value) == value
    with pytest.raises(NotComparable):
        read_integer(b"%d" % value)


@pytest.mark.parametrize("value", [2**63, -(2**63) - 1, 10**19, 10**30])
def test_read_long_rejects_values_out_of_range(value: int) -> None:
    with pytest.raises(NotComparable):
        read_long(b"%d" % value)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("5", 5.0), ("5.", 5.0), (".5", 0.5), ("+5.5", 5.5), ("-1e3", -1000.0), ("1.e+2", 100.0),
        ("5d", 5.0), ("5F", 5.0), ("1e1f", 10.0), (" 5 ", 5.0), ("\x00\t5d\x1f", 5.0),
        ("Infinity", math.inf), ("-Infinity", -math.inf), ("1e400", math.inf),
        ("-1e99999999999", -math.inf), ("1e-400", 0.0), ("0e99999999999", 0.0),
        ("0x1p3", 8.0), ("0X1.8P1d", 3.0), ("-0x.8p0", -0.5), ("0x1.p+1", 2.0),
        ("0x1p2000", math.inf), ("-0x1p99999999999", -math.inf), ("0x1p-2000", 0.0),
        ("0x1.00000000000008p0", 1.0), ("0x1.000000000000081p0", 1.0000000000000002),
        ("9007199254740993", 9007199254740992.0), ("1" + "0" * 400 + "e-400", 1.0),
    ],
)  # fmt: skip
def test_read_double_accepts_numbers(text: str, value: float) -> None:
    assert read_double(text.encode()) == value


@pytest.mark.parametrize("text", ["NaN", "-NaN", "+NaN", " NaN "])
def test_read_double_accepts_nan(text: str) -> None:
    assert math.isnan(read_double(text.encode()))


@pytest.mark.parametrize(
    "text",
    [
        "", " ", ".", "+", "d", "5dd", "5L", "5 d", "1e", "1e+", ".e1", "1_0", "nan", "inf",
        "infinity", "NaNf", "Infinityd", "0x1", "0xp1", "0x1p", "0x.p1", "５", "\u00a05", "1.5.5",
        "--1", "x",
    ],
)  # fmt: skip
def test_read_double_rejects_text_that_is_not_a_number(text: str) -> None:
    with pytest.raises(NotComparable, match="is not a number"):
        read_double(text.encode())


def test_rank_orders_doubles_like_java() -> None:
    ascending = [-math.inf, -1.5, -5e-324, -0.0, 0.0, 5e-324, 1.5, math.inf, math.nan]
    for lower, higher in pairwise(map(rank, ascending)):
        assert lower < higher
    assert rank(math.nan) == rank(-math.nan)


def test_read_double_error_truncates_a_long_value() -> None:
    with pytest.raises(NotComparable) as caught:
        read_double(b"x" * 30_000)
    assert len(str(caught.value)) < 100
