"""Queue locks for ordered consumption: one client of a group at a time, for a lease."""

from typing import Final, NamedTuple

from tianzhou.net.rpc import RequestRejected
from tianzhou.wire._generated_codes import ResponseCode
from tianzhou.wire.queues import MessageQueue

LOCKS_MAX: Final = 200_000
"""Locks at a time. Each takes a few hundred bytes, and any client can request any lock."""


class _Lock(NamedTuple):
    client_id: str
    until_ms: int


class Locks:
    """Owner: the broker loop. Time is an argument."""

    def __init__(self, lease_ms: int) -> None:
        self._lease_ms = lease_ms
        self._locks: dict[str, dict[MessageQueue, _Lock]] = {}
        self._count_at_most = 0

    def lock(
        self, group: str, client_id: str, queues: list[MessageQueue], now_ms: int
    ) -> list[MessageQueue]:
        """Acquire or renew locks; returns the queues that were free, expired or locked by the
        client."""
        self._make_room(len(queues), now_ms)
        held = self._locks.setdefault(group, {})
        granted: list[MessageQueue] = []
        for queue in queues:
            lock = held.get(queue)
            if lock is None or lock.client_id == client_id or lock.until_ms < now_ms:
                held[queue] = _Lock(client_id, now_ms + self._lease_ms)
                granted.append(queue)
        return granted

    def _make_room(self, count: int, now_ms: int) -> None:
        """Drop expired leases if there are many locks. Raises RequestRejected if that is not
        enough."""
        self._count_at_most += count
        if self._count_at_most <= LOCKS_MAX:
            return
        living = {
            group: {queue: lock for queue, lock in held.items() if lock.until_ms >= now_ms}
            for group, held in self._locks.items()
        }
        self._locks = {group: held for group, held in living.items() if held}
        self._count_at_most = count + sum(map(len, self._locks.values()))
        if self._count_at_most > LOCKS_MAX:
            self._count_at_most -= count
            raise RequestRejected(
                ResponseCode.SYSTEM_BUSY,
                f"{self._count_at_most} queues are locked, and {LOCKS_MAX} can be at a time; "
                "retry when leases have run out, in a minute",
            )

    def unlock(self, group: str, client_id: str, queues: list[MessageQueue]) -> None:
        held = self._locks.get(group, {})
        for queue in queues:
            lock = held.get(queue)
            if lock is not None and lock.client_id == client_id:
                del held[queue]

    def release(self, group: str, client_id: str) -> None:
        """Release the locks of a client that left, so that others need not wait for its leases."""
        held = self._locks.get(group, {})
        self.unlock(group, client_id, list(held))

    def holder(self, group: str, queue: MessageQueue, now_ms: int) -> str | None:
        """The client that currently holds the lock of this queue."""
        lock = self._locks.get(group, {}).get(queue)
        return lock.client_id if lock is not None and lock.until_ms >= now_ms else None

    def is_locked(self, group: str, now_ms: int) -> bool:
        """Whether the group currently consumes in order."""
        return any(lock.until_ms >= now_ms for lock in self._locks.get(group, {}).values())
