"""The clock that a test can move and hold."""

import time

import pytest

from tianzhou.base.errors import UsageError
from tianzhou.testing import KitClock

HOUR_MS = 3_600_000


def test_clock_follows_the_machine() -> None:
    clock = KitClock()
    assert abs(clock.now_ms() - time.time() * 1000) < 1000
    assert clock.monotonic_s() <= time.monotonic()


def test_clock_starts_at_the_given_time() -> None:
    clock = KitClock(1_000_000, held=True)
    assert clock.now_ms() == 1_000_000


@pytest.mark.parametrize(
    ("step", "ms"),
    [
        ({"ms": 7}, 7),
        ({"seconds": 1.5}, 1500),
        ({"minutes": 2, "seconds": 1}, 121_000),
        ({"hours": 2}, 2 * HOUR_MS),
        ({"days": 3}, 72 * HOUR_MS),
    ],
)
def test_clock_advances_by_the_given_duration(step: dict[str, int], ms: int) -> None:
    clock = KitClock(0, held=True)
    clock.advance(**step)
    assert clock.now_ms() == ms


def test_held_clock_stops_and_resumes_at_the_same_time() -> None:
    clock = KitClock()
    clock.hold()
    clock.hold()  # a second call changes nothing
    before_ms = clock.now_ms()
    clock.advance(hours=1)
    assert clock.now_ms() == before_ms + HOUR_MS
    clock.resume()
    clock.resume()
    assert 0 <= clock.now_ms() - before_ms - HOUR_MS < 1000


def test_clock_advance_does_not_change_intervals() -> None:
    """Clients use real time; the broker must not consider them dead."""
    clock = KitClock()
    before_s = clock.monotonic_s()
    clock.advance(days=365)
    assert clock.monotonic_s() - before_s < 1


def test_clock_listeners_are_called_after_every_advance() -> None:
    clock, told = KitClock(0, held=True), list[int]()
    stop = clock.on_move(lambda: told.append(clock.now_ms()))
    clock.advance(ms=1)
    clock.advance(ms=2)
    stop()
    clock.advance(ms=4)
    assert told == [1, 3]


def test_clock_rejects_a_negative_advance() -> None:
    with pytest.raises(UsageError, match="-1000 ms"):
        KitClock().advance(seconds=-1)
