"""What expressions say about messages. Every row was also asked of RocketMQ 5.3.1."""

from typing import Final

import pytest

from tianzhou.filter.errors import NotComparable
from tianzhou.filter.sql92 import compile_sql
from tianzhou.record.properties import encode

MESSAGE: Final = {
    "a": "5",
    "s": "x",
    "t": "true",
    "T": "TRUE",
    "d": "1.5",
    "z": "0.0",
    "mz": "-0.0",
    "n": "NaN",
    "big": "99999999999",
    "u": "苹果",
}
"""Whatever begins with `m` and is not here is missing."""

NULL: Final = None
ERROR: Final = "error"
Said = bool | str | None

MISSING = [
    ("m", NULL), ("NOT m", NULL), ("m AND m", NULL), ("m OR m", NULL),
    ("m = 5", NULL), ("m <> 5", NULL), ("m = 'x'", NULL), ("m = TRUE", NULL), ("m = a", NULL),
    ("5 = m", False), ("a = m", False), ("TRUE = m", False),
    ("5 <> m", True), ("'x' <> m", True), ("a <> m", True),
    ("m = m", True), ("m = m2", True), ("m <> m2", False),
    ("m > 5", NULL), ("5 > m", NULL), ("m > m", NULL), ("a <= m", NULL), ("m >= s", NULL),
    ("m IS NULL", True), ("m IS NOT NULL", False), ("a IS NULL", False), ("a IS NOT NULL", True),
    ("5 IS NULL", False), ("NULL IS NULL", True), ("(m > 5) IS NULL", True),
    ("m IN ('x')", NULL), ("m NOT IN ('x')", NULL),
    ("m BETWEEN 1 AND 9", NULL), ("m NOT BETWEEN 1 AND 9", NULL), ("a BETWEEN m AND 9", NULL),
    ("a BETWEEN 1 AND m", NULL), ("a BETWEEN m AND 1", False), ("a NOT BETWEEN m AND 1", True),
    ("m CONTAINS 'x'", False), ("m NOT CONTAINS 'x'", False), ("m NOT CONTAINS ''", False),
]  # fmt: skip

LOGIC = [
    ("TRUE", True),
    ("FALSE", False),
    ("NULL", NULL),
    ("NOT TRUE", False),
    ("NOT NULL", NULL),
    ("TRUE AND NULL", NULL),
    ("FALSE AND NULL", False),
    ("NULL AND FALSE", False),
    ("TRUE OR NULL", True),
    ("NULL OR TRUE", True),
    ("FALSE OR NULL", NULL),
    ("TRUE AND TRUE AND FALSE", False),
    ("FALSE OR FALSE OR TRUE", True),
    ("NULL AND TRUE AND TRUE", NULL),
    ("NULL OR FALSE OR FALSE", NULL),
    # A bare property is a condition that is never true.
    ("a", False),
    ("t", False),
    ("NOT t", True),
    ("NOT a = 5", False),
    ("+t", False),
    ("t OR NULL", NULL),
]

EQUALITY = [
    ("a = 5", True), ("a = '5'", True), ("5 = a", True), ("a <> 5", False), ("a = 5L", True),
    ("a = 5.0", True), ("a = 5000000000", False), ("s = 'x'", True), ("s = 'X'", False),
    ("s = 'x '", False), ("u = '苹果'", True), ("a = a", True), ("n = n", True),
    ("n = 1.0", False), ("n <> 1.5", True), ("z = mz", False),
    ("d = 1.5", True), ("d = 1", ERROR), ("s = 1", ERROR), ("s <> 1", ERROR), ("1 = s", ERROR),
    ("big = 1", ERROR), ("big = 5000000000", False), ("big <> 1.5", True),
    ("t = TRUE", True), ("T = TRUE", True), ("t = FALSE", False), ("a = TRUE", False),
    ("a <> TRUE", True), ("'x' = TRUE", False), ("'tRUE' = TRUE", True),
    # Text on the right of a truth is an error, on the left it is read as one.
    ("TRUE = t", ERROR), ("(a = 5) = t", ERROR), ("t = (a = 5)", True), ("(a = 5) = 'x'", ERROR),
    ("(a = 5) = TRUE", True), ("(a = 5) = (s = 'x')", True), ("TRUE = (a = 6)", False),
    ("5 = TRUE", False), ("5 <> TRUE", True), ("(a = 5) = 5", False), ("TRUE = -5", False),
    ("5 = 5.0", True), ("5 = 5L", True), ("'5' = 5", True), ("5 = 'x'", ERROR),
    ("9007199254740993 = 9007199254740992.0", True),
    ("9007199254740993 > 9007199254740992.0", False), ("5.5 <> 5", True),
]  # fmt: skip

ORDER = [
    ("a > 4", True), ("a >= 5", True), ("a < 5", False), ("a <= 5", True), ("4 < a", True),
    ("a > 4.5", True), ("d > 1.0", True), ("d > 1", ERROR), ("s > 1", ERROR), ("s > s", ERROR),
    ("a > s", ERROR), ("d > a", False), ("d < a", True), ("d <= d", True), ("z > mz", True),
    ("mz >= z", False), ("n > 1.5", True), ("n < 1.5", False), ("n >= n", True), ("n > n", False),
    ("n > 1", ERROR), ("5 > 4", True), ("4.5 > 4", True), ("big > 2147483648", True),
    ("big > 2147483647", ERROR), ("big > -2147483648", True), ("big > -2147483647", ERROR),
    ("a BETWEEN 1 AND 9", True), ("a NOT BETWEEN 1 AND 9", False), ("a BETWEEN 5 AND 5", True),
    ("a NOT BETWEEN 6 AND 9", True), ("a NOT BETWEEN 9 AND 1", True), ("a BETWEEN 6 AND 9", False),
    ("a BETWEEN 1.0 AND 9", True), ("a BETWEEN -1 AND -9", False), ("a BETWEEN d AND a", True),
    ("5 BETWEEN d AND 9", ERROR), ("a BETWEEN 9 AND s", False), ("a BETWEEN s AND 9", ERROR),
    ("a NOT BETWEEN 9 AND s", True), ("a NOT BETWEEN s AND 9", ERROR),
]  # fmt: skip

MINUS = [
    ("a > -5", True),
    ("-5 = a", False),
    ("- - 5 = a", True),
    ("-5.5 < d", True),
    ("-5 = -5", True),
    ("-a = 5", NULL),
    ("a = -a", False),
    ("-a IS NULL", True),
    ("-a > 1", NULL),
    ("-'x' = a", NULL),
    ("-TRUE = a", NULL),
    ("-NULL > 1", NULL),
    ("-(s = 'x') = a", NULL),
    ("-(s > 1) = a", ERROR),
    ("a > -(s > 1)", ERROR),
    ("m > -(s > 1)", NULL),
    ("m BETWEEN 1 AND -(s > 1)", NULL),
    ("-t CONTAINS 'r'", False),
]

SEARCH = [
    ("a IN ('5')", True), ("a IN ('4', '5')", True), ("a IN ('x')", False), ("a IN ('')", False),
    ("a NOT IN ('5')", False), ("a NOT IN ('x')", True), ("u IN ('苹果')", True),
    ("t CONTAINS 'ru'", True), ("t CONTAINS 'x'", False), ("t NOT CONTAINS 'x'", True),
    ("t STARTSWITH 'tr'", True), ("t STARTSWITH 'r'", False), ("t NOT STARTSWITH 'r'", True),
    ("t ENDSWITH 'ue'", True), ("t ENDSWITH 'u'", False), ("t NOT ENDSWITH 'u'", True),
    ("u CONTAINS '果'", True), ("'xyz' CONTAINS 'y'", True), ("'' NOT CONTAINS 'x'", True),
    ("t CONTAINS ''", False), ("t STARTSWITH ''", False), ("t ENDSWITH ''", False),
    ("t NOT CONTAINS ''", False), ("t NOT STARTSWITH ''", False), ("t NOT ENDSWITH ''", False),
    ("5 CONTAINS '5'", False), ("5 NOT CONTAINS 'x'", False), ("TRUE CONTAINS 'x'", False),
    ("(a = 5) NOT CONTAINS 'x'", False), ("NULL CONTAINS 'x'", False),
    ("(s > 1) CONTAINS 'x'", ERROR), ("(s > 1) CONTAINS ''", False),
]  # fmt: skip

ERRORS = [
    # An error stays, unless the operand before made it irrelevant.
    ("s > 1 OR TRUE", ERROR),
    ("TRUE OR s > 1", True),
    ("FALSE OR s > 1", ERROR),
    ("s > 1 AND FALSE", ERROR),
    ("FALSE AND s > 1", False),
    ("m AND s > 1", ERROR),
    ("m OR s > 1", ERROR),
    ("(s > 1) IS NULL", ERROR),
    ("NOT (s > 1)", ERROR),
    ("m = (s > 1)", ERROR),
    ("s > m", NULL),
]

ROWS: list[tuple[str, Said]] = [
    *MISSING,
    *LOGIC,
    *EQUALITY,
    *ORDER,
    *MINUS,
    *SEARCH,
    *ERRORS,
]


@pytest.mark.parametrize(("text", "said"), ROWS, ids=[text for text, _ in ROWS])
def test_filter_evaluates_to_the_expected_value(text: str, said: Said) -> None:
    expression = compile_sql(text)
    assert expression.matches(encode(MESSAGE)) is (said is True)
    if said == ERROR:
        with pytest.raises(NotComparable):
            expression.evaluate(MESSAGE.get)
    else:
        assert expression.evaluate(MESSAGE.get) is said
