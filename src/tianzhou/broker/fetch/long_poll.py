"""Long polling: requests that wait for a message of a queue, each until its deadline.

Independent of what waits. A request that found nothing parks a waiter; when its queue grows, or its
deadline passes, `resume` runs for it, and may park it again. Pulls use it; POP can.
"""

from collections.abc import Callable, Iterable
from typing import Generic, Protocol, TypeVar

from tianzhou.base.kinds import QueueKey
from tianzhou.net.rpc import Peer


class Waiter(Protocol):
    """One waiting request. It keeps its own filter: `resume` decides what satisfies it."""

    peer: Peer
    deadline: float

    @property
    def group(self) -> str: ...


W = TypeVar("W", bound=Waiter)


class LongPolls(Generic[W]):
    """Owner: the broker loop."""

    def __init__(self, count_max: int, resume: Callable[[QueueKey, W, bool], None]) -> None:
        """`resume` is called with the queue, the waiter and whether it may be parked again."""
        self._count_max = count_max
        self._resume = resume
        self._waiters: dict[QueueKey, list[W]] = {}
        self._of_peer: dict[Peer, int] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    @property
    def is_full(self) -> bool:
        return self._count >= self._count_max

    def of_peer(self, peer: Peer) -> int:
        """The number of waiters of one connection."""
        return self._of_peer.get(peer, 0)

    def is_waiting(self, key: QueueKey, group: str) -> bool:
        """Whether a request of this group waits for this queue."""
        return any(
            waiter.group == group and waiter.peer.is_open for waiter in self._waiters.get(key, ())
        )

    def park(self, key: QueueKey, waiter: W) -> None:
        self._waiters.setdefault(key, []).append(waiter)
        self._of_peer[waiter.peer] = self._of_peer.get(waiter.peer, 0) + 1
        self._count += 1

    def arrived(self, key: QueueKey) -> None:
        """Resume every waiter of a queue that has new messages."""
        for waiter in self._take(key):
            if waiter.peer.is_open:
                self._resume(key, waiter, True)

    def wake(self, key: QueueKey, waiter: W) -> None:
        """Resume one waiter, unless it was resumed already."""
        row = self._waiters.get(key, [])
        kept = [other for other in row if other is not waiter]
        if len(kept) == len(row):
            return
        self._forget([waiter])
        if kept:
            self._waiters[key] = kept
        else:
            del self._waiters[key]
        if waiter.peer.is_open:
            self._resume(key, waiter, True)

    def expire(self, now: float) -> None:
        """Resume every waiter whose deadline has passed, for the last time."""
        for key, waiter in self._take_expired(now):
            self._resume(key, waiter, False)

    def _take(self, key: QueueKey) -> list[W]:
        taken = self._waiters.pop(key, [])
        self._forget(taken)
        return taken

    def _take_expired(self, now: float) -> list[tuple[QueueKey, W]]:
        """Remove expired waiters, and those of closed connections, which are not returned.

        All at once: resuming one may make messages visible, which resumes others.
        """
        expired: list[tuple[QueueKey, W]] = []
        for key in list(self._waiters):
            row = self._waiters[key]
            kept = [waiter for waiter in row if waiter.deadline > now and waiter.peer.is_open]
            if len(kept) == len(row):
                continue
            gone = [waiter for waiter in row if waiter.deadline <= now or not waiter.peer.is_open]
            self._forget(gone)
            if kept:
                self._waiters[key] = kept
            else:
                del self._waiters[key]
            expired += [(key, waiter) for waiter in gone if waiter.peer.is_open]
        return expired

    def _forget(self, waiters: Iterable[W]) -> None:
        for waiter in waiters:
            left = self._of_peer[waiter.peer] - 1
            if left:
                self._of_peer[waiter.peer] = left
            else:
                del self._of_peer[waiter.peer]
            self._count -= 1
