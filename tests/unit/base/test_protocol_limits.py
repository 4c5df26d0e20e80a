"""Each bound has a reason, and concerns a module other than the one that defines it."""

import ast
import inspect
import re
from itertools import pairwise
from pathlib import Path

from tianzhou.base import limits

SOURCE = Path(inspect.getfile(limits))
BODY = ast.parse(SOURCE.read_text(encoding="utf-8")).body
BOUNDS = {
    node.target.id: following
    for node, following in pairwise(BODY)
    if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
}


def test_every_protocol_limit_has_a_reason() -> None:
    without = [
        name
        for name, following in BOUNDS.items()
        if not (isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant))
    ]
    assert BOUNDS
    assert without == []


def test_every_protocol_limit_is_used() -> None:
    others = [path for path in SOURCE.parents[1].rglob("*.py") if path != SOURCE]
    text = "\n".join(path.read_text(encoding="utf-8") for path in others)
    unused = [name for name in BOUNDS if not re.search(rf"\b{name}\b", text)]
    assert unused == []
