"""Lists as CSV."""

import csv
import io

import pytest

from tianzhou.dashboard.exports import csv_response, plain


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1"])
def test_s44_a_formula_becomes_text(text: str) -> None:
    assert plain(text) == "'" + text


def test_s44_what_is_no_formula_stays() -> None:
    assert [plain(value) for value in ("a=1", "", 7, -7, None)] == ["a=1", "", 7, -7, None]


def test_a_file_can_be_read_back() -> None:
    answer = csv_response("topics", ("topic", "count"), [('with "quotes", and\nlines', 3)])
    assert answer.headers["content-disposition"] == 'attachment; filename="topics.csv"'
    rows = list(csv.reader(io.StringIO(bytes(answer.body).decode())))
    assert rows == [["topic", "count"], ['with "quotes", and\nlines', "3"]]
