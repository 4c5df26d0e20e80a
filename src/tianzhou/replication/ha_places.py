"""Places at the port for slaves: who may hold one, how many, and for how long.

A connection first waits: it has not yet named its group, proven that it knows the secret and said
where to go on. Waiting costs little, is bounded, and ends after `WAITING_S` whatever is sent
meanwhile. If too many wait, those that have waited longest go: a slave needs one round trip, so a
peer that holds on is none. Only a connection that streams holds one of the places for slaves.
"""

from collections import Counter
from typing import Final, Generic, TypeVar

from tianzhou.replication.errors import PeerRefused

SLAVES_MAX: Final = 64
"""Slaves at once. A group has a few."""
SLAVES_PER_HOST_MAX: Final = 16
"""From one address: one machine must not take the places of all others."""
WAITING_MAX: Final = 64
WAITING_PER_HOST_MAX: Final = 8
WAITING_S: Final = 15.0
"""From the connection to the first report. A slave that needs longer, because it sets aside much of
its log, finds that done at its next attempt."""

C = TypeVar("C")


class Places(Generic[C]):
    """Owner: the master's side.

    Invariant: a connection either waits or streams, and is counted for its host once
    """

    def __init__(self) -> None:
        self._waiting: dict[C, tuple[str, float]] = {}
        """Host and since when; the one that has waited longest is the first."""
        self._streaming: dict[C, str] = {}

    def wait(self, connection: C, host: str, now_s: float) -> list[C]:
        """A new connection; those that must go because too many wait."""
        self._waiting[connection] = host, now_s
        leaving: list[C] = []
        of_host = [one for one, (its_host, _) in self._waiting.items() if its_host == host]
        if len(of_host) > WAITING_PER_HOST_MAX:
            leaving.append(of_host[0])
        elif len(self._waiting) > WAITING_MAX:
            leaving.append(next(iter(self._waiting)))
        return leaving

    def stream(self, connection: C) -> None:
        """It is a slave: let it have a place. Raises PeerRefused."""
        host, _ = self._waiting[connection]
        if len(self._streaming) >= SLAVES_MAX:
            raise PeerRefused(f"{SLAVES_MAX} slaves follow already; no more are allowed")
        if Counter(self._streaming.values())[host] >= SLAVES_PER_HOST_MAX:
            raise PeerRefused(
                f"{SLAVES_PER_HOST_MAX} slaves at {host} follow already; no more are allowed from "
                "one address"
            )
        del self._waiting[connection]
        self._streaming[connection] = host

    def late(self, now_s: float) -> list[C]:
        """Connections whose time to become a slave is over."""
        return [one for one, (_, since_s) in self._waiting.items() if now_s - since_s >= WAITING_S]

    def leave(self, connection: C) -> None:
        self._waiting.pop(connection, None)
        self._streaming.pop(connection, None)
