"""Messages that wait for a worker: taken once, counted while in flight, dropped with a queue."""

from test_received import assigned_queue, records

from tianzhou.client.consume.deliveries import PollDelivery, Ready
from tianzhou.client.core.assigned_queue import AssignedQueue
from tianzhou.client.core.received import PulledRecords


def pulled(assigned: AssignedQueue, count: int) -> PulledRecords:
    found = records(*[b"body"] * count)
    assigned.window.add(found.offsets, found.sizes, 10 + count)
    return PulledRecords(assigned, found)


def test_ready_counts_waiting_messages_and_those_in_flight() -> None:
    ready, assigned = Ready(), assigned_queue()
    ready.put(pulled(assigned, 3))
    part = ready.take(2)
    assert part is not None
    assert (part.first, part.end, ready.count, assigned.in_flight) == (0, 2, 1, 2)
    last = ready.take(2)
    assert last is not None
    assert (last.first, last.end, ready.count, ready.take()) == (2, 3, 0, None)


def test_settle_reports_idle_when_the_last_message_is_settled() -> None:
    ready, assigned, calls = Ready(), assigned_queue(), list[int]()
    ready.put(pulled(assigned, 2))
    ready.take(2)
    assigned.on_idle = lambda: calls.append(1)
    ready.settle(assigned)
    assert (assigned.in_flight, calls) == (1, [])
    ready.settle(assigned)
    assert (assigned.in_flight, calls) == (0, [1])


def test_discard_drops_the_messages_of_one_queue() -> None:
    ready, first, second = Ready(), assigned_queue(0), assigned_queue(1)
    ready.put(pulled(first, 2))
    ready.put(pulled(second, 3))
    ready.discard(first)
    part = ready.take(9)
    assert part is not None
    assert (part.assigned, ready.count) == (second, 0)


def test_polls_return_messages_of_several_queues_and_finish_them() -> None:
    polls, first, second = PollDelivery(), assigned_queue(0), assigned_queue(1)
    polls.offer(pulled(first, 2))
    polls.offer(pulled(second, 3))
    assert polls.arrived.is_set()
    assert [message.queue.queue_id for message in polls.take(4)] == [0, 0, 1, 1]
    assert (first.window.count, second.window.count, second.in_flight) == (0, 1, 0)
    polls.offsets.allow()
    assert (polls.offsets.committable(first), polls.offsets.committable(second)) == (12, 12)
