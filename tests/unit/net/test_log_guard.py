"""What a stranger's words look like in a log. How many of them: tests/abuse/test_abuse_store.py."""

import pytest

from tianzhou.net.log_guard import TEXT_CHARS_MAX, one_entry


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain", "plain"),
        ("two\nlines", "two\n    lines"),
        ("back\rward", "back\\rward"),
        ("\x1b[31mred", "\\x1b[31mred"),
        ("nul\x00", "nul\\x00"),
        ("line\u2028separator", "line\\u2028separator"),
        ("天舟", "天舟"),
    ],
)
def test_one_entry(text: str, shown: str) -> None:
    assert one_entry(text) == shown


def test_long_texts_are_cut() -> None:
    assert len(one_entry(10 * TEXT_CHARS_MAX * "x")) == TEXT_CHARS_MAX
