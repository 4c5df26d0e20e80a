"""docs/raft.md agrees with the code."""

import re
from pathlib import Path

import pytest

from tianzhou.raft.core import Core
from tianzhou.raft.roles import TRANSITIONS, Event, Role
from tianzhou.testing.sim.raft_invariants import ALL
from tianzhou.testing.sim.raft_run import run_seed

ROOT = Path(__file__).parents[2]
DOCUMENT = (ROOT / "docs" / "raft.md").read_text(encoding="utf-8")


def test_raft_diagram_shows_the_transition_table() -> None:
    drawn = re.findall(r"^    (\w+) --> (\w+): (.+)$", DOCUMENT, re.MULTILINE)
    table = [
        (role.value, to.value, event.value)
        for role, ways in TRANSITIONS.items()
        for event, to in ways.items()
    ]
    assert drawn == table
    assert set(TRANSITIONS) == set(Role)


def test_raft_page_lists_all_invariants() -> None:
    rows = re.findall(r"^\| (I\d+) \| `(\w+)` \| (.+) \|$", DOCUMENT, re.MULTILINE)
    assert rows == [(one.number, one.__name__, first_line(one)) for one in ALL]


def first_line(thing: type) -> str:
    assert thing.__doc__
    return thing.__doc__.splitlines()[0]


def test_raft_page_names_every_module() -> None:
    for path in (ROOT / "src" / "tianzhou" / "raft").glob("*.py"):
        if path.name != "__init__.py":
            assert f"[{path.name}](../src/tianzhou/raft/{path.name})" in DOCUMENT


@pytest.mark.slow
def test_every_transition_of_the_table_happens_in_the_simulation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A transition that never happens is an error in the table, or in the simulation."""
    taken: set[tuple[Role, Event]] = set()
    become = Core.become

    def noted(core: Core, event: Event) -> None:
        taken.add((core.role, event))
        become(core, event)

    monkeypatch.setattr(Core, "become", noted)
    for seed in (8, 17, 20):
        run_seed(seed)
    assert taken == {(role, event) for role, ways in TRANSITIONS.items() for event in ways}
