"""Which master wrote which part of the log, and where two logs diverge.

A log is written by one master after another. Each adds a mark at the offset where it starts.

    epoch   number of the appointed master: each promotion increments it
    run     number of starts of one master after which the end of its log was uncertain
    start   where the log ended when the run started
    token   random, to distinguish two masters that started at the same time

Two logs are equal as far as their marks are equal, up to the shorter end of the last common mark.
What a replica holds beyond that was never confirmed by the current master.
"""

from collections.abc import Sequence
from typing import Annotated, Final, TypeAlias

import msgspec

from tianzhou.base.kinds import PhysicalOffset
from tianzhou.replication.errors import PeerRefused
from tianzhou.wire.registration import EPOCH_MAX

EPOCH_STEP_MAX: Final = 1_000_000
"""How far a new epoch may be above all known ones: a request with a huge epoch must not use up all
epochs."""

Epoch: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=EPOCH_MAX)]
Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]


class Mark(msgspec.Struct, frozen=True, kw_only=True, order=True):
    epoch: Epoch
    run: Count
    start: Count
    token: str


Marks: TypeAlias = tuple[Mark, ...]


def first(token: str) -> Marks:
    """The mark of the first master of a group, which wrote the whole log."""
    return (Mark(epoch=1, run=0, start=0, token=token),)


def appointed(marks: Marks, end: PhysicalOffset, *, token: str, epoch: int) -> Marks:
    """Add the mark of a new master whose log ends here; its epoch is above all others."""
    assert epoch > epoch_of(marks), f"epoch {epoch} does not come after {epoch_of(marks)}"
    return (*_written(marks, end), Mark(epoch=epoch, run=0, start=end, token=token))


def restarted(marks: Marks, end: PhysicalOffset, *, token: str) -> Marks:
    """The same master after a crash: it may have lost what others have."""
    last = marks[-1]
    return (
        *_written(marks, end),
        Mark(epoch=last.epoch, run=last.run + 1, start=end, token=token),
    )


def _written(marks: Marks, end: PhysicalOffset) -> Marks:
    """Drop marks without bytes in the log. Other logs diverge from the new mark at the same offset
    as from these marks, and a master that crashes repeatedly must not fill the greeting with them.
    The first mark stays: it identifies the log."""
    return (*marks[:1], *(mark for mark in marks[1:] if mark.start < end))


def known_at(marks: Sequence[Mark], end: int) -> Marks:
    """Return the marks of a log that ends here; later marks are about bytes that it never
    received."""
    return tuple(mark for mark in marks if mark.start <= end)


def epoch_of(marks: Sequence[Mark]) -> int:
    return marks[-1].epoch if marks else 0


def is_later(marks: Sequence[Mark], than: Sequence[Mark]) -> bool:
    """Whether the master of these marks was appointed after that of the others."""
    return epoch_of(marks) > epoch_of(than)


def check_unique(mine: Marks, my_end: int, theirs: Marks) -> None:
    """Raise PeerRefused if two masters with the same epoch wrote different messages: either part
    may have been acknowledged, so neither may be truncated."""
    tokens = {(mark.epoch, mark.run): mark.token for mark in mine if mark.start < my_end}
    for mark in theirs:
        if tokens.get((mark.epoch, mark.run), mark.token) != mark.token:
            raise PeerRefused(
                f"two masters of this group had epoch {mark.epoch}, and each may have acknowledged "
                "messages that the other does not have; compare their topics, then start the "
                "broker whose messages are not needed with an empty directory"
            )


def parting(mine: Marks, my_end: int, theirs: Marks) -> PhysicalOffset | None:
    """Return up to where both logs are known to be equal; None if they have no common origin."""
    mine = known_at(mine, my_end)
    common = 0
    while common < min(len(mine), len(theirs)) and mine[common] == theirs[common]:
        common += 1
    if not common:
        return None
    ends = [my_end]
    ends += [marks[common].start for marks in (mine, theirs) if common < len(marks)]
    return PhysicalOffset(min(ends))
