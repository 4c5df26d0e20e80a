"""Time limits of tests: short on an idle machine, longer on a busy one, never after the test.

Each test here disables its own limit, because a process has only one SIGALRM.
"""

import signal
import time
from collections.abc import Iterator

import pytest

from tianzhou.testing.kit.time_limit import start_limit

LIMIT_S = 0.2
WAIT_S = 60.0


class Expired(Exception):
    """The time limit of a test has interrupted it."""


@pytest.fixture(autouse=True)
def no_other_limit() -> Iterator[None]:
    handler = signal.getsignal(signal.SIGALRM)
    left_s, interval_s = signal.setitimer(signal.ITIMER_REAL, 0)
    yield
    signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, left_s, interval_s)


def expire() -> None:
    raise Expired


def interrupted_after_s(crowding: float) -> float:
    start_s = time.monotonic()
    start_limit(LIMIT_S, expire, crowding=lambda: crowding)
    with pytest.raises(Expired):
        time.sleep(WAIT_S)
    return time.monotonic() - start_s


def test_time_limit_on_an_idle_machine_interrupts_a_blocked_test() -> None:
    assert LIMIT_S <= interrupted_after_s(1.0) < WAIT_S / 2


def test_time_limit_on_a_busy_machine_lasts_longer_in_proportion() -> None:
    assert 5 * LIMIT_S <= interrupted_after_s(5.0) < WAIT_S / 2


def test_time_limit_once_expired_does_not_interrupt_again() -> None:
    interrupted_after_s(1.0)
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


def test_time_limit_cancelled_does_not_interrupt() -> None:
    cancel = start_limit(LIMIT_S, expire)
    cancel()
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
    assert signal.getsignal(signal.SIGALRM) is signal.SIG_DFL


@pytest.mark.timeout(30)
def test_time_limit_of_a_marked_test_is_set_by_the_conftest(request: pytest.FixtureRequest) -> None:
    """The hook in tests/conftest.py replaces the plain timer of pytest-timeout."""
    cancel = request.node.cancel_timeout
    assert cancel.__module__ == start_limit.__module__
