"""The page about chaos names what there is, and there is as much as was promised."""

import re
from pathlib import Path

from tianzhou.testing.chaos.checkers import RULES
from tianzhou.testing.chaos.faults import FAULTS, RAFT_FAULTS
from tianzhou.testing.chaos.table import (
    DOUBLES,
    DOUBLES_DRAWN,
    FAILOVERS,
    PAIRS,
    QUICK,
    SCENARIOS,
    drawn,
)

PAGE = (Path(__file__).parents[2] / "docs" / "chaos.md").read_text(encoding="utf-8")


def test_every_rule_is_explained() -> None:
    rows = re.findall(r"^\| `(\w+_\w+)` \|", PAGE, re.MULTILINE)
    assert rows == [rule.__name__ for rule in RULES]


def test_every_fault_is_explained() -> None:
    rows = re.findall(r"^\| `([\w-]+)` \| (.+) \| ([\d.]+) s \|$", PAGE, re.MULTILINE)
    wanted = [(name, fault.what, f"{fault.lasts_s:g}")
              for faults in (FAULTS, RAFT_FAULTS) for name, fault in faults.items()]  # fmt: skip
    assert rows == wanted


def test_there_are_enough_scenarios() -> None:
    assert len(PAIRS) >= 40
    assert sum(scenario.rounds for scenario in FAILOVERS) >= 200
    quick = [SCENARIOS[name] for name in QUICK]
    assert len([scenario for scenario in quick if scenario in PAIRS]) >= 8
    assert {scenario.mode for scenario in quick if scenario in PAIRS} == {
        scenario.mode for scenario in PAIRS
    }


def test_pairs_of_faults_strike_different_things() -> None:
    names = {scenario.fault for scenario in DOUBLES}
    assert {"cut+promote", "depose+cut", "pause-slave+kill-master"} <= names
    assert {
        "fill-leader+transfer",
        "pause-leader+kill-follower",
        "wipe-follower+kill-leader",
    } <= names
    assert not names & {"kill-slave+pause-slave", "kill-slave+promote", "none+cut", "cut+reset"}
    assert len(DOUBLES) >= 300


def test_every_seed_draws_other_pairs_and_the_same_ones_again() -> None:
    first, second = ({name for name in drawn(seed) if "+" in name} for seed in (1, 2))
    assert len(first) == len(second) == DOUBLES_DRAWN
    assert first != second
    assert drawn(1) == drawn(1)
