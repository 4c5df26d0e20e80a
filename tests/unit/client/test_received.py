"""Pulled records on their way to the user: slices, retries, and turns in ordered consumption."""

import pytest

from tianzhou.base.kinds import queue_key
from tianzhou.client.core.assigned_queue import AssignedQueue, Event, FlowLimits
from tianzhou.client.core.pulling import PullPlan, Records, records_of
from tianzhou.client.core.received import (
    DEAD,
    GROWING,
    FreeQueues,
    PulledRecords,
    again,
    has_failed_for_good,
    take_waiting,
)
from tianzhou.client.core.subscription import subscribe
from tianzhou.record.chunk import Entry, build, stamp
from tianzhou.record.ids import Host, encode_host
from tianzhou.wire.queues import MessageQueue

HOST = encode_host(Host("10.0.0.1", 10911))


def records(*bodies: bytes) -> Records:
    entries = [Entry(queue_key("T", 0), body, b"", born_host=HOST) for body in bodies]
    chunk = build(entries, store_host=HOST, record_crc=False)
    offsets = range(10, 10 + len(bodies))
    stamp(chunk, 0, len(chunk), queue_offsets=offsets, physical_offset=0, store_timestamp=5)
    return records_of(bytes(chunk.data), asked=10)


def assigned_queue(queue_id: int = 0, *bodies: bytes) -> AssignedQueue:
    """A queue in consumption, with these messages waiting and its lock granted until 100."""
    queue = MessageQueue(topic="T", broker_name="b", queue_id=queue_id)
    plan = PullPlan(
        group="g",
        queue=queue,
        subscription=subscribe("T", version=1),
        count_max=32,
        bytes_max=1 << 18,
        suspend_ms=0,
    )
    assigned = AssignedQueue(plan, 10, FlowLimits())
    assigned.handle(Event.ACQUIRED)
    assigned.locked_until = 100.0
    if bodies:
        assigned.waiting.append(PulledRecords(assigned, records(*bodies)))
    return assigned


def test_slices_are_in_flight_and_can_be_put_back() -> None:
    assigned = assigned_queue()
    pulled = PulledRecords(assigned, records(b"0", b"1", b"2"), times=2)
    part = pulled.take(2)
    assert (part.first, part.end, pulled.left, assigned.in_flight) == (0, 2, 1, 2)
    assert [message.body for message in part.messages()] == [b"0", b"1"]
    rest = part._replace(first=1).as_pulled()
    (message,) = rest.take(9).messages()
    assert (message.body, message.queue_offset, message.reconsume_times) == (b"1", 11, 2)


@pytest.mark.parametrize(("failed", "times"), [(True, 1), (False, 0)])
def test_again_counts_failed_deliveries(failed: bool, times: int) -> None:
    assigned = assigned_queue()
    (message,) = PulledRecords(assigned, records(b"0")).take(1).messages()
    (repeated,) = again(assigned, message, failed=failed).take(1).messages()
    assert (repeated.body, repeated.reconsume_times) == (b"0", times)


@pytest.mark.parametrize(
    ("level", "limit", "expected"),
    [(GROWING, -1, False), (GROWING, 2, False), (GROWING, 1, True), (DEAD, -1, True)],
)
def test_message_fails_for_good_by_choice_or_by_limit(
    level: int, limit: int, *, expected: bool
) -> None:
    pulled = PulledRecords(assigned_queue(), records(b"0"), times=1)
    (message,) = pulled.take(1).messages()
    assert has_failed_for_good(message, level, limit) is expected


def test_take_waiting_removes_records_that_are_all_started() -> None:
    assigned = assigned_queue(0, b"0", b"1")
    assert take_waiting(assigned, 1).end == 1
    assert len(assigned.waiting) == 1
    assert take_waiting(assigned, 5).end == 2
    assert not assigned.waiting


def test_free_queues_take_turns() -> None:
    free, first, second = FreeQueues(), assigned_queue(0, b"0", b"1"), assigned_queue(1, b"0")
    assert free.add(first)
    assert free.add(second)
    assert not free.add(first), "it is there already"
    taken = [free.take(1, 50.0) for _ in range(3)]
    assert [part and part.assigned for part in taken] == [first, second, None]
    assert not free.add(first), "a message of it is in flight"
    first.in_flight = second.in_flight = 0
    assert free.add(first)
    assert not free.add(second), "it has no waiting message"
    free.discard(first)
    assert not free


def test_free_queues_wait_for_locks_and_reject_revoked_queues() -> None:
    free, assigned = FreeQueues(), assigned_queue(0, b"0")
    assert free.add(assigned)
    assert free.take(1, 100.0) is None, "the lock has expired"
    assert len(free) == 1
    revoked = assigned_queue(1, b"0")
    revoked.handle(Event.REVOKED)
    assert not free.add(revoked)
    assigned.locked_until = 200.0
    assert free.take(1, 100.0) is not None
