"""Which client reads which queue, inferred from the last pull of each group.

Clients assign queues among themselves without informing the broker. The owner of a queue pulls it,
and repeats that within the half minute that a pull may wait; a client that does not has lost the
queue or hangs.
"""

from typing import Final, NamedTuple

from tianzhou.base.kinds import QueueKey
from tianzhou.net.rpc import Peer

READERS_MAX: Final = 200_000
"""Pairs of group and queue that are recorded, about 200 bytes each. When the limit is reached, new
ones are recorded only after those with closed connections are dropped."""


class Pulled(NamedTuple):
    """The last pull of one queue for one group."""

    peer: Peer
    at_s: float
    """In monotonic time."""


class Readers:
    """Owner: the broker loop. Time is an argument."""

    def __init__(self) -> None:
        self._pulled: dict[str, dict[QueueKey, Pulled]] = {}
        self._count_at_most = 0

    def pulled(self, group: str, queue: QueueKey, peer: Peer, now_s: float) -> None:
        queues = self._pulled.get(group)
        if queues is None or queue not in queues:
            if not self._has_room():
                return
            queues = self._pulled.setdefault(group, {})
            self._count_at_most += 1
        queues[queue] = Pulled(peer, now_s)

    def of(self, group: str) -> dict[QueueKey, Pulled]:
        """The last pulls by queue, without those whose connection is closed."""
        held = self._pulled.get(group, {})
        return {queue: pulled for queue, pulled in held.items() if pulled.peer.is_open}

    def last(self, group: str, queue: QueueKey) -> Pulled | None:
        """The last pull, even if its connection is closed."""
        return self._pulled.get(group, {}).get(queue)

    def group_deleted(self, group: str) -> None:
        self._count_at_most -= len(self._pulled.pop(group, {}))

    def _has_room(self) -> bool:
        if self._count_at_most >= READERS_MAX:
            living = {group: self.of(group) for group in self._pulled}
            self._pulled = {group: queues for group, queues in living.items() if queues}
            self._count_at_most = sum(map(len, self._pulled.values()))
        return self._count_at_most < READERS_MAX
