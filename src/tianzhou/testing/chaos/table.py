"""All scenarios, by name. `make chaos` plays them; `make test` plays those in QUICK."""

from collections.abc import Mapping
from random import Random
from typing import Final

from tianzhou.testing.chaos import stage as shapes
from tianzhou.testing.chaos.cluster import MODES, Mode
from tianzhou.testing.chaos.faults import (
    FAULTS,
    NEEDS_SMALL_DISKS,
    RAFT_FAULTS,
    Fault,
    can_be_both,
)
from tianzhou.testing.chaos.scenarios import Scenario, failovers
from tianzhou.testing.chaos.witness_faults import PAIR_FAULTS, leaves_a_copy

SAFE_AND_FAST: Final = (Mode(), Mode(sync_flush=True, sync_replication=True))
DOUBLES_DRAWN: Final = 40

SINGLES: Final = tuple(
    Scenario("kill-master", mode, shape)
    for mode in (Mode(), Mode(sync_flush=True))
    for shape in (shapes.alone, shapes.two)
)
PAIRS: Final = tuple(Scenario(fault, mode) for mode in MODES for fault in FAULTS)


def _in_group(fault: str) -> Scenario:
    small = NEEDS_SMALL_DISKS & {*fault.split("+")}
    return Scenario(fault, Mode(), shapes.raft_on_small_disks if small else shapes.raft)


def _of_pair(fault: str) -> Scenario:
    small = NEEDS_SMALL_DISKS & {*fault.split("+")}
    return Scenario(fault, Mode(), shapes.witnessed_on_small_disks if small else shapes.witnessed)


def _doubles(table: Mapping[str, Fault]) -> list[str]:
    return [
        f"{first}+{second}"
        for first in table
        for second in table
        if can_be_both(first, second, table)
    ]


GROUPS: Final = tuple(_in_group(fault) for fault in RAFT_FAULTS)
WITNESSED: Final = tuple(_of_pair(fault) for fault in PAIR_FAULTS)
DOUBLES: Final = tuple(
    [Scenario(name, mode) for name in _doubles(FAULTS) for mode in SAFE_AND_FAST]
    + [_in_group(name) for name in _doubles(RAFT_FAULTS)]
    + [_of_pair(name) for name in _doubles(PAIR_FAULTS) if leaves_a_copy(*name.split("+"))]
)
"""Every pair of faults that can coincide: too many for one run, so a random sample is used."""
FAILOVERS: Final = tuple(failovers(rank, rounds=20) for rank in range(10))

ALWAYS: Final = (*SINGLES, *PAIRS, *GROUPS, *WITNESSED, *FAILOVERS)
SCENARIOS: Final = {scenario.name: scenario for scenario in (*ALWAYS, *DOUBLES)}


def drawn(seed: int) -> list[str]:
    """The plays of one run: every fault alone, and pairs selected by the seed."""
    doubles = Random(f"doubles {seed}").sample(DOUBLES, DOUBLES_DRAWN)
    return [scenario.name for scenario in (*ALWAYS, *doubles)]


QUICK: Final = (
    "kill-master/af-ar/two",
    "kill-slave/sf-sr",
    "kill-both/af-sr",
    "pause-slave/af-sr",
    "pause-master/sf-ar",
    "cut/sf-sr",
    "cut-to-master/af-sr",
    "freeze-break/af-ar",
    "garbage/sf-ar",
    "slow/sf-sr",
    "pause-leader/raft",
    "cut-leader/raft",
    "rolling-restart/raft",
    "cut+promote/sf-sr",
    "promote+kill-slave/sf-sr",
    "fill-leader+transfer/raft",
    "pause-leader+kill-follower/raft",
    "reconfigure+kill-leader/raft",
    "kill-leader/witness",
    "pause-follower/witness",
    "cut-leader+kill-witness/witness",
    "kill-follower+kill-leader/witness",
)
"""Those that differ most: each fault and each mode, few of both."""

ADMINISTERED: Final = (
    "pause-slave/af-sr",
    "kill-leader/raft",
    "cut-leader/raft",
    "transfer/raft",
    "pause-leader+kill-follower/raft",
)
"""Faults that are also played while administrators change everything, at any member."""
