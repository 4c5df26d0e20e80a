"""Limits on what a peer may use and how long it may take, each with its reason.

Parameters, not constants: tests shorten them, and settings may change them.
"""

import os
import resource
from dataclasses import dataclass, replace
from typing import Final

FILES_RESERVED: Final = 512
"""Descriptors kept for the store besides those open when a port starts to listen: 256 queue files,
and new files of the log and the index. Outgoing connections count towards them."""

_UNBOUNDED: Final = 1 << 20
"""Connections if the system sets no limit."""
_KIB: Final = 1024
_MIB: Final = 1024 * _KIB


@dataclass(frozen=True, slots=True, kw_only=True)
class NetLimits:
    idle_s: float = 120.0
    """Close a connection after this long without data, as in Java."""
    partial_s: float = 15.0
    """How long a frame may take to arrive completely."""
    blocked_s: float = 30.0
    """Drop a peer that does not read for this long."""
    close_s: float = 1.0
    """How long a connection that is being closed may take to send queued responses."""
    sweep_s: float = 1.0
    """How often the times above are checked."""

    turn_s: float = 0.01
    """How long the frames of one read may be processed before other connections get their turn."""
    turn_bytes: int = 512 * _KIB
    """Response bytes of one turn. Only a single larger response exceeds it."""

    write_bytes_max: int = 4 * _MIB
    """Response bytes that may wait for one peer. Beyond it, no requests of the peer are
    processed."""
    waiting_count_max: int = 1_024
    """Requests of one peer that wait for the disk. At this number no more are read."""
    waiting_bytes_max: int = 32 * _MIB
    all_waiting_count_max: int = 200_000
    """The same for all peers together: at this limit, peers with waiting requests cannot add
    more."""
    all_waiting_bytes_max: int = 512 * _MIB

    partial_bytes_max: int = 256 * _MIB
    """Total size of incomplete frames. Beyond it the oldest connections are dropped."""
    unsent_bytes_max: int = 512 * _MIB
    """Total size of unsent responses. Beyond it the connections with most are dropped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PortLimits:
    """Limits on the connections of a port. `net/admission.py` enforces them."""

    name: str
    """The port's name in the log."""
    weight: int
    """The port's share of the descriptors, relative to the other ports of the process."""
    connections_max: int
    unproven_max: int
    """Unproven connections; at most half of the port."""
    per_source_max: int
    """Connections from one address. Does not apply to this machine, where tools and tests open
    many."""
    unproven_per_source_max: int
    prove_s: float
    """Total time a peer has to prove itself."""
    serves_unproven: bool = False
    """Whether slots stay reserved for unproven peers even if proven ones would fill the port, or
    the share of one address."""


CLIENT_PORT: Final = PortLimits(
    name="client",
    weight=8,
    connections_max=20_000,
    unproven_max=4_096,
    per_source_max=1_000,
    unproven_per_source_max=1_000,
    prove_s=15.0,
)
"""Half of all clients may wait for their first response when all reconnect after a restart."""
NAMESERVER_PORT: Final = replace(CLIENT_PORT, name="nameserver", weight=4)
RAFT_PORT: Final = PortLimits(
    name="raft",
    weight=1,
    connections_max=128,
    unproven_max=64,
    per_source_max=32,
    unproven_per_source_max=16,
    prove_s=5.0,
)
"""A group has up to nine members, each with one connection and briefly an old one."""
HA_PORT: Final = PortLimits(
    name="ha",
    weight=1,
    connections_max=128,
    unproven_max=64,
    per_source_max=32,
    unproven_per_source_max=16,
    prove_s=10.0,
)
"""A group has a few slaves; a peer is proven once the log streams to it."""
HTTP_PORT: Final = PortLimits(
    name="http",
    weight=2,
    connections_max=264,
    unproven_max=64,
    per_source_max=100,
    unproven_per_source_max=32,
    prove_s=12.0,
    serves_unproven=True,
)
"""200 for pages, of which a browser keeps six, and 64 for health requests when those are taken. The
HTTP server itself rejects slow headers after 10 s; the deadline covers what it misses."""


def connection_budget() -> int:
    """Descriptors available to connections, besides those open now and those the store needs."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return _UNBOUNDED
    free = max(0, soft - _open_files())
    return free - min(FILES_RESERVED, free // 2)


def _open_files() -> int:
    try:
        return len(os.listdir("/dev/fd"))
    except OSError:  # the system has no such directory
        return 0


def allow_files() -> int:
    """Raise the limit of open files to what the system allows, and return it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard
