"""When a message counts as stored: flushed here, held by replicas, or both.

    confirmed = min(flushed, if configured; replicated, if configured)

Responses wait until the end of their records is confirmed, and readers see nothing beyond it.
`Replicas` reports the progress of the others: slaves that acknowledge, or a group that commits. A
response that timed out names the guarantee that was not met, and never reports success.
"""

import enum
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from tianzhou.base.kinds import PhysicalOffset
from tianzhou.store.config import FlushMode
from tianzhou.store.store import MessageStore


class Outcome(enum.Enum):
    """The outcome for messages that were written to the log."""

    DURABLE = enum.auto()
    FLUSH_DISK_TIMEOUT = enum.auto()
    """In the log; the disk took too long."""
    FLUSH_SLAVE_TIMEOUT = enum.auto()
    """In the log; the replicas took too long."""
    SLAVE_NOT_AVAILABLE = enum.auto()
    """In the log; there is no replica."""
    NO_QUORUM = enum.auto()
    """Proposed to a group whose majority did not respond in time. It may be lost."""
    NOT_MASTER = enum.auto()
    """This broker ceased to be the master before a replica confirmed the message, which may be
    lost."""


class Replicas(Protocol):
    """The progress of the replicas of a log."""

    @property
    def replicated(self) -> PhysicalOffset:
        """As many replicas as configured hold everything below this offset."""
        ...

    def missing(self) -> Outcome | None:
        """The outcome if waiting for replicas is pointless now, or None."""
        ...

    @property
    def too_late(self) -> Outcome:
        """The outcome if the replicas did not confirm in time."""
        ...


@dataclass(slots=True, kw_only=True)
class Durability:
    """The guarantee of one broker. Owner: the broker loop; `flushed` is read from any thread."""

    flushed: Callable[[], PhysicalOffset]
    flush_waits: bool
    """Whether responses wait for the disk."""
    flush_timeout_s: float
    replicas: Replicas | None = None
    """None if responses do not wait for replicas."""
    replicas_timeout_s: float = 0.0
    waits: bool = field(init=False)
    """Whether responses wait at all. If not, no message needs a verdict."""

    def __post_init__(self) -> None:
        self.waits = self.flush_waits or self.replicas is not None

    @property
    def timeout_s(self) -> float:
        """How long a response may wait. The same for all, so that deadlines come in order."""
        return self.flush_timeout_s if self.replicas is None else self.replicas_timeout_s

    def wait_for(self, replicas: Replicas | None, timeout_s: float) -> None:
        """Make responses wait for these replicas from now on; None means for no replica."""
        self.replicas, self.replicas_timeout_s = replicas, timeout_s
        self.waits = self.flush_waits or replicas is not None

    def limit_wait(self, timeout_s: float) -> None:
        """Change how long a response may wait for replicas."""
        self.replicas_timeout_s = timeout_s

    def confirmed(self) -> PhysicalOffset:
        """Everything below this offset meets the guarantee. Defined only if `waits`."""
        assert self.waits, "responses do not wait, so nothing is confirmed"
        if self.replicas is None:
            return self.flushed()
        replicated = self.replicas.replicated
        return min(self.flushed(), replicated) if self.flush_waits else replicated

    def verdict(self, end: PhysicalOffset) -> Outcome | None:
        """Return the outcome of records that end here if it is known already; None: wait."""
        if not self.waits or self.confirmed() >= end:
            return Outcome.DURABLE
        return self.replicas.missing() if self.replicas is not None else None

    def failure(self, end: PhysicalOffset) -> Outcome:
        """Return the outcome after a timeout."""
        if self.flush_waits and self.flushed() < end:
            return Outcome.FLUSH_DISK_TIMEOUT
        assert self.replicas is not None
        return self.replicas.too_late


def durability_of(store: MessageStore) -> Durability:
    """The guarantee of a store without replicas."""
    return Durability(
        flushed=lambda: store.flushed,
        flush_waits=store.config.flush_mode is FlushMode.SYNC,
        flush_timeout_s=store.config.sync_flush_timeout_ms / 1000,
    )
