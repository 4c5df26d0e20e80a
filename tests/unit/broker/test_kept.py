"""Answers that are kept for as long as they deserve."""

from tianzhou.base.steps import Steps, finish
from tianzhou.broker.observe.views import SHARE, PollCache
from tianzhou.testing.sim.clock import ManualClock


def made(clock: ManualClock, took_ms: int) -> PollCache[int]:
    numbers = iter(range(100))

    def make() -> Steps[int]:
        clock.advance(ms=took_ms)
        yield
        clock.advance(ms=took_ms)
        return next(numbers)

    return PollCache(make, clock.monotonic_s)


def test_poll_cache_keeps_expensive_results_longer() -> None:
    clock = ManualClock()
    kept = made(clock, took_ms=5)
    assert [finish(kept.get()), finish(kept.get())] == [0, 0]
    clock.advance(ms=10 * SHARE - 1)
    assert finish(kept.get()) == 0
    clock.advance(ms=1)
    assert finish(kept.get()) == 1


def test_poll_cache_rebuilds_cheap_results() -> None:
    kept = made(ManualClock(), took_ms=0)
    assert [finish(kept.get()), finish(kept.get())] == [0, 1]


def test_poll_cache_ignores_pauses_of_the_builder() -> None:
    clock = ManualClock()
    kept = made(clock, took_ms=5)
    for _ in kept.get():
        clock.advance(seconds=60)
    clock.advance(ms=10 * SHARE + 1)
    assert finish(kept.get()) == 1
