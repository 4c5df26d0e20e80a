"""Whole Raft groups in virtual time, with faults of every kind, and all invariants checked.

A failure ends with the command that reproduces it. `make sim` runs new seeds for a given time.
"""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tianzhou.testing.sim.raft_invariants import ALL
from tianzhou.testing.sim.raft_run import Tally, run_seed

# 600 seeds in all, more than ten simulated hours.
SHARES = 40
SEEDS_PER_SHARE = 15
WITNESS_SHARES = 10
HOURS = 10
# Seeds that failed once, each with the cause.
REGRESSIONS = {
    1182: "the checker: one that slept may win an old term late",
    1220: "logs that part in what has expired were never brought together",
    2457: "the checker: two changes of members between two ticks",
    3131: "the checker: voters added with an empty log have to catch up first",
    1000081: "the checker: answers that were slow on a clogged link still count",
    3218: "the checker: a node knows that it is repaired before its disk does",
    7043: "the checker: what is committed may differ from what a full disk still has",
    73: "the checker: a save that waits for room is judged when it is asked for",
}
DIGEST = (
    "from tianzhou.testing.sim.raft_run import run_seed; print([run_seed(s) for s in (3, 5, 8)])"
)


@pytest.mark.slow
@pytest.mark.parametrize("share", range(SHARES))
def test_simulated_groups_keep_all_invariants(
    share: int, record_property: Callable[[str, object], None]
) -> None:
    tally, began_s = Tally(), time.monotonic()
    for seed in range(share * SEEDS_PER_SHARE, (share + 1) * SEEDS_PER_SHARE):
        tally.add(run_seed(seed))
    # A share in which few events happen proves little.
    assert tally.simulated_us > HOURS * 3_600_000_000 / SHARES
    for what in ("acknowledged", "crashes", "elections", "partitions", "depositions"):
        assert tally.counts[what] >= SEEDS_PER_SHARE, tally.text(0)
    # The total of all shares is printed at the end of the tests.
    simulated = (tally.seeds, tally.simulated_us / 1e6, time.monotonic() - began_s)
    record_property("simulated", simulated)


@pytest.mark.slow
@pytest.mark.parametrize("share", range(WITNESS_SHARES))
def test_simulated_pairs_with_a_witness_keep_all_invariants(share: int) -> None:
    tally = Tally()
    for seed in range(share * SEEDS_PER_SHARE, (share + 1) * SEEDS_PER_SHARE):
        tally.add(run_seed(seed, witness=True))
    for what in ("acknowledged", "crashes", "elections", "takeovers"):
        assert tally.counts[what] >= 1, tally.text(0)


def test_simulation_shrink_of_a_passing_seed_reports_it() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tianzhou.testing.sim.raft_run", "--seed", "1", "--shrink"],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr == "seed 1 passes: there is nothing to leave out\n"


@pytest.mark.slow
@pytest.mark.parametrize("seed", REGRESSIONS)
def test_simulation_seed_that_failed_before_passes(seed: int) -> None:
    run_seed(seed, first_faults=True)
    run_seed(seed)


@pytest.mark.slow
def test_simulation_depends_only_on_the_seed() -> None:
    """In another process, with another hash seed, every event is the same."""
    source = str(Path(__file__).parents[2] / "src")

    def history(hash_seed: str) -> str:
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": source}
        done = subprocess.run(
            [sys.executable, "-c", DIGEST],
            env=environment,
            capture_output=True,
            text=True,
            timeout=300,
            check=True,
        )
        return done.stdout

    first = history("1")
    assert "digest=" in first
    assert first == history("2")


def test_raft_invariants_are_numbered() -> None:
    assert [one.number for one in ALL] == [f"I{number}" for number in range(1, 18)]
