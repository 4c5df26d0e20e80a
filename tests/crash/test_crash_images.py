"""Crash images: every state a loss of power may leave, recovered and held against what was sent.

Each seed is a workload; each of its calls to the disk is a moment to crash, with many images. See
`tianzhou.testing.sim.disk_crashes`. A failure names the image; `test_replay` shows it alone.
"""

import os

import pytest

from tianzhou.testing.sim.disk_crashes import Explorer, Place
from tianzhou.testing.sim.disk_losses import Losses

TORTURE = bool(os.environ.get("TIANZHOU_TORTURE"))
SEEDS = 500 if TORTURE else 100
IMAGES = 1000 if TORTURE else 500
PLACE = os.environ.get("TIANZHOU_CRASH", "")

# So many different images are checked in all: seeds write different bytes, so no two share one.
WANTED = 500_000 if TORTURE else 50_000
assert WANTED <= SEEDS * IMAGES


def explorer_of(seed: int) -> Explorer:
    """Every second workload makes its checkpoints in slices, as with thousands of queues."""
    return Explorer(seed, sliced=seed % 2 == 1)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(SEEDS))
def test_recovery_keeps_every_promise(seed: int) -> None:
    explorer = explorer_of(seed)
    explorer.crash_rebuild(cuts=8)
    explorer.explore(IMAGES)
    assert explorer.images >= IMAGES
    assert explorer.nested > 0, "recovery itself was never cut short"


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(200 if TORTURE else 25))
def test_a_start_is_never_silent_about_what_it_lost(seed: int) -> None:
    Losses(seed).check()


def test_stale_records_halves_and_second_owners() -> None:
    for seed in range(5):
        explorer = Explorer(seed)
        explorer.check_foreign_record()
        explorer.check_halves()
        explorer.check_stale_units()
        explorer.check_lock()


@pytest.mark.skipif(not PLACE, reason="TIANZHOU_CRASH names no image")
def test_replay() -> None:
    place = Place.parse(PLACE)
    explorer_of(place.seed).replay(place)


def test_a_seed_gives_the_same_images_again() -> None:
    """Otherwise a failure could not be replayed."""
    first, second = Explorer(3), Explorer(3)
    assert len(first.workload.cuts) == len(second.workload.cuts)
    assert first.workload.sent == second.workload.sent
    assert [cut.promise for cut in first.workload.cuts] == [
        cut.promise for cut in second.workload.cuts
    ]
    assert first.workload.disk.calls == second.workload.disk.calls
