"""The final state of a cluster: the messages and logs of each replica."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from tianzhou.testing.chaos.history import Place, Queue


@dataclass(frozen=True, slots=True)
class Replica:
    """One broker of a group, as pulls show it at the end."""

    name: str
    stored: Mapping[Place, str]
    """Value by offset, from a full scan of every queue."""


@dataclass(frozen=True, slots=True)
class LogSum:
    """The log of one replica: its bounds and digests."""

    name: str
    start: int
    end: int
    digests: Mapping[int, str]
    """Digest of each file, by its first offset."""
    queues: Mapping[int, tuple[int, int]]
    """First offset and end of each queue of the topic."""
    problems: tuple[str, ...] = ()
    """Problems that `tianzhou store verify` reports."""


@dataclass(frozen=True, slots=True)
class Evidence:
    replicas: tuple[Replica, ...]
    """The masters of the groups, then the others."""
    masters: int
    """How many of the replicas are masters: together they have every message."""
    logs: tuple[tuple[LogSum, ...], ...] = ()
    """For each group, the log of each replica."""
    committed: Mapping[tuple[str, Queue], int] = field(default_factory=dict[tuple[str, Queue], int])
    """The final committed offset of each group."""

    def stored(self) -> dict[Place, str]:
        """Return the messages of the masters."""
        found: dict[Place, str] = {}
        for replica in self.replicas[: self.masters]:
            found.update(replica.stored)
        return found
