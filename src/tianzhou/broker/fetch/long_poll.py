"""Pulls that wait for a message: by queue, each with the moment when it is answered anyway."""

from collections.abc import Iterable
from dataclasses import dataclass

from tianzhou.base.kinds import QueueKey
from tianzhou.broker.groups.subscriptions import Filter
from tianzhou.net.rpc import Peer
from tianzhou.wire._generated_headers_pull import PullMessageRequest
from tianzhou.wire.header import SerialiseType


@dataclass(slots=True)
class Hold:
    """One waiting pull."""

    peer: Peer
    opaque: int
    serialise_type: SerialiseType
    request: PullMessageRequest
    filter: Filter
    offset: int
    """Everything before this was looked at and does not match."""
    deadline: float
    topic_sys_flag: int = 0
    group_sys_flag: int = 0
    """Repeated in the response."""


class Holds:
    """Owner: the broker loop."""

    def __init__(self, count_max: int) -> None:
        self._count_max = count_max
        self._holds: dict[QueueKey, list[Hold]] = {}
        self._of_peer: dict[Peer, int] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    @property
    def is_full(self) -> bool:
        return self._count >= self._count_max

    def of_peer(self, peer: Peer) -> int:
        """How many of one connection wait."""
        return self._of_peer.get(peer, 0)

    def is_waiting(self, key: QueueKey, group: str) -> bool:
        """Whether a pull of this group waits for this queue."""
        return any(
            hold.request.consumer_group == group and hold.peer.is_open
            for hold in self._holds.get(key, ())
        )

    def park(self, key: QueueKey, hold: Hold) -> None:
        self._holds.setdefault(key, []).append(hold)
        self._of_peer[hold.peer] = self._of_peer.get(hold.peer, 0) + 1
        self._count += 1

    def _forget(self, holds: Iterable[Hold]) -> None:
        for hold in holds:
            left = self._of_peer[hold.peer] - 1
            if left:
                self._of_peer[hold.peer] = left
            else:
                del self._of_peer[hold.peer]
            self._count -= 1

    def take(self, key: QueueKey) -> list[Hold]:
        """All that wait for this queue; those still not satisfied are parked again."""
        taken = self._holds.pop(key, [])
        self._forget(taken)
        return taken

    def take_expired(self, now: float) -> list[tuple[QueueKey, Hold]]:
        """Those whose time is up; those of closed connections are dropped on the way.

        All at once: to answer one may bring messages to light, and others are taken for them.
        """
        expired: list[tuple[QueueKey, Hold]] = []
        for key in list(self._holds):
            row = self._holds[key]
            kept = [hold for hold in row if hold.deadline > now and hold.peer.is_open]
            if len(kept) == len(row):
                continue
            gone = [hold for hold in row if hold.deadline <= now or not hold.peer.is_open]
            self._forget(gone)
            if kept:
                self._holds[key] = kept
            else:
                del self._holds[key]
            expired += [(key, hold) for hold in gone if hold.peer.is_open]
        return expired
