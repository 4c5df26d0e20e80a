"""Where a group starts, and what a consumer that polls may commit."""

from datetime import UTC, datetime

import pytest
from test_received import assigned_queue

from tianzhou.base.errors import UsageError
from tianzhou.client.core.assigned_queue import Event
from tianzhou.client.core.offsets import (
    Ask,
    PolledOffsets,
    StartPosition,
    epoch_ms,
    start_rule,
)
from tianzhou.wire.queues import MessageQueue

Q0 = MessageQueue(topic="T", broker_name="b", queue_id=0)
Q1 = MessageQueue(topic="T", broker_name="b", queue_id=1)


@pytest.mark.parametrize(
    ("start", "plain", "retry"),
    [
        (StartPosition.FIRST, Ask.ZERO, Ask.ZERO),
        (StartPosition.LAST, Ask.MAX, Ask.ZERO),
        ("20260131235959", Ask.TIME, Ask.MAX),
        (datetime(2026, 1, 31, tzinfo=UTC), Ask.TIME, Ask.MAX),
    ],
)
def test_start_rule_asks_for_the_position_of_a_new_group(
    start: StartPosition | str | datetime, plain: Ask, retry: Ask
) -> None:
    rule = start_rule(start)
    assert rule.ask_for("T") is plain
    assert rule.ask_for("%RETRY%g") is retry


def test_epoch_ms_accepts_datetimes_java_timestamps_and_numbers() -> None:
    assert epoch_ms(datetime(1970, 1, 1, 0, 0, 1, 500_000, UTC)) == 1500
    local = datetime(2026, 1, 31, 23, 59, 59).astimezone()
    assert epoch_ms("20260131235959") == local.timestamp() * 1000
    assert epoch_ms(12) == 12


@pytest.mark.parametrize("wrong", ["2026013123595", "20260231000000", "yesterday", ""])
def test_epoch_ms_rejects_invalid_timestamps(wrong: str) -> None:
    with pytest.raises(UsageError, match="yyyyMMddHHmmss"):
        epoch_ms(wrong)


def test_polled_offsets_are_committable_when_allowed() -> None:
    offsets, first, second = PolledOffsets(), assigned_queue(0), assigned_queue(1)
    offsets.put(Q0, 5)
    assert offsets.committable(first) is None
    offsets.allow()
    offsets.put(Q0, 9)
    offsets.allow({Q1: 3})
    assert (offsets.committable(first), offsets.committable(second)) == (5, 3)


def test_polled_offsets_of_released_queue_are_returned_once() -> None:
    offsets, assigned = PolledOffsets(), assigned_queue(0)
    offsets.put(Q0, 5)
    offsets.allow()
    offsets.put(Q0, 9)
    assigned.handle(Event.MOVED)
    assert offsets.committable(assigned) == 5
    offsets.allow()
    assert offsets.committable(assigned) is None, "offset 9 belongs to the released queue"
