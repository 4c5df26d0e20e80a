"""When a message counts as stored: flushed here, held by others, or both.

    confirmed = min(flushed, if that is promised; replicated, if that is promised)

Answers wait until the end of their records is confirmed, and readers see nothing beyond it. Who
replicates says how far others have come (`Replicas`): slaves that acknowledge, or a group that
commits. An answer that waited in vain says which promise was not kept, never that it was.
"""

import enum
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from tianzhou.base.kinds import PhysicalOffset
from tianzhou.store.config import FlushMode
from tianzhou.store.store import MessageStore


class Outcome(enum.Enum):
    """What became of messages that were written to the log."""

    DURABLE = enum.auto()
    FLUSH_DISK_TIMEOUT = enum.auto()
    """In the log; the disk took too long."""
    FLUSH_SLAVE_TIMEOUT = enum.auto()
    """In the log; those who should hold it too took too long."""
    SLAVE_NOT_AVAILABLE = enum.auto()
    """In the log; there is no replica to hold it too."""
    NO_QUORUM = enum.auto()
    """Proposed to a group whose majority did not answer in time. It may be lost."""
    NOT_MASTER = enum.auto()
    """This broker ceased to be the master before anybody else confirmed. It may be lost."""


class Replicas(Protocol):
    """What is known of the copies of a log."""

    @property
    def replicated(self) -> PhysicalOffset:
        """As many others as were promised hold everything below."""
        ...

    def missing(self) -> Outcome | None:
        """Why it makes no sense to wait for them now, or None."""
        ...

    @property
    def too_late(self) -> Outcome:
        """What to say when they did not confirm in time."""
        ...


@dataclass(slots=True, kw_only=True)
class Durability:
    """The promise of one broker. Owner: the broker loop; `flushed` is read from any thread."""

    flushed: Callable[[], PhysicalOffset]
    flush_waits: bool
    """Answers wait for the disk."""
    flush_timeout_s: float
    replicas: Replicas | None = None
    """None: answers do not wait for others."""
    replicas_timeout_s: float = 0.0

    @property
    def waits(self) -> bool:
        return self.flush_waits or self.replicas is not None

    @property
    def timeout_s(self) -> float:
        """How long an answer may wait. One number, so that deadlines come in order."""
        return self.flush_timeout_s if self.replicas is None else self.replicas_timeout_s

    def confirmed(self) -> PhysicalOffset:
        """Everything below is as safe as was promised. Only if something is promised."""
        assert self.waits, "nothing is promised, so nothing can be confirmed"
        if self.replicas is None:
            return self.flushed()
        replicated = self.replicas.replicated
        return min(self.flushed(), replicated) if self.flush_waits else replicated

    def verdict(self, end: PhysicalOffset) -> Outcome | None:
        """What to answer at once about records that end here; None: wait."""
        if not self.waits or self.confirmed() >= end:
            return Outcome.DURABLE
        return self.replicas.missing() if self.replicas is not None else None

    def failure(self, end: PhysicalOffset) -> Outcome:
        """What to answer when the time is up."""
        if self.flush_waits and self.flushed() < end:
            return Outcome.FLUSH_DISK_TIMEOUT
        assert self.replicas is not None
        return self.replicas.too_late


def durability_of(store: MessageStore) -> Durability:
    """What a store promises by itself."""
    return Durability(
        flushed=lambda: store.flushed,
        flush_waits=store.config.flush_mode is FlushMode.SYNC,
        flush_timeout_s=store.config.sync_flush_timeout_ms / 1000,
    )
