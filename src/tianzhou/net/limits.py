"""How much a peer may ask of us, and how long it may take. Each bound with its reason.

Parameters, not constants: tests shorten them, and settings may change them.
"""

import resource
from dataclasses import dataclass
from typing import Final

FILES_RESERVED: Final = 512
"""Open files that connections leave to the store, which keeps 256 of its queues open."""

_KIB: Final = 1024
_MIB: Final = 1024 * _KIB


@dataclass(frozen=True, slots=True, kw_only=True)
class NetLimits:
    idle_s: float = 120.0
    """As Java: a connection on which nothing was heard for so long is closed."""
    partial_s: float = 15.0
    """A frame that began must be whole by then."""
    blocked_s: float = 30.0
    """A peer that does not read for so long is dropped."""
    close_s: float = 1.0
    """How long queued answers may take to leave a connection that is being closed."""
    sweep_s: float = 1.0
    """How often the times above are looked at."""

    turn_s: float = 0.05
    """How long the frames of one read may be worked on before others have their turn."""

    connections_max: int = 20_000
    connections_per_host_max: int = 1_000
    """From one address. Not for this machine itself, where tools and tests open many."""

    write_bytes_max: int = 4 * _MIB
    """What may wait for one peer. Once more does, nothing of it is read or handled."""
    waiting_count_max: int = 1_024
    """Requests of one peer that wait for the disk. Once so many do, no more are read."""
    waiting_bytes_max: int = 32 * _MIB
    all_waiting_count_max: int = 200_000
    """The same of all peers together: nobody who has some waiting may add to it."""
    all_waiting_bytes_max: int = 512 * _MIB

    partial_bytes_max: int = 256 * _MIB
    """All frames that have begun, together. Beyond it the oldest are dropped."""
    unsent_bytes_max: int = 512 * _MIB
    """All answers that peers do not read, together. Beyond it the largest are dropped."""


def connections_within_files(wanted: int) -> int:
    """As many connections as the process may open files for, at most as many as wanted."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return wanted
    return min(wanted, soft - min(FILES_RESERVED, soft // 2))


def allow_files() -> int:
    """Let this process open as many files as the system allows; how many that are."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard
