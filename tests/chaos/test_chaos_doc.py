"""The page about chaos names what there is, and there is as much as was promised."""

import re
from pathlib import Path

from tianzhou.testing.chaos.checkers import RULES
from tianzhou.testing.chaos.faults import FAULTS, RAFT_FAULTS
from tianzhou.testing.chaos.table import FAILOVERS, PAIRS, QUICK, SCENARIOS

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
