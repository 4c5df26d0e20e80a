"""Arguments of users: what is allowed passes, everything else is named."""

from typing import Any

import pytest

from tianzhou.base.errors import UsageError
from tianzhou.client.core.arguments import (
    OFFSET_MAX,
    check_seconds,
    check_text,
    checked_count,
    checked_offset,
    checked_offsets,
    checked_queue,
    checked_queues,
)
from tianzhou.wire.queues import MessageQueue

QUEUE = MessageQueue(topic="t", broker_name="b", queue_id=0)


class Whole:
    """An integer of another library."""

    def __index__(self) -> int:
        return 7


def test_checked_arguments_that_are_valid_are_returned() -> None:
    assert checked_queue(QUEUE) is QUEUE
    assert checked_queues(iter((QUEUE,))) == [QUEUE]
    assert [checked_offset(offset) for offset in (0, Whole(), OFFSET_MAX)] == [0, 7, OFFSET_MAX]
    assert checked_offsets({QUEUE: Whole()}) == {QUEUE: 7}
    assert checked_count("count_max", 1) == 1
    check_seconds("wait_s", 0)
    check_text("topic", "t")


@pytest.mark.parametrize("offset", [-1, OFFSET_MAX + 1, 3.5, "3", None, b"3"])
def test_checked_offset_out_of_range_or_of_another_type_is_rejected(offset: Any) -> None:
    with pytest.raises(UsageError, match=r"^offset .*must be .*from 0 to 9223372036854775807$"):
        checked_offset(offset)
    with pytest.raises(UsageError, match=r"^offset "):
        checked_offsets({QUEUE: offset})


@pytest.mark.parametrize("seconds", ["1", None, float("nan"), float("inf")])
def test_check_seconds_rejects_all_but_finite_numbers(seconds: Any) -> None:
    with pytest.raises(UsageError, match=r"^wait_s .* number of seconds$"):
        check_seconds("wait_s", seconds)
