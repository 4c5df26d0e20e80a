"""Queue locks: one client of a group at a time, for a lease."""

from tianzhou.broker.groups.locks import Locks
from tianzhou.wire.queues import MessageQueue

QUEUES = [MessageQueue(topic="t", broker_name="b", queue_id=number) for number in range(3)]


def test_queue_lock_is_exclusive_until_the_lease_ends() -> None:
    locks = Locks(60_000)
    assert locks.lock("g", "a", QUEUES, 0) == QUEUES
    assert locks.lock("g", "b", QUEUES, 59_999) == []
    assert locks.lock("g", "b", QUEUES, 60_001) == QUEUES
    assert locks.lock("g", "a", QUEUES, 60_002) == []


def test_queue_lock_renewal_extends_the_lease() -> None:
    locks = Locks(60_000)
    locks.lock("g", "a", QUEUES[:1], 0)
    assert locks.lock("g", "a", QUEUES[:1], 50_000) == QUEUES[:1]
    assert locks.lock("g", "b", QUEUES[:1], 100_000) == []


def test_queue_locks_are_independent_per_queue() -> None:
    locks = Locks(60_000)
    locks.lock("g", "a", QUEUES[:1], 0)
    assert locks.lock("g", "b", QUEUES, 1) == QUEUES[1:]


def test_queue_locks_are_independent_per_group() -> None:
    locks = Locks(60_000)
    locks.lock("g", "a", QUEUES, 0)
    assert locks.lock("h", "b", QUEUES, 0) == QUEUES


def test_queue_lock_is_released_by_its_owner_only() -> None:
    locks = Locks(60_000)
    locks.lock("g", "a", QUEUES, 0)
    locks.unlock("g", "b", QUEUES)
    assert locks.lock("g", "b", QUEUES, 1) == []
    locks.unlock("g", "a", QUEUES[:2])
    assert locks.lock("g", "b", QUEUES, 1) == QUEUES[:2]
    locks.unlock("unknown", "a", QUEUES)


def test_queue_locks_of_a_leaving_client_are_released() -> None:
    locks = Locks(60_000)
    locks.lock("g", "a", QUEUES, 0)
    assert locks.is_locked("g", 1)
    locks.release("g", "a")
    assert not locks.is_locked("g", 1)
    assert locks.lock("g", "b", QUEUES, 1) == QUEUES


def test_queue_lock_with_an_expired_lease_is_free() -> None:
    locks = Locks(1_000)
    locks.lock("g", "a", QUEUES, 0)
    assert locks.is_locked("g", 1_000)
    assert not locks.is_locked("g", 1_001)
