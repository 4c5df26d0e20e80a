"""The settings of a group, and its source of randomness."""

from dataclasses import dataclass
from typing import Protocol

from tianzhou.base.errors import UsageError


class Dice(Protocol):
    """Seeded randomness; `random.Random` is one."""

    def randrange(self, start: int, stop: int) -> int: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RaftConfig:
    """Times are in ticks, whose duration is decided by the caller of `tick`."""

    election_ticks: int = 10
    """A member that hears no leader for this long, or a random time up to twice as long, starts an
    election. A leader without responses from a majority for this long steps down."""
    heartbeat_ticks: int = 2
    append_bytes_max: int = 1 << 20
    """Entries in one message, except that one entry always fits."""
    inflight_max: int = 64
    """In-flight messages to one follower; heartbeats are not counted."""
    uncommitted_bytes_max: int = 64 << 20
    """A leader rejects chunks beyond this limit; otherwise clients could fill its memory."""

    is_witness: bool = False
    """This member votes and stores terms, but no entries; it never leads."""

    learner_lag_max: int = 100
    """Entries that a learner may lack when it becomes a voter; the leader sends these within
    milliseconds."""

    def __post_init__(self) -> None:
        if not 1 <= self.heartbeat_ticks < self.election_ticks:
            raise UsageError(
                f"heartbeats every {self.heartbeat_ticks} ticks, elections after "
                f"{self.election_ticks}: heartbeats must come more often, and at most every tick"
            )
        if min(self.append_bytes_max, self.inflight_max, self.uncommitted_bytes_max) < 1:
            raise UsageError(f"limits must be positive: {self}")
