"""The actions that a node requests, and their order.

    ready = node.ready()
    1. persist   ready.save, if there is one: state, start and entries, on the medium
    2. send      ready.messages
    3. apply     the entries up to ready.apply_to; respond to clients up to ready.commit
    node.advance()   once the save of step 1 is durable

A driver need not wait for its disk. Messages of a `Ready` never depend on the save that comes with
it, nor on an earlier save that is not confirmed: the node itself holds back messages that must not
be sent yet, and returns them in a later `Ready`. So a driver passes a save to its disk thread,
sends at once, continues with `step`, `tick` and `propose`, and calls `advance` when the disk is
done. There is one save at a time; entries that arrive meanwhile are in the next save, which makes
it a group commit.

A save that fails is never confirmed and never repeated: stop the node.
"""

from typing import NamedTuple

from tianzhou.raft.membership import Members
from tianzhou.raft.messages import Entry, LogIndex, Message, NodeId, Start, Term


class HardState(NamedTuple):
    """The state that a member must never lose. Written and synced as one."""

    term: Term = Term(0)
    vote: NodeId = ""
    """The member it voted for in this term, if any."""
    doubt: int = 0
    """Not 0: this member may have forgotten something else. Names this very doubt."""


class Begin(NamedTuple):
    """The log is to be emptied and restarted."""

    start: Start
    members: Members
    mark: bytes


class Save(NamedTuple):
    """To be made durable, in this order: state, begin, entries; or all at once.

    The state comes first so that no entry on disk is of a later term than the state.
    """

    state: HardState | None
    begin: Begin | None
    entries: tuple[Entry, ...]
    """Contiguous. Whatever the log has from the first of their indices on goes away before."""


class Ready(NamedTuple):
    save: Save | None
    messages: tuple[Message, ...]
    commit: LogIndex
    """Everything up to here is on the disks of a majority, permanently."""
    apply_to: LogIndex
    """Everything up to here is committed, and on the disk of this member."""
    reads: tuple["ReadAt", ...]
    """Reads whose barrier is passed."""


class ReadAt(NamedTuple):
    """A read may be answered once everything up to `index` is applied."""

    token: object
    index: LogIndex  # pyright: ignore[reportIncompatibleMethodOverride]


class Saved(NamedTuple):
    """What a member finds on its disk when it starts."""

    state: HardState
    start: Start
    last: LogIndex
    terms: tuple[tuple[LogIndex, Term], ...]
    """First index and term of each run of equal terms behind the start."""
    members: tuple[tuple[LogIndex, Members], ...]
    """The membership at the start, and each one in the log."""
    commit: LogIndex = LogIndex(0)
    """Known to be committed. May be old."""
