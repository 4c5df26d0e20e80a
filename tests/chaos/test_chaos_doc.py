"""docs/chaos.md describes every rule and fault, and there are enough scenarios."""

import re
from pathlib import Path

import pytest

from tianzhou.testing.chaos.checkers import RULES
from tianzhou.testing.chaos.faults import FAULTS, RAFT_FAULTS
from tianzhou.testing.chaos.load import Together
from tianzhou.testing.chaos.table import (
    ADMINISTERED,
    DOUBLES,
    DOUBLES_DRAWN,
    FAILOVERS,
    PAIRS,
    QUICK,
    SCENARIOS,
    drawn,
)
from tianzhou.testing.chaos.witness_faults import WITNESS_FAULTS

PAGE = (Path(__file__).parents[2] / "docs" / "chaos.md").read_text(encoding="utf-8")


def test_chaos_page_explains_every_rule() -> None:
    rows = re.findall(r"^\| `(\w+_\w+)` \|", PAGE, re.MULTILINE)
    assert rows == [rule.__name__ for rule in RULES]


def test_chaos_page_explains_every_fault() -> None:
    rows = re.findall(r"^\| `([\w-]+)` \| (.+) \| ([\d.]+) s \|$", PAGE, re.MULTILINE)
    wanted = [
        (name, fault.what, f"{fault.lasts_s:g}")
        for faults in (FAULTS, RAFT_FAULTS, WITNESS_FAULTS)
        for name, fault in faults.items()
    ]
    assert rows == wanted


def test_number_of_chaos_scenarios_is_sufficient() -> None:
    assert len(PAIRS) >= 40
    assert sum(scenario.rounds for scenario in FAILOVERS) >= 200
    quick = [SCENARIOS[name] for name in QUICK]
    assert len([scenario for scenario in quick if scenario in PAIRS]) >= 8
    assert {scenario.mode for scenario in quick if scenario in PAIRS} == {
        scenario.mode for scenario in PAIRS
    }


def test_fault_pairs_affect_different_targets() -> None:
    names = {scenario.fault for scenario in DOUBLES}
    assert {"cut+promote", "depose+cut", "pause-slave+kill-master"} <= names
    assert {
        "fill-leader+transfer",
        "pause-leader+kill-follower",
        "wipe-follower+kill-leader",
    } <= names
    assert not names & {"kill-slave+pause-slave", "kill-slave+promote", "none+cut", "cut+reset"}
    assert len(DOUBLES) >= 300


def test_two_copies_do_not_lose_a_disk_while_one_is_away() -> None:
    names = {scenario.name for scenario in DOUBLES if scenario.has_witness}
    assert {"kill-follower+kill-leader/witness", "wipe-witness+kill-leader/witness"} <= names
    assert not names & {"kill-leader+wipe-follower/witness", "damage-follower+transfer/witness"}


def test_fault_pairs_depend_only_on_the_seed() -> None:
    first, second = ({name for name in drawn(seed) if "+" in name} for seed in (1, 2))
    assert len(first) == len(second) == DOUBLES_DRAWN
    assert first != second
    assert drawn(1) == drawn(1)


def test_fault_pairs_run_with_administrators() -> None:
    """`make chaos` runs administrators with the pairs that it draws, `make test` with one pair."""
    left_out = {name for name in drawn(1) if not SCENARIOS[name].can_be_administered}
    assert {name.partition("/")[2] for name in left_out} <= {
        "raft",
        "witness",
        "af-ar/two",
        "sf-ar/two",
    }
    reasons = ("failovers-", "kill-master/", "damage-follower")
    assert all(any(reason in name for reason in reasons) for name in left_out)
    assert any("+" in name for name in ADMINISTERED)
    assert all(SCENARIOS[name].can_be_administered for name in ADMINISTERED)


class Part:
    """A client of a load that records its calls."""

    def __init__(self, name: str, group: str | None, calls: list[str]) -> None:
        self.name, self.group, self._calls = name, group, calls

    def stop_producing(self) -> None:
        self._calls.append(f"{self.name} stops producing")

    def received(self) -> set[str]:
        return {self.name}

    def stop(self) -> None:
        self._calls.append(f"{self.name} stops")
        if self.name == "broken":
            raise RuntimeError(self.name)


def test_together_stops_all_clients_even_if_one_fails() -> None:
    calls = list[str]()
    both = Together([Part("broken", None, calls), Part("other", "readers", calls)])
    assert (both.group, both.received()) == ("readers", {"broken", "other"})
    both.stop_producing()
    with pytest.raises(RuntimeError):
        both.stop()
    assert calls == [
        "broken stops producing",
        "other stops producing",
        "broken stops",
        "other stops",
    ]
