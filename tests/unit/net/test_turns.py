"""Who works in which round of the loop."""

import math
import time
from typing import Any, cast

import pytest
from fake_transport import FakeLoop

from tianzhou.net.server_connection import (
    DOUBT_S,
    MEDIUM_S,
    ROUND_S,
    SHORT_S,
    Turns,
    average_s,
    clock_for,
)

LONG_S = 2 * MEDIUM_S


class Line:
    """Connections whose turns take a given time, on a loop that a test runs."""

    def __init__(self) -> None:
        self.loop = FakeLoop()
        self.turns = Turns()
        self.served: list[str] = []

    def work(self, seconds: float) -> None:
        self.turns.took(seconds, cast("Any", self.loop))

    def wait(self, name: str, cost_s: float | None, takes_s: float = 0.0) -> None:
        def resume() -> None:
            self.served.append(name)
            self.work(takes_s)

        self.turns.wait(resume, cost_s)


def test_turns_in_an_empty_round_may_begin_at_any_cost() -> None:
    line = Line()
    assert all(line.turns.may_begin(cost) for cost in (None, 0.0, LONG_S, 1.0))


def test_turns_in_a_full_round_may_begin_only_if_short() -> None:
    line = Line()
    line.work(ROUND_S)
    assert line.turns.may_begin(SHORT_S)
    assert not any(line.turns.may_begin(cost) for cost in (None, 1.1 * SHORT_S, LONG_S))
    line.loop.run()
    assert line.turns.may_begin(None), "the next round has room again"


def test_turns_that_are_short_do_not_fill_a_round() -> None:
    line = Line()
    for _ in range(1_000):
        line.work(SHORT_S)
    assert line.turns.may_begin(None)


def test_turns_count_queued_responses_before_they_are_written() -> None:
    line = Line()
    for _ in range(10):
        line.turns.queued(1 << 20, cast("Any", line.loop))
    assert not line.turns.may_begin(None)
    line.loop.run()
    assert line.turns.may_begin(None)


def test_turns_of_waiting_connections_are_spread_over_rounds() -> None:
    line = Line()
    line.work(ROUND_S)
    for number in range(5):
        line.wait(f"long {number}", LONG_S, takes_s=0.6 * ROUND_S)
    rounds: list[int] = []
    while len(line.served) < 5:
        soon, line.loop._soon = line.loop._soon, []
        for callback in soon:
            callback()
        rounds.append(len(line.served))
    assert rounds == [2, 4, 5]
    assert line.served == [f"long {number}" for number in range(5)], "in order"


def test_turns_are_served_medium_first_then_new_then_long() -> None:
    line = Line()
    line.work(ROUND_S)
    line.wait("long", LONG_S)
    line.wait("new", None)
    line.wait("medium", MEDIUM_S)
    line.loop.run()
    assert line.served == ["medium", "new", "long"]


def test_average_cost_after_one_long_turn_is_soon_short_again() -> None:
    cost = average_s(average_s(None, 0.0001), 0.002)
    assert cost < MEDIUM_S
    for _ in range(3):
        cost = average_s(cost, 0.0001)
    assert cost <= SHORT_S


def test_average_cost_of_an_alternating_peer_stays_long() -> None:
    cost = None
    costs: list[float] = []
    for turn in range(100):
        cost = average_s(cost, 0.0 if turn % 2 else 0.004)
        costs.append(cost)
    assert min(costs[1:]) > SHORT_S


def test_clock_for_short_turns_is_monotonic_with_a_bound() -> None:
    assert clock_for(SHORT_S) == (time.monotonic, DOUBT_S)
    assert clock_for(None) == clock_for(2 * SHORT_S) == (time.thread_time, math.inf)


def test_average_cost_with_bounded_samples_still_becomes_long() -> None:
    cost = 0.00005
    seen: list[float] = []
    for turn in range(100):
        doubt_s = clock_for(cost)[1]
        cost = average_s(cost, min(0.00005 if turn % 2 else 0.004, doubt_s))
        seen.append(cost)
    assert min(seen[2:]) > SHORT_S


@pytest.mark.parametrize("seconds", [0.0, SHORT_S, ROUND_S, 1e9])
def test_turns_without_a_bound_never_postpone(seconds: float) -> None:
    line = Line()
    line.turns = Turns(round_s=math.inf)
    line.work(seconds)
    assert line.turns.may_begin(None)
