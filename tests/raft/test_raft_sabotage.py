"""Testing the tests: each bug planted in Raft must be caught by the simulation or a scenario.

A bug that is not caught fails the run. In that case strengthen the checks, not the list.
"""

import inspect
from pathlib import Path

import pytest
from raft_bugs import BUGS
from script import rewritten

from sabotage.planting import Bug, planted
from tianzhou.testing.sim.raft_run import run_seed

PLANTED_BADLY = (NameError, TypeError, AttributeError, SyntaxError, ImportError)
SCENARIOS = Path(__file__).with_name("scenarios")
SIMULATIONS = {"simulation", "witness"}
SEEDS = 20


def run_checks(bug: Bug) -> None:
    if bug.suite in SIMULATIONS:
        for seed in range(bug.seed, bug.seed + SEEDS):
            run_seed(seed, first_faults=bug.suite == "simulation", witness=bug.suite == "witness")
    else:
        text = (SCENARIOS / f"{bug.suite}.txt").read_text(encoding="utf-8")
        assert rewritten(text) == text, "the scenario has another outcome"


def outcome_of(bug: Bug) -> Exception | None:
    with planted(bug):
        try:
            run_checks(bug)
        except Exception as caught:
            return caught
    return None


@pytest.mark.slow
@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name.replace(" ", "-"))
def test_planted_raft_bug_is_caught(bug: Bug) -> None:
    caught = outcome_of(bug)
    assert caught is not None, f"no check caught: {bug.name}"
    assert not isinstance(caught, PLANTED_BADLY), caught


def test_raft_checks_pass_without_a_planted_bug() -> None:
    for name in sorted({bug.suite for bug in BUGS} - SIMULATIONS):
        text = (SCENARIOS / f"{name}.txt").read_text(encoding="utf-8")
        assert rewritten(text) == text


def test_planted_raft_bugs_are_many_and_distinct() -> None:
    assert len(BUGS) >= 40
    assert len({bug.name for bug in BUGS}) == len(BUGS)
    assert len({bug.edits for bug in BUGS}) == len(BUGS)


def test_raft_failure_prints_the_command_that_reproduces_it() -> None:
    (bug,) = [bug for bug in BUGS if bug.name == "vote not persisted"]
    caught = outcome_of(bug)
    assert caught is not None
    assert any("raft_run --seed" in note for note in caught.__notes__)


def test_planted_raft_bugs_are_removed_afterwards() -> None:
    from tianzhou.raft.leader import commit

    before = inspect.getsource(commit)
    for bug in BUGS:
        with planted(bug):
            pass
    assert inspect.getsource(commit) == before
    run_seed(1)
