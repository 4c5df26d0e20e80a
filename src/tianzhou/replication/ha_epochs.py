"""Which master wrote which part of the log, and where two logs part.

A log is written by one master after the other. Each leaves a mark: from this offset on, it was I.

    epoch   counts the masters that were appointed: a promotion makes a new one
    run     counts the starts of one master after which the end of its log was uncertain
    start   the log ended here when the run began
    token   drawn at random, so that two who began at the same moment are told apart

Two logs are equal as far as their marks are, and the shorter of both ends of the last common one.
What a copy holds beyond that place was never confirmed by whoever is the master now.
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
    """The first master of a group: the whole log is its own."""
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
    """The marks of who wrote something that is there. Others part from the new mark at the same
    place as they would from theirs; a master that crashes again and again must not fill the
    greeting with them. The first stays: it says whose log this is."""
    return (*marks[:1], *(mark for mark in marks[1:] if mark.start < end))


def known_at(marks: Sequence[Mark], end: int) -> Marks:
    """The marks of a log that ends here; those beyond speak of bytes that it never got."""
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
    """Up to where my log is surely the same as theirs; None if they never were one log."""
    mine = known_at(mine, my_end)
    common = 0
    while common < min(len(mine), len(theirs)) and mine[common] == theirs[common]:
        common += 1
    if not common:
        return None
    ends = [my_end]
    ends += [marks[common].start for marks in (mine, theirs) if common < len(marks)]
    return PhysicalOffset(min(ends))
