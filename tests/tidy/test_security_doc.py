"""docs/security.md has a row for what is tested, and tests for every row."""

import ast

from doc_tables import read, tables_of
from sources import ROOT, nodes_of, python_files

ROWS = (*range(1, 23), 31, 32, *range(38, 47), 48, 49, 50)


def rows() -> list[dict[str, str]]:
    # A bar inside a cell is escaped; it separates nothing.
    (table,) = tables_of(read(ROOT / "docs/security.md").replace("\\|", "¦"))
    return table


def rows_of_tests() -> set[str]:
    names = {
        node.name
        for path in python_files("tests")
        for node in nodes_of(path)
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_s")
    }
    return {name[:8] for name in names if name[6:8].isdigit() and name[8:9] == "_"}


def test_every_row_has_tests_and_every_test_a_row() -> None:
    assert [row["ROW"] for row in rows()] == [f"S{number}" for number in ROWS]
    assert [row["TESTS"] for row in rows()] == [f"test_s{number:02}" for number in ROWS]
    assert rows_of_tests() == {row["TESTS"] for row in rows()}


def test_every_row_says_what_happens() -> None:
    for row in rows():
        assert row["INPUT"]
        assert row["WHAT IT GETS"]
