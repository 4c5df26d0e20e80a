"""Kill the leaders of a Raft group repeatedly and measure how long clients are without one."""

import time
from pathlib import Path
from typing import Final

from tianzhou.testing.chaos import stage as shapes
from tianzhou.testing.chaos.cluster import Mode, wait_for
from tianzhou.testing.chaos.history import History, Kind, Outcome, Trouble
from tianzhou.testing.chaos.load import Foreigners, Load
from tianzhou.testing.chaos.producing import Pace
from tianzhou.testing.chaos.scenarios import WITHIN_S, Play, Scenario
from tianzhou.testing.chaos.stage import Stage

PACE: Final = Pace(producers=6, per_second=40.0)
BETWEEN: Final = 60
"""Acknowledged sends between two kills."""
MEDIAN_S_MAX: Final = 2.0
P99_S_MAX: Final = 5.0


def failovers(rank: int, rounds: int) -> Scenario:
    return Scenario(f"failovers-{rank}", Mode(), shapes.raft, PACE, rounds)


def waits(history: History, since: float) -> dict[str, float]:
    """Return how long each client waited for its next acknowledged send that started after
    `since`."""
    found: dict[str, float] = {}
    with history.adding:
        for send in reversed(history.sends):
            if send.began < since and send.ended < since:
                break
            if send.outcome is Outcome.OK and send.kind is Kind.PLAIN and send.began >= since:
                found[send.client] = send.ended - since
    return found


def percentile(values: list[float], share: float) -> float:
    """Return the smallest value that this share of values does not exceed."""
    ranked = sorted(values)
    return ranked[min(len(ranked) - 1, int(share * len(ranked)))]


class FailoverPlay(Play):
    """A play with many kills instead of one fault."""

    def _suffer(self, stage: Stage, load: Load) -> None:
        for number in range(self.scenario.rounds):
            self.tell(f"kill {number + 1} of {self.scenario.rounds}")
            load.wait_acknowledged(BETWEEN, WITHIN_S)
            stage.find_masters()
            self._fail_over(stage)
        load.wait_acknowledged(BETWEEN, WITHIN_S)
        self.report.silence_s = max(self.report.failovers_s)
        median = percentile(self.report.failovers_s, 0.5)
        slowest = percentile(self.report.failovers_s, 0.99)
        assert median <= MEDIAN_S_MAX, f"median {median:.2f} s: {self.report.failovers_s}"
        assert slowest <= P99_S_MAX, f"99th percentile {slowest:.2f} s: {self.report.failovers_s}"

    def _fail_over(self, stage: Stage) -> None:
        killed, history = stage.master, self.history
        began = time.monotonic()
        killed.server.kill()
        count = self.scenario.pace.producers
        wait_for(
            lambda: len(waits(history, began)) == count, WITHIN_S,
            lambda: f"only {sorted(waits(history, began))} send again",
        )  # fmt: skip
        self.report.failovers_s += waits(history, began).values()
        stage.cluster.start([killed])
        stage.find_masters()
        end = stage.master.log_end()
        wait_for(
            lambda: killed.log_end() >= end, WITHIN_S, lambda: f"{killed.name} is behind {end}"
        )
        history.troubles.append(Trouble("kill -9 of the leader", began, time.monotonic()))


def play_of(
    scenario: Scenario, directory: Path, seed: int, foreigners: Foreigners | None = None
) -> Play:
    """Create the play for a scenario."""
    kind = FailoverPlay if scenario.rounds else Play
    return kind(scenario, directory, seed, foreigners)
