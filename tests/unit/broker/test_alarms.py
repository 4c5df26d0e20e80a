"""Alarms: collected from every source, problems first; the log tells when they begin and end."""

import logging

import pytest

from tianzhou.broker.alarms import Alarm, AlarmLog, Alarms, Since
from tianzhou.testing.sim.clock import ManualClock


def alarm(kind: str, since_ms: int, *, is_problem: bool = True) -> Alarm:
    return Alarm(kind=kind, text="t", remedy="r", since_ms=since_ms, is_problem=is_problem)


def test_alarms_current_lists_problems_first_then_the_oldest() -> None:
    alarms = Alarms()
    alarms.add(lambda: [alarm("late", 3), alarm("early", 1)])
    alarms.add(lambda: [alarm("warning", 0, is_problem=False), alarm("middle", 2)])
    assert [one.kind for one in alarms.current()] == ["early", "middle", "late", "warning"]


def test_alarms_current_omits_a_condition_that_ended() -> None:
    alarms, found = Alarms(), [alarm("full", 1)]
    alarms.add(lambda: found)
    assert alarms.current() == found
    found.clear()
    assert alarms.current() == []


def test_alarms_since_is_kept_until_the_condition_ends() -> None:
    clock = ManualClock()
    since, begun_ms = Since(clock), clock.now_ms()
    assert since.began_ms("full", holds=False) == 0
    assert since.began_ms("full", holds=True) == begun_ms
    clock.advance(seconds=5)
    assert since.began_ms("full", holds=True) == begun_ms
    assert since.began_ms("full", holds=False) == 0
    assert since.began_ms("full", holds=True) == begun_ms + 5_000


def test_alarms_since_keep_drops_conditions_not_listed() -> None:
    clock = ManualClock()
    since, begun_ms = Since(clock), clock.now_ms()
    since.began_ms("a", holds=True)
    since.began_ms("b", holds=True)
    clock.advance(seconds=5)
    since.keep({"a"})
    assert since.began_ms("a", holds=True) == begun_ms
    assert since.began_ms("b", holds=True) == begun_ms + 5_000


def test_alarm_log_has_one_line_at_the_start_and_one_at_the_end(
    caplog: pytest.LogCaptureFixture,
) -> None:
    alarms, found = Alarms(), [alarm("full", 1), alarm("slow", 2, is_problem=False)]
    alarms.add(lambda: found)
    lines = AlarmLog(alarms)
    with caplog.at_level(logging.INFO, "tianzhou.broker"):
        for _ in range(3):
            lines.check()
        found.remove(alarm("full", 1))
        for _ in range(3):
            lines.check()
        found.append(alarm("full", 9))
        lines.check()
    written = [(line.levelname, line.message, vars(line)["kind"]) for line in caplog.records]
    assert written == [
        ("ERROR", "alarm.began", "full"),
        ("WARNING", "alarm.began", "slow"),
        ("INFO", "alarm.ended", "full"),
        ("ERROR", "alarm.began", "full"),
    ]
    assert vars(caplog.records[0])["remedy"] == "r"
