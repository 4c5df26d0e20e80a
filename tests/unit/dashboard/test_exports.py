"""Lists as CSV."""

import csv
import io

import pytest

from tianzhou.dashboard.exports import csv_response, plain


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1"])
def test_s44_export_quotes_a_formula(text: str) -> None:
    assert plain(text) == "'" + text


def test_s44_export_keeps_values_that_are_not_formulas() -> None:
    assert [plain(value) for value in ("a=1", "", 7, -7, None)] == ["a=1", "", 7, -7, None]


def test_csv_export_can_be_read_back() -> None:
    answer = csv_response("topics", ("topic", "count"), [('with "quotes", and\nlines', 3)])
    assert answer.headers["content-disposition"] == 'attachment; filename="topics.csv"'
    rows = list(csv.reader(io.StringIO(bytes(answer.body).decode())))
    assert rows == [["topic", "count"], ['with "quotes", and\nlines', "3"]]
