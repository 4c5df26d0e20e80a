"""Who reads which queue, as the broker sees it: by the last pull of each group.

Clients share out queues among themselves and tell nobody. But whoever owns a queue pulls it, and
pulls again within the half minute that a pull may wait; who does not, has lost it or hangs.
"""

from typing import Final, NamedTuple

from tianzhou.base.kinds import QueueKey
from tianzhou.net.rpc import Peer

READERS_MAX: Final = 200_000
"""Queues of groups that are watched, about 200 bytes each. Beyond it nothing new is noted until
some of those go whose connections are closed."""


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
        """By queue; those whose connection is gone are left out."""
        held = self._pulled.get(group, {})
        return {queue: pulled for queue, pulled in held.items() if pulled.peer.is_open}

    def last(self, group: str, queue: QueueKey) -> Pulled | None:
        """The last pull, also of one whose connection is gone."""
        return self._pulled.get(group, {}).get(queue)

    def group_deleted(self, group: str) -> None:
        self._count_at_most -= len(self._pulled.pop(group, {}))

    def _has_room(self) -> bool:
        if self._count_at_most >= READERS_MAX:
            living = {group: self.of(group) for group in self._pulled}
            self._pulled = {group: queues for group, queues in living.items() if queues}
            self._count_at_most = sum(map(len, self._pulled.values()))
        return self._count_at_most < READERS_MAX
