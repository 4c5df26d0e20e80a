"""Protocol constants are written once, in `wire/names.py`, and imported everywhere else: a literal
that changes in one place only would separate clients from servers without an error."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from sources import SRC, name_of, nodes_of, python_files, tree_of

from tianzhou.wire import names

HOME = SRC / "wire" / "names.py"
FILES = [path for path in python_files("src") if not path.name.startswith("_generated")]
DEFINED = [
    node.target.id
    for node in tree_of(HOME).body
    if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
]
TEXTS = [value for name in DEFINED if isinstance(value := getattr(names, name), str)]
BITS = re.compile(r"(^|_)(PERM|PERMISSIONS?|PULL)(_|$)", re.IGNORECASE)
"""Names of things that hold permission bits or flags of a pull."""
MASTER = re.compile(r"(^|_)(MASTER|MASTER_ID|BROKER_ID)$", re.IGNORECASE)


def texts_in(path: Path) -> Iterator[str]:
    """Literals with a name of the protocol in them; docstrings may quote names."""
    docstrings = {node.value for node in nodes_of(path) if isinstance(node, ast.Expr)}
    for node in nodes_of(path):
        if node in docstrings or not isinstance(node, ast.Constant):
            continue
        if isinstance(node.value, str) and any(text in node.value for text in TEXTS):
            yield f"line {node.lineno}: {node.value!r}"


def _name(node: ast.AST | None) -> str:
    return node.id if isinstance(node, ast.Name) else getattr(node, "attr", "")


def _has_number(node: ast.AST | None, allowed: range) -> bool:
    nodes = [node, *ast.iter_child_nodes(node)] if isinstance(node, ast.Dict) else [node]
    return any(
        isinstance(part, ast.Constant) and type(part.value) is int and part.value in allowed
        for part in nodes
    )


def _is_written_out(named: ast.AST, value: ast.AST | None) -> bool:
    name = _name(named)
    return bool(
        (BITS.search(name) and _has_number(value, range(1, 32)))
        or (MASTER.search(name) and _has_number(value, range(1)))
    )


def numbers_in(path: Path) -> Iterator[str]:
    """Permission bits, pull flags and the id of masters as numbers: constants, `&` and `==`."""
    for node in nodes_of(path):
        pairs: list[tuple[ast.AST, ast.AST | None]] = []
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitAnd | ast.BitOr):
            pairs = [(node.left, node.right), (node.right, node.left)]
        elif isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.Eq | ast.NotEq):
            pairs = [(node.left, node.comparators[0])]
        elif isinstance(node, ast.AnnAssign) and _name(node.target).isupper():
            pairs = [(node.target, node.value)]
        elif isinstance(node, ast.Assign) and _name(node.targets[0]).isupper():
            pairs = [(node.targets[0], node.value)]
        if any(_is_written_out(named, value) for named, value in pairs):
            yield f"line {getattr(node, 'lineno', 0)}: {ast.unparse(node)}"


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_protocol_literals_are_defined_once(path: Path) -> None:
    if path != HOME:
        found = [*texts_in(path), *numbers_in(path)]
        assert not found, f"import these from tianzhou.wire.names: {found}"


@pytest.mark.parametrize(
    "text",
    [
        "x = 'TBW102'",
        "x = f'%RETRY%{group}'",
        "PERM_READ: Final = 4",
        "PERMISSIONS = {'rw': 6}",
        "MASTER = 0",
        "config.perm & 6",
        "broker_id != 0",
        "PULL_SUSPEND = 2",
        "TOPIC = 'rmq_sys_mine'",
    ],
)
def test_protocol_literal_check_detects_planted_cases(tmp_path: Path, text: str) -> None:
    path = tmp_path / "sample.py"
    path.write_text(text)
    assert [*texts_in(path), *numbers_in(path)]


@pytest.mark.parametrize("text", ['"""The topic TBW102."""', "perm & PERM_READ", "count == 0"])
def test_protocol_literal_check_allows_docstrings_and_names(tmp_path: Path, text: str) -> None:
    path = tmp_path / "sample.py"
    path.write_text(text)
    assert not [*texts_in(path), *numbers_in(path)]
