"""An assigned queue: every cell of its table, scenarios in text form, the offset to commit while
messages finish in any order, when to stop pulling, and rates over the last minute."""

from pathlib import Path

import pytest

from tianzhou.base.errors import UsageError
from tianzhou.client.core.assigned_queue import (
    TABLE,
    UNLIMITED,
    Action,
    AssignedQueue,
    ConsumeRates,
    Event,
    FlowLimits,
    Room,
    State,
    TopicRates,
    Window,
    committable,
    queue_text,
)
from tianzhou.client.core.pulling import PullPlan
from tianzhou.client.core.subscription import subscribe
from tianzhou.wire.queues import MessageQueue

SCENARIOS = sorted((Path(__file__).parent / "scenarios" / "assigned_queue").glob("*.txt"))
QUEUE = MessageQueue(topic="t", broker_name="a", queue_id=0)
SMALL = FlowLimits(queue_count=3, queue_bytes=100, queue_span=10)


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


def test_assigned_queue_reports_idle_once() -> None:
    assigned = assigned_queue()
    calls: list[int] = []
    assigned.on_idle = lambda: calls.append(1)
    assigned.report_idle()
    assigned.report_idle()
    assert calls == [1]


def test_committable_is_that_of_the_window() -> None:
    assigned = assigned_queue()
    assigned.window.add([10, 11], [5, 5], 12)
    assigned.finish([10], 7.0)
    assert committable(assigned) == 11


def test_queue_text_names_broker_and_topic() -> None:
    assert queue_text(QUEUE) == "queue a:0 of topic t"


# The messages in work


def filled(*offsets: int, size: int = 10) -> Window:
    window = Window(offsets[0])
    window.add(offsets, [size] * len(offsets), offsets[-1] + 1)
    return window


def test_window_without_messages_commits_the_pulled_offset() -> None:
    window = Window(7)
    assert window.committable == 7
    window.add([], [], 12)
    assert (window.committable, window.next_offset, window.count) == (12, 12, 0)


def test_window_commits_only_up_to_the_first_unfinished_message() -> None:
    """Seed 001: three threads, the last one is done first."""
    window = filled(1, 2, 3)
    assert window.finish(3)
    assert window.committable == 1
    assert window.finish(1)
    assert window.committable == 2
    assert window.finish(2)
    assert window.committable == 4


def test_window_counts_filtered_offsets_as_finished() -> None:
    window = Window(0)
    window.add([2, 5], [1, 1], 9)
    assert window.committable == 2
    window.finish(2)
    assert window.committable == 5
    window.finish(5)
    assert window.committable == 9


def test_window_finish_twice_changes_nothing() -> None:
    window = filled(4, 5)
    assert window.finish(4)
    assert not window.finish(4)
    assert not window.finish(99)
    assert (window.count, window.bytes, window.committable) == (1, 10, 5)


def test_window_with_too_many_messages_has_no_room() -> None:
    window = filled(1, 2, 3)
    assert window.room(SMALL) is Room.TOO_MANY
    window.finish(2)
    assert window.room(SMALL) is Room.FREE


def test_window_with_too_many_bytes_has_no_room() -> None:
    window = filled(1, size=100)
    assert window.room(SMALL) is Room.TOO_LARGE
    window.finish(1)
    assert window.room(SMALL) is Room.FREE


def test_window_with_a_too_wide_span_has_no_room_unless_orderly() -> None:
    window = filled(1)
    window.add([], [], 12)
    assert window.room(SMALL) is Room.TOO_WIDE
    assert window.room(SMALL.shared_by(1, orderly=True)) is Room.FREE
    window.finish(1)
    assert window.room(SMALL) is Room.FREE


def test_flow_limits_of_a_topic_are_shared_by_its_queues() -> None:
    limits = FlowLimits(topic_count=100, topic_bytes=10)
    assert limits.shared_by(3).queue_count == 33
    assert limits.shared_by(30).queue_bytes == 1
    assert FlowLimits().shared_by(3) == FlowLimits()


@pytest.mark.parametrize("wrong", ["queue_count", "queue_bytes", "queue_span", "topic_count"])
def test_flow_limits_of_zero_are_rejected(wrong: str) -> None:
    with pytest.raises(UsageError, match=wrong):
        FlowLimits(**{wrong: 0})
    assert UNLIMITED == -1


def test_window_last_is_the_highest_unfinished_offset() -> None:
    window = filled(3, 4)
    assert window.last == 4
    window.finish(3)
    window.finish(4)
    assert window.last is None


# Rates


def test_consume_rates_of_an_unused_topic_are_zero() -> None:
    assert ConsumeRates(100.0).of("orders", 160.0) == TopicRates()


def test_consume_rates_are_per_second_and_times_are_averages() -> None:
    rates = ConsumeRates(100.0)
    rates.pulled("orders", 32, 0.004, 101.0)
    rates.pulled("orders", 8, 0.002, 105.0)
    rates.called("orders", 0.010, 30, 106.0)
    rates.called("orders", 0.020, 9, 107.0)
    rates.failed("orders", 1, 107.0)
    rates.finished("payments", 5, 107.0)
    figures = rates.of("orders", 110.0)
    assert figures.pulled == pytest.approx(4.0)
    assert figures.pull_ms == pytest.approx(3.0)
    assert figures.consumed == pytest.approx(3.9)
    assert figures.consume_ms == pytest.approx(15.0)
    assert (figures.failed, figures.failures) == (pytest.approx(0.1), 1)
    assert rates.of("payments", 110.0).consumed == pytest.approx(0.5)
    assert (rates.finished_count, rates.failed_count) == (44, 1)


def test_consume_rates_ignore_samples_older_than_a_minute() -> None:
    rates = ConsumeRates(0.0)
    for second in range(200):
        rates.finished("orders", 10 if second < 100 else 1, float(second))
    assert rates.of("orders", 200.0).consumed == pytest.approx(1.0, rel=0.2)
    assert rates.of("orders", 400.0) == TopicRates()
    assert rates.finished_count == 1100
