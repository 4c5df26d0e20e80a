"""Every rule detects the errors that it exists for, and reports nothing for valid histories."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from chaos.forgeries import WRONG
from chaos.sound_history import ODD_BUT_RIGHT, Case, place_of, sound
from tianzhou.testing.chaos.checkers import RULES, Rule, complaints
from tianzhou.testing.chaos.evidence import Evidence, Replica
from tianzhou.testing.chaos.guarantees import Guarantees
from tianzhou.testing.chaos.history import History, Outcome, Send
from tianzhou.testing.kit.stopwatch import Stopwatch

FORGED = [(rule, forge) for rule, forges in WRONG.items() for forge in forges]
OPERATIONS = 60_000
CHECK_S = 30.0
"""For a busy machine; on an idle one it takes half a second."""


def test_checkers_accept_a_valid_history() -> None:
    case = sound()
    assert complaints(case.history, case.found, case.guarantees) == []


@pytest.mark.parametrize("change", ODD_BUT_RIGHT, ids=lambda change: change.__name__)
def test_checkers_accept_unusual_but_valid_histories(change: Callable[[Case], None]) -> None:
    case = sound()
    change(case)
    assert complaints(case.history, case.found, case.guarantees) == []


@pytest.mark.parametrize(
    ("rule", "forge"), FORGED, ids=[f"{rule.__name__}-{forge.__name__}" for rule, forge in FORGED]
)
def test_checker_detects_a_forged_history(rule: Rule, forge: Callable[[Case], None]) -> None:
    case = sound()
    forge(case)
    reported = list(rule(case.history, case.found, case.guarantees))
    assert reported, f"{rule.__name__} reported nothing"
    assert any(
        text.startswith(rule.__name__)
        for text in complaints(case.history, case.found, case.guarantees)
    )


def test_every_checker_has_a_forged_history() -> None:
    assert set(WRONG) == set(RULES)
    assert len({forge for forges in WRONG.values() for forge in forges}) >= 36


def test_checkers_ignore_guarantees_of_other_configurations() -> None:
    case = sound()
    stored = dict(case.found.replicas[0].stored)
    for serial in (18, 19):  # the end is lost when a master dies whose slave is behind
        del stored[place_of(serial)]
    found = Evidence((Replica("promoted", stored),), 1)
    assert complaints(case.history, found, Guarantees())
    weak = Guarantees(keeps_acknowledged=False)
    assert complaints(case.history, found, weak) == []


def test_number_of_reported_violations_is_limited() -> None:
    case = sound()
    found = replace(case.found, replicas=(Replica("master", {}),))
    reported = complaints(case.history, found, case.guarantees)
    of_rule = [text for text in reported if text.startswith("nothing_acknowledged_is_lost")]
    assert len(of_rule) == 11
    assert of_rule[-1].endswith("and 10 more")


def test_history_measures_silence_and_volume() -> None:
    history = sound().history
    assert history.acknowledged() == 20
    assert history.acknowledged(105.0, 108.0) == 3
    assert history.longest_silence(100.0, 125.0) == pytest.approx(5.5)
    history.sends = [send for send in history.sends if not 107 < send.ended < 112]
    assert history.longest_silence(100.0, 120.0) == pytest.approx(6.0)
    assert history.values_of("readers") == {f"v{serial}" for serial in range(20)}
    assert history.values_of("strangers") == set()


def test_history_file_is_ordered_by_time(tmp_path: Path) -> None:
    case = sound()
    case.history.write(tmp_path / "history.jsonl")
    rows = [json.loads(line) for line in (tmp_path / "history.jsonl").read_text().splitlines()]
    assert [row["f"] for row in rows[:3]] == ["send", "deliver", "send"]
    assert rows[0]["outcome"] == "ok"
    assert rows[0]["place"] == [["broker-a", 0], 0]
    assert len(rows) == 20 + 20 + 22


@pytest.mark.slow
def test_checkers_handle_long_histories_in_time() -> None:
    """A rule with quadratic cost would take hours."""
    case = sound()
    history, (delivery, *_) = History(), case.history.deliveries
    stored = {place_of(serial): f"v{serial}" for serial in range(OPERATIONS // 2)}
    for serial, (place, value) in enumerate(stored.items()):
        at = 100 + serial / 1000
        history.sends.append(Send("producer-0", value, at, at + 0.0005, Outcome.OK, place))
        history.deliveries.append(replace(delivery, value=value, place=place, at=at))
    found = replace(case.found, replicas=(Replica("master", stored), Replica("slave", stored)))
    found = replace(found, committed={})
    watch = Stopwatch()
    assert complaints(history, found, case.guarantees) == []
    assert watch.seconds() < CHECK_S
