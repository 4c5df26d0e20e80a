"""All scenarios, by name. `make chaos` plays them; `make test` plays those in QUICK."""

from typing import Final

from tianzhou.testing.chaos import stage as shapes
from tianzhou.testing.chaos.cluster import MODES, Mode
from tianzhou.testing.chaos.failovers import failovers
from tianzhou.testing.chaos.faults import FAULTS, RAFT_FAULTS
from tianzhou.testing.chaos.scenarios import Scenario

SINGLES: Final = tuple(
    Scenario("kill-master", mode, shape)
    for mode in (Mode(), Mode(sync_flush=True))
    for shape in (shapes.alone, shapes.two)
)
PAIRS: Final = tuple(Scenario(fault, mode) for mode in MODES for fault in FAULTS)
GROUPS: Final = tuple(Scenario(fault, Mode(), shapes.raft) for fault in RAFT_FAULTS)
FAILOVERS: Final = tuple(failovers(rank, rounds=20) for rank in range(10))

SCENARIOS: Final = {scenario.name: scenario for scenario in (*SINGLES, *PAIRS, *GROUPS, *FAILOVERS)}

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
)
"""Those that differ most: each fault and each mode, few of both."""
