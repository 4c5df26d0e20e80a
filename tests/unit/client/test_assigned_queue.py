"""The machine of an assigned queue: every cell of its table, and scenarios in text form."""

from pathlib import Path

import pytest

from tianzhou.client.core.assigned_queue import TABLE, Action, AssignedQueue, Event, State
from tianzhou.client.core.pulling import PullPlan
from tianzhou.client.core.subscription import subscribe
from tianzhou.client.core.window import FlowLimits
from tianzhou.wire.queues import MessageQueue

SCENARIOS = sorted((Path(__file__).parent / "scenarios" / "assigned_queue").glob("*.txt"))
QUEUE = MessageQueue(topic="t", broker_name="a", queue_id=0)


def assigned_queue(limits: FlowLimits | None = None) -> AssignedQueue:
    plan = PullPlan(
        group="g",
        queue=QUEUE,
        subscription=subscribe("t", version=1),
        count_max=32,
        bytes_max=1 << 18,
        suspend_ms=0,
    )
    return AssignedQueue(plan, 10, limits or FlowLimits())


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_assigned_queue_scenario_has_the_expected_actions(path: Path) -> None:
    assigned = assigned_queue()
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if not line or line.startswith("#"):
            continue
        event, expected = line.split(" -> ")
        action = assigned.handle(Event[event.upper()])
        assert f"{action.value} {assigned.state.name.lower()}" == expected, f"line {number}"


def test_assigned_queue_table_defines_every_cell() -> None:
    assert {(state, event) for state, row in TABLE.items() for event in row} == {
        (state, event) for state in State for event in Event
    }


def test_assigned_queue_table_never_leads_back_to_consumption() -> None:
    for state in (State.DRAINING, State.RELEASED):
        assert all(following >= state for following, _ in TABLE[state].values())


def test_assigned_queue_impossible_event_is_an_assertion() -> None:
    with pytest.raises(AssertionError, match="DRAINED"):
        assigned_queue().handle(Event.DRAINED)


def test_assigned_queue_every_action_is_used() -> None:
    used = {action for row in TABLE.values() for _, action in row.values()}
    assert used == set(Action)


def test_assigned_queue_finish_reports_room_once() -> None:
    assigned = assigned_queue(FlowLimits(queue_count=2))
    assigned.window.add([10, 11], [5, 5], 12)
    calls: list[int] = []
    assigned.on_room = lambda: calls.append(1)
    assert not assigned.has_room
    assert assigned.finish([10], 7.0) == 1
    assert assigned.finish([10, 11], 8.0) == 1, "a message is finished once"
    assert (calls, assigned.finished_at) == ([1], 8.0)


def test_assigned_queue_settle_reports_idle_once() -> None:
    assigned = assigned_queue()
    assigned.in_flight = 2
    calls: list[int] = []
    assigned.on_idle = lambda: calls.append(1)
    assert not assigned.settle(1)
    assert assigned.settle(1)
    assigned.report_idle()
    assigned.report_idle()
    assert calls == [1]
