"""Answers that are kept for as long as they deserve."""

from tianzhou.broker.kept import SHARE, Kept
from tianzhou.testing.sim.clock import ManualClock


def made(clock: ManualClock, took_ms: int) -> Kept[int]:
    numbers = iter(range(100))

    def make() -> int:
        clock.advance(ms=took_ms)
        return next(numbers)

    return Kept(make, clock.monotonic_s)


def test_what_took_long_is_kept_long() -> None:
    clock = ManualClock()
    kept = made(clock, took_ms=10)
    assert [kept.get(), kept.get()] == [0, 0]
    clock.advance(ms=10 * SHARE - 1)
    assert kept.get() == 0
    clock.advance(ms=1)
    assert kept.get() == 1


def test_what_took_no_time_is_made_anew() -> None:
    kept = made(ManualClock(), took_ms=0)
    assert [kept.get(), kept.get()] == [0, 1]
