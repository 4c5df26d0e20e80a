"""How many files and connections fit."""

import resource
from contextlib import ExitStack

import pytest

from tianzhou.net import limits
from tianzhou.net.limits import NetLimits, allow_files, connection_budget


class Limit:
    """Stands in for the limit of this process."""

    def __init__(self, soft: int, hard: int) -> None:
        self.both = soft, hard
        self.set_count = 0

    def get(self, _: int) -> tuple[int, int]:
        return self.both

    def set(self, _: int, both: tuple[int, int]) -> None:
        self.both = both
        self.set_count += 1


def pretend(monkeypatch: pytest.MonkeyPatch, soft: int, hard: int) -> Limit:
    limit = Limit(soft, hard)
    monkeypatch.setattr(resource, "getrlimit", limit.get)
    monkeypatch.setattr(resource, "setrlimit", limit.set)
    return limit


@pytest.mark.parametrize(
    ("soft", "open_now", "expected"),
    [
        (1_024, 24, 500),
        (20_000, 88, 19_400),
        (100, 20, 40),
        (100, 200, 0),
        (resource.RLIM_INFINITY, 50, 1 << 20),
    ],
)
def test_connection_budget_leaves_files_for_the_store(
    monkeypatch: pytest.MonkeyPatch, soft: int, open_now: int, expected: int
) -> None:
    pretend(monkeypatch, soft, soft)
    monkeypatch.setattr(limits, "_open_files", lambda: open_now)
    assert connection_budget() == expected


def test_connection_budget_counts_the_files_that_are_open() -> None:
    before = connection_budget()
    with ExitStack() as stack:
        for _ in range(20):
            stack.enter_context(open("/dev/null", "rb"))
        assert connection_budget() <= before - 10


def test_allow_files_raises_the_limit_to_the_maximum(monkeypatch: pytest.MonkeyPatch) -> None:
    limit = pretend(monkeypatch, 10, 99)
    assert allow_files() == 99
    assert limit.both == (99, 99)
    allow_files()
    assert limit.set_count == 1


def test_net_limits_are_consistent_with_each_other() -> None:
    bounds = NetLimits()
    assert bounds.write_bytes_max < bounds.unsent_bytes_max
    assert bounds.partial_s < bounds.idle_s
    assert bounds.turn_s < bounds.sweep_s
