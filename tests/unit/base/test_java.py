import pytest
from hypothesis import given
from hypothesis import strategies as st

from tianzhou.base.java import key_hash, string_hash, to_int32


def reference(text: str) -> int:
    """As Java's documentation defines it: s[0]*31^(n-1) + ... over UTF-16 units, in 32 bits."""
    total = 0
    units = text.encode("utf-16-be", "surrogatepass")
    for at in range(0, len(units), 2):
        total = (31 * total + int.from_bytes(units[at : at + 2], "big")) & 0xFFFFFFFF
    return total - (1 << 32) if total >> 31 else total


@pytest.mark.parametrize(
    ("value", "expected"),
    [(0, 0), (0x7FFFFFFF, 0x7FFFFFFF), (0x80000000, -0x80000000), (-1, -1), (1 << 32, 0)],
)
def test_to_int32_wraps_like_java(value: int, expected: int) -> None:
    assert to_int32(value) == expected


# What `String.hashCode` of OpenJDK 17.0.15 gives.
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", 0),
        ("a", 97),
        ("TagA", 2598919),
        ("beijing", -227176258),
        ("polygenelubricants", -(1 << 31)),
        ("北京", 679541),
        ("\U0001f680 lifts", 365043275),
    ],
)
def test_string_hash_of_known_texts_equals_java(text: str, expected: int) -> None:
    assert string_hash(text) == string_hash(text.encode()) == expected


@pytest.mark.parametrize("text", ["a" * 255, "a" * 256, "a" * 257, "é" * 300])
def test_string_hash_of_a_long_text_equals_the_reference(text: str) -> None:
    assert string_hash(text) == string_hash(text.encode()) == reference(text)


@pytest.mark.slow
@given(st.text())
def test_string_hash_of_text_and_of_its_bytes_is_equal(text: str) -> None:
    assert string_hash(text) == string_hash(text.encode()) == reference(text)


def test_string_hash_of_invalid_utf8_uses_the_replacement_character() -> None:
    assert string_hash(b"a\xff") == reference("a\ufffd") == 68540


def test_key_hash_is_never_negative() -> None:
    assert key_hash("polygenelubricants") == 0, "abs overflows in Java, and the index puts 0"
    assert key_hash("beijing") == 227176258
    assert key_hash("a") == 97
