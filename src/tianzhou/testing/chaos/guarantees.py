"""The guarantees of a configuration to the clients of a scenario."""

from dataclasses import dataclass
from typing import Final

FORGETS_S: Final = 10.0
"""Messages that a group confirmed within this time before a fault may be redelivered: clients
report every five seconds and brokers save every five."""


@dataclass(frozen=True, slots=True)
class Guarantees:
    """The guarantees of the configuration, and the groups that must have seen everything."""

    groups: tuple[str, ...] = ()
    """Consumer groups that had to see every acknowledged message."""
    keeps_acknowledged: bool = True
    keeps_places: bool = True
    """A delivered message stays at its offset, whether or not it was acknowledged."""
    old_master_resumes: bool = False
    """A master that was replaced while it hung may deliver messages until it learns of that, and
    then gives them up. See `given_up`."""
    waits_for_slave: bool = False
    """SEND_OK means that a slave has the message."""
    keeps_changes: bool = True
    """The responses to administrators' changes hold at the end."""
    forgets_s: float = FORGETS_S
