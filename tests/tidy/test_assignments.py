"""Objects of the broker are connected by their constructors, not by assignments afterwards.

An attribute that another object assigns later is a connection that a reader of the constructor does
not see, and a state in which the object is half built.
"""

import ast
from pathlib import Path

from sources import SRC, nodes_of, python_files

BROKER = SRC / "broker"

RECORDS = {
    "fetch/pull.py": {"pull.deadline", "pull.is_reading", "pull.offset", "result.next_offset"},
    "groups/groups.py": {"group.described", "known.heartbeat_ms"},
    "observe/group_rows.py": {
        "tallies[group].is_unknown",
        "tally.held",
        "tally.lag",
        "tally.moved_ms",
        "tally.oldest_ms",
        "tally.retrying",
        "tally.stuck",
        "tally.stuck_ms",
    },
    "observe/watchdog.py": {"self._round.left_out", "self._round.lines"},
    "scheduled/delay.py": {"level.offset"},
    "writing/due_queue.py": {"run.start"},
}
"""Fields of records that the assigning module itself creates or owns: data, not connections."""


def targets_of(node: ast.AST) -> list[ast.expr]:
    if isinstance(node, ast.Assign):
        found = node.targets
    elif isinstance(node, ast.AugAssign | ast.AnnAssign):
        found = [node.target]
    else:
        return []
    return [
        part
        for target in found
        for part in (target.elts if isinstance(target, ast.Tuple | ast.List) else [target])
    ]


def foreign_targets(path: Path) -> set[str]:
    """Attributes that code of this file assigns, of any object but `self`."""
    return {
        ast.unparse(target)
        for node in nodes_of(path)
        for target in targets_of(node)
        if isinstance(target, ast.Attribute) and ast.unparse(target.value) not in ("self", "cls")
    }


def test_no_object_assigns_attributes_of_another() -> None:
    for path in python_files("src"):
        if path.is_relative_to(BROKER):
            name = path.relative_to(BROKER).as_posix()
            found = foreign_targets(path) - RECORDS.get(name, set())
            assert not found, f"{name} assigns {sorted(found)}; pass them to the constructor"


def test_assignments_to_other_objects_are_found(tmp_path: Path) -> None:
    path = tmp_path / "example.py"
    path.write_text(
        "def wire(self, a, b):\n"
        "    self.x = 1\n"
        "    a.x = 1\n"
        "    self.y.z += 2\n"
        "    b.y, c = 1, 2\n"
        "    b.w: int = 3\n",
        encoding="utf-8",
    )
    assert foreign_targets(path) == {"a.x", "self.y.z", "b.y", "b.w"}
