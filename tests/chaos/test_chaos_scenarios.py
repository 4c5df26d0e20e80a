"""Scenarios with real processes. `make chaos` plays all of them; here are those that differ most.

Also here: scenarios in which something is really lost. They must fail, or the others prove nothing.
"""

from dataclasses import replace
from pathlib import Path

import pytest

from chaos.cpp_load import cpp_clients
from tianzhou.testing.chaos.faults import FAULTS
from tianzhou.testing.chaos.scenarios import SCENARIOS, Play, ScenarioFailed
from tianzhou.testing.chaos.stage import Stage

SEED = 1
QUICK = ("kill-master/sf-ar/alone", "kill-master/af-ar/two")


@pytest.mark.slow
@pytest.mark.parametrize("name", QUICK)
def test_what_was_promised_is_kept(name: str, tmp_path: Path, cpp_python: Path) -> None:
    scenario = SCENARIOS[name]
    # After a kill the C++ consumer waits half a minute for an answer that does not come.
    foreigners = cpp_clients(cpp_python, has_consumer=not scenario.what.stops_sends)
    Play(scenario, tmp_path / "cluster", SEED, foreigners).run()


def forget_the_end(stage: Stage) -> None:
    """Lose the last records that were acknowledged, as if they had never been synced."""
    path = max((stage.master.data / "commitlog").iterdir())
    data = bytearray(path.read_bytes())
    end = len(data.rstrip(b"\0"))
    data[end - 3_000 : end] = bytes(3_000)
    path.write_bytes(data)


@pytest.mark.slow
def test_a_real_loss_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fault = FAULTS["kill-master"]

    def damage_and_start(stage: Stage) -> None:
        forget_the_end(stage)
        fault.mend(stage)

    monkeypatch.setitem(FAULTS, "kill-master", replace(fault, mend=damage_and_start))
    play = Play(SCENARIOS["kill-master/af-ar/alone"], tmp_path / "cluster", SEED)
    play.delivered_within_s = 3.0
    with pytest.raises(ScenarioFailed, match="nothing_acknowledged_is_lost") as caught:
        play.run()
    (note,) = caught.value.__notes__
    assert "make chaos ONLY=kill-master/af-ar/alone SEED=1" in note
    assert (tmp_path / "cluster" / "history.jsonl").stat().st_size > 10_000
