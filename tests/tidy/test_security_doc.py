"""docs/security.md has a row for what is tested, and tests for every row."""

import ast

from doc_tables import read, tables_of
from sources import ROOT, nodes_of, python_files

from tianzhou.net import limits

ROWS = (*range(1, 23), 31, 32, *range(38, 47), 48, 49, 50)


def rows() -> list[dict[str, str]]:
    # A bar inside a cell is escaped; it separates nothing.
    return _tables()[0]


def _tables(name: str = "security.md") -> list[list[dict[str, str]]]:
    return tables_of(read(ROOT / "docs" / name).replace("\\|", "¦"))


def rows_of_tests() -> set[str]:
    names = {
        node.name
        for path in python_files("tests")
        for node in nodes_of(path)
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_s")
    }
    return {name[:8] for name in names if name[6:8].isdigit() and name[8:9] == "_"}


def test_security_rows_and_tests_correspond() -> None:
    assert [row["ROW"] for row in rows()] == [f"S{number}" for number in ROWS]
    assert [row["TESTS"] for row in rows()] == [f"test_s{number:02}" for number in ROWS]
    assert rows_of_tests() == {row["TESTS"] for row in rows()}


def test_security_page_explains_every_row() -> None:
    for row in rows():
        assert row["INPUT"]
        assert row["WHAT IT GETS"]


def test_security_page_has_the_port_limits_of_the_code() -> None:
    expected = [
        {
            "PORT": port.name,
            "CONNECTIONS": f"{port.connections_max:,}",
            "UNPROVEN": f"{port.unproven_max:,}",
            "FROM ONE ADDRESS": f"{port.per_source_max:,}",
            "UNPROVEN FROM ONE ADDRESS": f"{port.unproven_per_source_max:,}",
            "DEADLINE": f"{port.prove_s:.0f} s",
        }
        for port in (
            limits.CLIENT_PORT,
            limits.NAMESERVER_PORT,
            limits.RAFT_PORT,
            limits.HA_PORT,
            limits.HTTP_PORT,
        )
    ]
    assert _tables()[1] == expected


def test_security_page_in_chinese_has_the_same_rows_and_ports() -> None:
    """Texts differ; rows, their tests and every figure of the ports do not."""
    english, chinese = (
        [[list(row.values()) for row in table] for table in _tables(name)]
        for name in ("security.md", "security.zh-CN.md")
    )
    assert [(row[0], row[-1]) for row in english[0]] == [(row[0], row[-1]) for row in chinese[0]]
    assert all(all(row) for row in chinese[0])
    assert english[1] == chinese[1]
