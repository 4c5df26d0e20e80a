"""Role changes of a broker as scenarios with their expected output.

`TIANZHOU_REWRITE=1 pytest tests/scenarios/test_role_scenarios.py` writes what happens now into the
files; read the difference before you commit it.
"""

import os
from pathlib import Path

import pytest
from role_script import BrokerModel, Unsafe, rewritten

from tianzhou.broker.replica.roles import TRANSITIONS, Effect, Event, State

SCENARIOS = sorted((Path(__file__).parent / "replica").glob("*.txt"))


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_role_scenario_has_the_expected_effects(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    now = rewritten(text)
    if os.environ.get("TIANZHOU_REWRITE"):
        path.write_text(now, encoding="utf-8")
    assert now == text


def test_every_role_scenario_starts_with_a_comment() -> None:
    assert len(SCENARIOS) >= 6
    for path in SCENARIOS:
        assert path.read_text(encoding="utf-8").startswith("# "), path.name


def test_role_scenarios_take_every_transition() -> None:
    text = "".join(path.read_text(encoding="utf-8") for path in SCENARIOS)
    for state, row in TRANSITIONS.items():
        for event, (after, effects) in row.items():
            names = " ".join(effect.name for effect in effects)
            assert f"{state.value} -> {after.value}: {names}\n" in text, (state, event)


PATHS = {
    State.STANDALONE: ("standalone", ()),
    State.MASTER: ("master", ()),
    State.SLAVE: ("slave", ()),
    State.PROMOTING: ("slave", (Event.CLAIM,)),
    State.STEPPING_DOWN: ("master", (Event.STEP_DOWN,)),
}
RAFT = {Event.ELECTED, Event.FOLLOW}


def reached(kind: str, events: tuple[Event, ...]) -> BrokerModel:
    model = BrokerModel(kind=kind)
    model.start()
    for event in events:
        model.handle(event)
    return model


@pytest.mark.parametrize("state", PATHS, ids=lambda state: state.value)
def test_crash_after_any_effect_leaves_a_broker_that_starts_in_a_legal_role(state: State) -> None:
    kind, events = PATHS[state]
    for event in TRANSITIONS[state].keys() - RAFT:
        for count in range(len(TRANSITIONS[state][event].effects) + 1):
            model = reached(kind, events)
            assert model.state is state
            model.crash(event, count)
            model.start()
            assert model.state in (State.MASTER, State.SLAVE)
            assert (model.state is State.MASTER) == (model.saved == "MASTER")


@pytest.mark.parametrize("events", [(), (Event.ELECTED,)], ids=["follower", "leader"])
def test_crashed_raft_member_always_starts_as_a_follower(events: tuple[Event, ...]) -> None:
    for event in TRANSITIONS[reached("member", events).state].keys() & RAFT:
        model = reached("member", events)
        for count in range(len(TRANSITIONS[model.state][event].effects) + 1):
            model = reached("member", events)
            model.crash(event, count)
            model.start()
            assert model.state is State.SLAVE


@pytest.mark.parametrize(
    ("state", "event", "moved", "before"),
    [
        (State.PROMOTING, Event.CLAIM_WON, Effect.BEGIN_WRITING, Effect.SAVE_AS_MASTER),
        (State.PROMOTING, Event.CLAIM_WON, Effect.SAVE_AS_MASTER, Effect.STOP_FOLLOWING),
        (State.PROMOTING, Event.CLAIM_WON, Effect.BECOME_MASTER, Effect.BEGIN_WRITING),
        (State.MASTER, Event.STEP_DOWN, Effect.BECOME_SLAVE, Effect.STOP_WRITING),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_role_check_detects_effects_in_a_wrong_order(
    state: State, event: Event, moved: Effect, before: Effect
) -> None:
    """Otherwise a model that accepts the table would prove nothing."""
    effects = [effect for effect in TRANSITIONS[state][event].effects if effect is not moved]
    effects.insert(effects.index(before), moved)
    kind, events = PATHS[state]
    model = reached(kind, events)
    with pytest.raises(Unsafe):
        model.execute_all(effects)
