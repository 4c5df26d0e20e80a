"""Alarms are collected from every source, problems first."""

from tianzhou.broker.alarms import Alarm, Alarms


def alarm(kind: str, since_ms: int, *, is_problem: bool = True) -> Alarm:
    return Alarm(kind=kind, text="t", remedy="r", since_ms=since_ms, is_problem=is_problem)


def test_current_lists_problems_first_then_the_oldest() -> None:
    alarms = Alarms()
    alarms.add(lambda: [alarm("late", 3), alarm("early", 1)])
    alarms.add(lambda: [alarm("warning", 0, is_problem=False), alarm("middle", 2)])
    assert [one.kind for one in alarms.current()] == ["early", "middle", "late", "warning"]


def test_current_forgets_a_condition_that_ended() -> None:
    alarms, found = Alarms(), [alarm("full", 1)]
    alarms.add(lambda: found)
    assert alarms.current() == found
    found.clear()
    assert alarms.current() == []
