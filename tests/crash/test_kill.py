"""Real processes, killed with SIGKILL at any time and at every fail point; nothing is lost."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from kill_witness import KILLED, Witness

from tianzhou.store.failpoint import POINTS

TORTURE: Final = "TIANZHOU_TORTURE" in os.environ
DIRECTORIES: Final = 20 if TORTURE else 6
CYCLES: Final = 50 if TORTURE else 8
ROUNDS: Final = 100_000
"""More than a process can finish before it is killed."""


@pytest.mark.parametrize("seed", range(DIRECTORIES))
def test_kill_at_a_random_time_loses_nothing_acknowledged(tmp_path: Path, seed: int) -> None:
    witness = Witness(tmp_path / "store", seed)
    for _ in range(CYCLES):
        # 0: while it opens the directory that the previous process left.
        kill_after = witness.dice.choice((0, 1, 50, 400, 2000))
        code = witness.run(rounds=ROUNDS, kill_after=witness.dice.randint(0, kill_after))
        assert code == KILLED
        witness.verify(close=bool(witness.dice.randrange(2)))


@pytest.fixture
def quick_path(tmp_path: Path) -> Iterator[Path]:
    """A directory in memory if possible: bytes that a killed process wrote are in the page cache
    either way, and syncs of a shared disk take most of the time."""
    memory = Path("/dev/shm")
    if not memory.is_dir():
        yield tmp_path
        return
    path = Path(tempfile.mkdtemp(dir=memory))
    yield path
    shutil.rmtree(path)


# Writers of messages never truncate; tests/unit/store/test_replica_log.py stops at those points.
@pytest.mark.parametrize("point", [name for name in POINTS if not name.startswith("rewind.")])
def test_kill_at_every_fail_point_loses_nothing_acknowledged(quick_path: Path, point: str) -> None:
    """Kill at each point once early and once later; a point that is never reached fails."""
    witness = Witness(quick_path / "store", POINTS.index(point))
    assert witness.run(rounds=ROUNDS, kill_after=300) == KILLED
    # Opening and closing happen once per process.
    hits = (1, 1) if point.startswith(("recovery.", "close.")) else (1, 4)
    for hit in hits:
        code = witness.run(rounds=100, point=point, hit=hit)
        assert code == KILLED, f"{point} was not reached {hit} times"
        witness.verify(close=False)


def test_process_that_ends_cleanly_loses_nothing(tmp_path: Path) -> None:
    witness = Witness(tmp_path / "store", seed=99)
    for _ in range(2):
        assert witness.run(rounds=30) == 0
        witness.verify(close=True)
