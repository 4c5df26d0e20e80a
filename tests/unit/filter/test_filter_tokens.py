"""Tokens: kinds, places, comments, and what is refused."""

import pytest

from tianzhou.filter.errors import FilterError
from tianzhou.filter.limits import TEXT_BYTES_MAX, TOKENS_MAX
from tianzhou.filter.sql92.tokens import END, INTEGER, KEYWORDS, NAME, REAL, STRING, tokens_of


def kinds(text: str) -> list[str]:
    *found, last = tokens_of(text)
    assert last.kind == END
    return [token.kind for token in found]


@pytest.mark.parametrize("keyword", sorted(KEYWORDS))
def test_tokens_of_keywords_ignore_case(keyword: str) -> None:
    assert kinds(f"{keyword} {keyword.lower()} {keyword.title()}") == [keyword] * 3


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a _a $a A1$_", [NAME] * 4),
        ("LIKE ESCAPE inn nota", [NAME] * 4),
        ("0 5 10 5L 5l", [INTEGER] * 5),
        ("5LL", [INTEGER, NAME]),
        ("5d", [INTEGER, NAME]),
        ("5e", [INTEGER, NAME]),
        ("0x5", [INTEGER, NAME]),
        ("5.5 5. .5 5e10 5E+1 .5e-1 5.e1 007.5 05e1", [REAL] * 9),
        ("'' 'a' 'it''s' '''' '/* */ -- ' 'a\nb' '梨'", [STRING] * 7),
        ("= <> < <= > >= ( ) , + -", ["=", "<>", "<", "<=", ">", ">=", "(", ")", ",", "+", "-"]),
        ("a<>5", [NAME, "<>", INTEGER]),
        ("a=5AND", [NAME, "=", INTEGER, "AND"]),
        (" \t\n\r\f", []),
    ],
)
def test_tokens_have_the_expected_kinds(text: str, expected: list[str]) -> None:
    assert kinds(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "a -- b\n= c",
        "a -- b\r= c",
        "--\na=c",
        "a = c -- b",
        "a = c --",
        "a /* b */ = c",
        "/**/a=c",
        "/***/ a = c",
        "a /* * / */ = c /* ' */",
        "/* -- */ a = c",
        "a /*\n*/ = c",
    ],
)
def test_tokens_exclude_comments(text: str) -> None:
    assert kinds(text) == [NAME, "=", NAME]


def test_tokens_have_their_positions() -> None:
    assert [token.at for token in tokens_of("a >= 'x' -- \n b")] == [0, 2, 5, 14, 15]


@pytest.mark.parametrize(
    ("text", "at", "reason"),
    [
        ("a = 'x", 4, "expected ' at its end"),
        ("a = 'x''y", 4, "expected ' at its end"),
        ("a = 5 /* x", 6, r"expected \*/ at its end"),
        ("a != 5", 2, "found '!'"),
        ('a = "5"', 4, "found '\"'"),
        ("a.b = 5", 1, "found '.'"),
        ("é = 5", 0, "found 'é'"),
        ("a\u00a0= 5", 1, "expected a property, a value or an operator"),
        ("a\x0b= 5", 1, "expected"),
        ("a = 5;", 5, "found ';'"),
        ("a = 00", 4, "found '0'"),
        ("0" * TEXT_BYTES_MAX, 0, "found '0'"),
        ("a = '\ud800'", 5, "surrogate"),
    ],
)
def test_tokens_of_invalid_text_are_rejected_with_a_position(
    text: str, at: int, reason: str
) -> None:
    with pytest.raises(FilterError, match=reason) as caught:
        tokens_of(text)
    assert caught.value.at == at
    assert str(caught.value).startswith(f"character {at + 1}: ")


def test_tokens_of_text_over_the_byte_limit_are_rejected() -> None:
    room = TEXT_BYTES_MAX - len("a = ''")
    tokens_of(f"a = '{'x' * room}'")
    tokens_of(f"a = '{'é' * (room // 2)}'")
    for text in (f"a = '{'x' * (room + 1)}'", f"a = '{'é' * (room // 2 + 1)}'"):
        with pytest.raises(FilterError, match="expected at most 4096"):
            tokens_of(text)


def test_tokens_limit_excludes_commas_and_comments() -> None:
    assert len(tokens_of("a " * TOKENS_MAX)) == TOKENS_MAX + 1
    assert len(tokens_of("a," * TOKENS_MAX)) == 2 * TOKENS_MAX + 1
    tokens_of("a " * TOKENS_MAX + "/* b */ -- c")
    with pytest.raises(FilterError, match="after 512 words and signs") as caught:
        tokens_of("a " * TOKENS_MAX + "b")
    assert caught.value.at == 2 * TOKENS_MAX
