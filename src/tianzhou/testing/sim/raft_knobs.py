"""What a seed decides about its world before anything happens.

Each knob is drawn from a wide range and is off in a share of the seeds ("swarm testing"): a bug
that needs quiet disks and many elections is not found where everything breaks at once.
"""

from dataclasses import dataclass
from random import Random

US_PER_MS = 1_000
US_PER_S = 1_000_000
NEVER_US = 1 << 60
WITNESSES = 0.3
"""The share of groups of more than one that have a witness."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Knobs:
    """Times are in microseconds, chances between 0 and 1."""

    members: int
    """Voters at the start."""
    has_witness: bool
    """Whether the last of them is a witness."""
    spares: int
    election_us: int
    loss: float
    duplicate: float
    delay_min_us: int
    delay_spread_us: int
    fsync_us: int
    slow_fsync: float
    proposals_us: int
    """Between two proposals."""
    reads: float
    burst: int
    append_bytes_max: int
    inflight_max: int
    clock_skew: float
    crash_us: int
    """Time between two crashes; the following times are between two faults of their kind."""
    restart_us: int
    lose_all: float
    """The share of crashes that lose everything that was not synced."""
    save_crash: float
    """Of saves of a vote, a leader's first entry, a membership: how many end in a crash."""
    pause_us: int
    partition_us: int
    clog_us: int
    wipe_us: int
    transfer_us: int
    change_us: int
    trim_us: int
    full_us: int
    failed_sync_us: int
    leap_us: int
    reset_us: int

    @property
    def tick_us(self) -> int:
        return self.election_us // 10


def draw(dice: Random, *, first_faults: bool = False, witness: bool = False) -> Knobs:
    """`first_faults` leaves out kinds that were added later, so that old seeds stay the same.
    `witness` gives one to every group of more than one."""
    members = dice.choice((1, 3, 3, 3, 3, 3, 5, 5))
    election_us = int(_between(dice, 150, 2000) * US_PER_MS)
    rare = election_us * 3

    def seldom(chance: float, least: float, most: float) -> int:
        """Time between two faults of a kind, in multiples of three election timeouts."""
        return int(rare * _between(dice, least, most)) if dice.random() < chance else NEVER_US

    # Separate dice, so that the other draws stay the same.
    more = Random(dice.getstate()[1][0])  # pyright: ignore[reportUnknownArgumentType]

    def rarely(chance: float, least: float, most: float) -> int:
        is_off = first_faults or more.random() >= chance
        return NEVER_US if is_off else int(rare * _between(more, least, most))

    return Knobs(
        full_us=rarely(0.3, 1, 8),
        failed_sync_us=rarely(0.3, 1, 10),
        leap_us=rarely(0.3, 0.5, 6),
        reset_us=rarely(0.4, 0.3, 4),
        members=members,
        spares=dice.choice((0, 0, 1, 2)),
        election_us=election_us,
        loss=_off(dice, 0.4, 0.3),
        duplicate=_off(dice, 0.5, 0.5),
        delay_min_us=200,
        delay_spread_us=int(_between(dice, 0.3, 100) * min(1.0, election_us / 400_000) * 1000),
        fsync_us=int(_between(dice, 0.05, 30) * US_PER_MS),
        slow_fsync=_off(dice, 0.6, 0.02),
        proposals_us=int(US_PER_S / _between(dice, 2, 60)),
        reads=_off(dice, 0.3, 0.3),
        burst=dice.choice((1, 1, 1, 4, 16)),
        append_bytes_max=int(_between(dice, 20, 4000)),
        inflight_max=dice.choice((1, 2, 8, 64)),
        clock_skew=_off(dice, 0.5, 0.6),
        crash_us=seldom(0.8, 0.4, 8),
        restart_us=int(election_us * _between(dice, 0.01, 8)),
        lose_all=dice.choice((1.0, 0.8, 0.3)),
        save_crash=_off(dice, 0.5, 0.3),
        pause_us=seldom(0.4, 1, 8),
        partition_us=seldom(0.75, 0.5, 6),
        clog_us=seldom(0.3, 1, 8),
        wipe_us=seldom(0.3, 2, 10),
        transfer_us=seldom(0.3, 0.5, 8),
        change_us=seldom(0.4, 0.5, 6),
        trim_us=seldom(0.5, 0.3, 4),
        has_witness=members > 1 and (witness or (not first_faults and more.random() < WITNESSES)),
    )


def _between(dice: Random, least: float, most: float) -> float:
    """Evenly over orders of magnitude."""
    return least * (most / least) ** dice.random()


def _off(dice: Random, off: float, most: float) -> float:
    return 0.0 if dice.random() < off else dice.random() * most
