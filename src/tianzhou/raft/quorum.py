"""Majorities, of one set of voters or of two at once while the set changes."""

from collections.abc import Callable, Container, Iterable

from tianzhou.raft.membership import Members
from tianzhou.raft.messages import NodeId


def agreed(members: Members, reached: Callable[[NodeId], int]) -> int:
    """The greatest number that a majority has reached; of both sets while there are two."""
    best = _middle(members.voters, reached)
    return min(best, _middle(members.outgoing, reached)) if members.outgoing else best


def won(members: Members, granted: Container[NodeId]) -> bool:
    return agreed(members, lambda voter: int(voter in granted)) == 1


def is_pair(voters: int) -> bool:
    """Whether a group has an even number of voters below four: both must be up, so that it is worse
    than one voter alone. A witness is a voter."""
    return 0 < voters < 4 and voters % 2 == 0


def _middle(voters: Iterable[NodeId], reached: Callable[[NodeId], int]) -> int:
    # Of n sorted numbers, those from rank (n - 1) // 2 on are a majority.
    numbers = sorted(map(reached, voters))
    return numbers[(len(numbers) - 1) // 2]
