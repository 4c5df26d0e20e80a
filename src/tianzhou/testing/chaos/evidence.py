"""What is found when everything has come to rest: the messages and logs of each replica."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from tianzhou.testing.chaos.history import Place, Queue


@dataclass(frozen=True, slots=True)
class Replica:
    """One broker of a group, as pulls show it at the end."""

    name: str
    stored: Mapping[Place, str]
    """Value by place, of a full scan of every queue."""


@dataclass(frozen=True, slots=True)
class LogSum:
    """The log of one replica: where it begins and ends, and what it is."""

    name: str
    start: int
    end: int
    digests: Mapping[int, str]
    """Of each file, by the offset that it begins at."""
    queues: Mapping[int, tuple[int, int]]
    """First offset and end of each queue of the topic."""
    problems: tuple[str, ...] = ()
    """What `tianzhou store verify` would complain about."""


@dataclass(frozen=True, slots=True)
class Evidence:
    replicas: tuple[Replica, ...]
    """The masters of the groups, then the others."""
    masters: int
    """How many of them are masters: together they hold every message."""
    logs: tuple[tuple[LogSum, ...], ...] = ()
    """For each group, one of each replica."""
    committed: Mapping[tuple[str, Queue], int] = field(default_factory=dict[tuple[str, Queue], int])
    """Where each group stands at the end."""

    def stored(self) -> dict[Place, str]:
        """What the masters hold."""
        found: dict[Place, str] = {}
        for replica in self.replicas[: self.masters]:
            found.update(replica.stored)
        return found
