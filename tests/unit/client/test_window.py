"""What may be committed while messages finish in any order, and when to stop pulling."""

import pytest

from tianzhou.base.errors import UsageError
from tianzhou.client.core.window import UNLIMITED, FlowLimits, Room, Window

SMALL = FlowLimits(queue_count=3, queue_bytes=100, queue_span=10)


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
