"""What may be committed while messages finish in any order, and when to stop pulling."""

import pytest

from tianzhou.base.errors import UsageError
from tianzhou.client.core.window import UNLIMITED, FlowLimits, Room, Window

SMALL = FlowLimits(queue_count=3, queue_bytes=100, queue_span=10)


def filled(*offsets: int, size: int = 10) -> Window:
    window = Window(offsets[0])
    window.add(offsets, [size] * len(offsets), offsets[-1] + 1)
    return window


def test_an_empty_window_may_commit_what_it_pulled() -> None:
    window = Window(7)
    assert window.committable == 7
    window.add([], [], 12)
    assert (window.committable, window.next_offset, window.count) == (12, 12, 0)


def test_the_third_may_not_be_committed_before_the_first() -> None:
    """Seed 001: three threads, the last one is done first."""
    window = filled(1, 2, 3)
    assert window.finish(3)
    assert window.committable == 1
    assert window.finish(1)
    assert window.committable == 2
    assert window.finish(2)
    assert window.committable == 4


def test_filtered_offsets_count_as_done() -> None:
    window = Window(0)
    window.add([2, 5], [1, 1], 9)
    assert window.committable == 2
    window.finish(2)
    assert window.committable == 5
    window.finish(5)
    assert window.committable == 9


def test_finishing_twice_changes_nothing() -> None:
    window = filled(4, 5)
    assert window.finish(4)
    assert not window.finish(4)
    assert not window.finish(99)
    assert (window.count, window.bytes, window.committable) == (1, 10, 5)


def test_too_many() -> None:
    window = filled(1, 2, 3)
    assert window.room(SMALL) is Room.TOO_MANY
    window.finish(2)
    assert window.room(SMALL) is Room.FREE


def test_too_large() -> None:
    window = filled(1, size=100)
    assert window.room(SMALL) is Room.TOO_LARGE
    window.finish(1)
    assert window.room(SMALL) is Room.FREE


def test_too_wide_only_without_order() -> None:
    window = filled(1)
    window.add([], [], 12)
    assert window.room(SMALL) is Room.TOO_WIDE
    assert window.room(SMALL.shared_by(1, orderly=True)) is Room.FREE
    window.finish(1)
    assert window.room(SMALL) is Room.FREE


def test_a_topic_shares_its_limit() -> None:
    limits = FlowLimits(topic_count=100, topic_bytes=10)
    assert limits.shared_by(3).queue_count == 33
    assert limits.shared_by(30).queue_bytes == 1
    assert FlowLimits().shared_by(3) == FlowLimits()


@pytest.mark.parametrize("wrong", ["queue_count", "queue_bytes", "queue_span", "topic_count"])
def test_limits_must_allow_something(wrong: str) -> None:
    with pytest.raises(UsageError, match=wrong):
        FlowLimits(**{wrong: 0})
    assert UNLIMITED == -1


def test_last() -> None:
    window = filled(3, 4)
    assert window.last == 4
    window.finish(3)
    window.finish(4)
    assert window.last is None
