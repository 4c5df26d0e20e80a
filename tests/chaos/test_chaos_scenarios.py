"""Scenarios with real processes. `make chaos` runs all; here are those that differ most.

Some scenarios here really lose something. They must fail, or the others prove nothing.
"""

from dataclasses import replace
from pathlib import Path

import pytest

from chaos.cpp_load import cpp_clients
from tianzhou.testing.chaos import producing
from tianzhou.testing.chaos import stage as shapes
from tianzhou.testing.chaos.administering import ENOUGH, administrators
from tianzhou.testing.chaos.cluster import CannotMount, Mode
from tianzhou.testing.chaos.faults import FAULTS
from tianzhou.testing.chaos.guarantees import Guarantees
from tianzhou.testing.chaos.history import History, Kind, Outcome, Send, Trouble
from tianzhou.testing.chaos.producing import Answer
from tianzhou.testing.chaos.scenarios import (
    ELECTION_S,
    Play,
    Scenario,
    ScenarioFailed,
    failovers,
    play_of,
    surprising_elections,
)
from tianzhou.testing.chaos.stage import Stage
from tianzhou.testing.chaos.table import ADMINISTERED, QUICK, SCENARIOS

SEED = 1
FAILOVERS = 10
"""The number of changes in each of two clusters."""
OTHER = {
    Kind.COMMITTED: Kind.ROLLED_BACK,
    Kind.ROLLED_BACK: Kind.COMMITTED,
    Kind.DELAYED: Kind.DELAYED,
}
SCENARIO_S = 240
"""For six processes on a busy machine; on an idle one a scenario takes ten seconds, and ten
failovers take half a minute."""


@pytest.mark.slow
@pytest.mark.timeout(SCENARIO_S)
@pytest.mark.parametrize("name", QUICK)
def test_scenario_keeps_all_guarantees(name: str, tmp_path: Path, cpp_python: Path) -> None:
    scenario = SCENARIOS[name]
    play = Play(scenario, tmp_path / "cluster", SEED, cpp_clients(cpp_python, scenario))
    try:
        play.run()
    except CannotMount as error:
        pytest.skip(f"a small disk can't be mounted: {error}")


@pytest.mark.slow
@pytest.mark.timeout(SCENARIO_S)
@pytest.mark.parametrize("name", ADMINISTERED)
def test_changes_sent_to_every_member_are_linear(name: str, tmp_path: Path) -> None:
    """Topics, groups, resets, settings and members are changed all the time, at any member."""
    play = Play(SCENARIOS[name], tmp_path / "cluster", SEED, administrators(SEED))
    play.run()
    changes = [change for change in play.history.changes if change.name]
    ok = [change for change in changes if change.outcome is Outcome.OK]
    refused = [change for change in changes if change.outcome is Outcome.REFUSED]
    assert len(ok) >= ENOUGH, len(changes)
    assert len(refused) >= ENOUGH, len(changes)
    assert len(play.history.placed) >= ENOUGH
    assert len(play.history.views) == len({view.member for view in play.history.views}) > 1


@pytest.mark.slow
@pytest.mark.timeout(SCENARIO_S)
@pytest.mark.parametrize("rank", [0, 1])
def test_repeated_leader_kills_keep_failover_short(
    rank: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The time to a client's next acknowledged send: 2 s in the median, 5 s at p99. Every kill
    is followed by an election, which is found in the logs."""
    elected: list[float] = []
    found = Stage.elections

    def elections(stage: Stage) -> list[float]:
        elected.extend(found(stage))
        return elected

    monkeypatch.setattr(Stage, "elections", elections)
    play = play_of(failovers(rank, FAILOVERS), tmp_path / "cluster", SEED)
    report = play.run()
    assert len(report.failovers_s) == FAILOVERS * 6
    kills = [trouble for trouble in play.history.troubles if "kill -9" in trouble.what]
    assert len(kills) == FAILOVERS
    for kill in kills:
        assert any(kill.began <= at <= kill.ended for at in elected), (kill, elected)


def test_election_outside_of_faults_counts_as_a_fault() -> None:
    history = History()
    history.sends.append(Send("one", "one-1", 100.0, 100.1, Outcome.OK))
    history.troubles.append(Trouble("kill -9 of the leader", 110.0, 115.0))
    (found,) = surprising_elections([90.0, 112.0, 130.0], history)
    assert (found.began, found.ended) == (130.0 - ELECTION_S, 130.0)


def drop_the_end(stage: Stage) -> None:
    """Lose the last acknowledged records, as if they had never been synced."""
    path = max((stage.master.data / "commitlog").iterdir())
    data = bytearray(path.read_bytes())
    end = len(data.rstrip(b"\0"))
    data[end - 3_000 : end] = bytes(3_000)
    path.write_bytes(data)


@pytest.mark.slow
def test_lost_acknowledged_messages_are_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fault = FAULTS["kill-master"]

    def damage_and_start(stage: Stage) -> None:
        drop_the_end(stage)
        fault.repair(stage)

    monkeypatch.setitem(FAULTS, "kill-master", replace(fault, repair=damage_and_start))
    play = Play(SCENARIOS["kill-master/af-ar/alone"], tmp_path / "cluster", SEED)
    play.delivered_within_s = 3.0
    with pytest.raises(ScenarioFailed, match="nothing_acknowledged_is_lost") as caught:
        play.run()
    (note,) = caught.value.__notes__
    assert "make chaos ONLY=kill-master/af-ar/alone SEED=1" in note
    assert (tmp_path / "cluster" / "history.jsonl").stat().st_size > 10_000


@pytest.mark.slow
@pytest.mark.timeout(SCENARIO_S)
def test_wrong_decisions_and_early_deliveries_are_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Commits are reported as rollbacks and vice versa, and delays as longer than they were."""
    honest = producing.deferred_send

    def lying(
        client: str, value: str, began: float, answer: Answer, *, kind: Kind, due: float = 0.0
    ) -> Send:
        return honest(client, value, began, answer, kind=OTHER[kind], due=due + 2.0)

    monkeypatch.setattr(producing, "deferred_send", lying)
    scenario = Scenario("none", Mode(), shapes.alone)
    with pytest.raises(ScenarioFailed) as caught:
        Play(scenario, tmp_path / "cluster", SEED).run()
    for rule in (
        "nothing_comes_early",
        "transactions_end_as_decided",
        "nothing_acknowledged_is_lost",
    ):
        assert f"{rule}: " in str(caught.value)


@pytest.mark.slow
@pytest.mark.timeout(SCENARIO_S)
def test_broken_guarantee_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A master that does not wait for its slave must not claim that it did."""

    def overstated(_: Scenario, groups: tuple[str, ...]) -> Guarantees:
        return Guarantees(groups, waits_for_slave=True)

    monkeypatch.setattr(Scenario, "guarantees", overstated)
    with pytest.raises(ScenarioFailed, match="no_slave_no_promise"):
        Play(SCENARIOS["cut-to-slave/af-ar"], tmp_path / "cluster", SEED).run()
