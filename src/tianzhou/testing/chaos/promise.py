"""What a configuration promises to the clients of a scenario."""

from dataclasses import dataclass
from typing import Final

FORGETS_S: Final = 10.0
"""What a group confirmed in so long before a fault may come again: clients report every five
seconds and brokers save every five."""


@dataclass(frozen=True, slots=True)
class Promise:
    """What the configuration promises, and who must have seen everything."""

    groups: tuple[str, ...] = ()
    """Consumer groups that had to see every acknowledged message."""
    keeps_acknowledged: bool = True
    keeps_places: bool = True
    """What a reader got at a place stays there, whether or not it was acknowledged."""
    old_master_resumes: bool = False
    """A master that was replaced while it hung may show messages until it has heard of that, and
    gives them up then. See `given_up`."""
    waits_for_slave: bool = False
    """SEND_OK means that a slave has it."""
    keeps_changes: bool = True
    """What administrators were told of their changes is so at the end."""
    forgets_s: float = FORGETS_S
