"""docs/replication.md shows the table of roles."""

import re

import pytest
from sources import ROOT

from tianzhou.broker.replica.roles import TRANSITIONS, Effect, State

PAGES = ["replication.md", "replication.zh-CN.md"]


def page(name: str) -> str:
    return (ROOT / "docs" / name).read_text(encoding="utf-8")


@pytest.mark.parametrize("name", PAGES)
def test_roles_diagram_shows_the_transition_table(name: str) -> None:
    drawn = re.findall(r"^    (\[\*\]|\w+) --> (\w+): (.+)$", page(name), re.MULTILINE)
    table = [
        ("[*]" if state is State.STOPPED else state.value, after.value, event.value)
        for state, row in TRANSITIONS.items()
        for event, (after, _) in row.items()
    ]
    assert drawn == table
    assert set(TRANSITIONS) == set(State)


@pytest.mark.parametrize("name", PAGES)
def test_roles_page_lists_the_effects_of_every_event_in_order(name: str) -> None:
    rows = re.findall(
        r"^\| `([A-Z_`, ]+)` \| (`[A-Z_]+`(?:, `[A-Z_]+`)*) \|$", page(name), re.MULTILINE
    )
    listed = {
        event: tuple(re.findall(r"[A-Z_]+", effects))
        for events, effects in rows
        for event in re.findall(r"[A-Z_]+", events)
    }
    table = {
        event.name: tuple(effect.name for effect in effects)
        for row in TRANSITIONS.values()
        for event, (_, effects) in row.items()
    }
    assert listed == table


def test_every_effect_belongs_to_a_transition() -> None:
    used = {
        effect
        for row in TRANSITIONS.values()
        for transition in row.values()
        for effect in transition.effects
    }
    assert used == set(Effect)
