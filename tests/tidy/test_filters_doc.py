"""docs/filters.md says what the code does."""

import re

import pytest
from doc_tables import only_table, read, section_of, tables_of
from sources import ROOT

from docs.pages import Page
from tianzhou.filter import limits
from tianzhou.filter.errors import FilterError
from tianzhou.filter.sql92 import compile_sql
from tianzhou.filter.sql92.tokens import KEYWORDS

DOC = read(ROOT / "docs/filters.md")
RESULTS = {"true": True, "false": False, "null": None}


def test_filters_page_has_the_limits_of_the_code() -> None:
    rows = only_table(DOC, "Limits")
    assert {row["limit"]: int(row["value"]) for row in rows} == {
        name: value for name, value in vars(limits).items() if name.isupper()
    }
    assert all(row["why"] for row in rows)


@pytest.mark.parametrize(
    "row", only_table(DOC, "Missing values"), ids=lambda row: row["expression"]
)
def test_filters_page_has_the_results_for_missing_values(row: dict[str, str]) -> None:
    expression = compile_sql(row["expression"])
    assert expression.evaluate({"a": "5"}.get) is RESULTS[row["result if `m` is missing"]]


def test_filters_page_lists_the_keywords() -> None:
    _, words = tables_of(section_of(DOC, "Expressions"))
    (keywords,) = (row["rule"] for row in words if row["word"] == "keyword")
    assert set(re.findall("[A-Z]+", keywords)) == KEYWORDS


def test_filters_page_example_compiles() -> None:
    (example,) = Page("docs/filters.md").blocks("sql")
    expression = compile_sql(example)
    assert expression.matches(b"price\x0115\x02region\x01south\x02express\x01TRUE\x02")
    assert not expression.matches(b"price\x0125\x02region\x01north\x02")


def test_filters_page_examples_of_rejected_text_are_rejected() -> None:
    section = section_of(DOC, "Expressions").partition("Refused when")[2]
    examples = [text for text in re.findall(r"`([^`]+)`", section) if re.search("[=>] ", text)]
    assert len(examples) == 5
    for text in examples:
        with pytest.raises(FilterError):
            compile_sql(text)
