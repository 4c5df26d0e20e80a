"""The messages between the members of a group, as values.

An entry is an opaque run of bytes. A broker puts a whole chunk of records into one entry, so
nothing here costs anything per message of a user.

Heartbeats are appends without entries. Index 0 and term 0 stand for "before the log".

These are tuples because tuples are cheap to create; none of them is searched, so a field may have
the name of the method `tuple.index`.
"""

import enum
from typing import Final, NamedTuple, NewType, TypeAlias

NodeId: TypeAlias = str
Term = NewType("Term", int)
LogIndex = NewType("LogIndex", int)

NOT_REJECTED = LogIndex(-1)


class Kind(enum.IntEnum):
    """What an entry is for."""

    BARRIER = 0
    """Empty. A leader begins its term with one, and adds one for each member it repairs."""
    CHUNK = 1
    MEMBERS = 2
    PLAIN = 3
    """Records from before the log belonged to a group: a chunk without a header in the log."""
    OMITTED = 4
    """An entry as a witness gets it: index and term of a chunk or a barrier, without its data."""


STORED: Final = frozenset(Kind) - {Kind.OMITTED}
"""The kinds of entries in the log of a copy."""


class Entry(NamedTuple):
    index: LogIndex  # pyright: ignore[reportIncompatibleMethodOverride]
    term: Term
    kind: Kind
    data: bytes


class Start(NamedTuple):
    """Where a log begins: everything up to and including `index` is committed, and gone."""

    index: LogIndex  # pyright: ignore[reportIncompatibleMethodOverride]
    term: Term


class Append(NamedTuple):
    """A leader's entries after `prev_index`, or a heartbeat without entries."""

    term: Term
    sender: NodeId
    to: NodeId
    prev_index: LogIndex
    prev_term: Term
    entries: tuple[Entry, ...]
    commit: LogIndex
    round: int
    """An increasing number that the reply repeats, to distinguish old replies from new ones."""
    repaired: int
    """The doubt of the receiver that is settled by now, or 0; see `doubt` in the reply."""


class AppendReply(NamedTuple):
    """How much of the leader's log is on the sender's disk, or where their logs diverge."""

    term: Term
    sender: NodeId
    to: NodeId
    match: LogIndex
    round: int
    doubt: int
    """Not 0: the sender may have lost acknowledged entries, and must not be counted."""
    rejected: LogIndex = NOT_REJECTED
    """The `prev_index` that did not match."""
    hint_index: LogIndex = LogIndex(0)
    """The last index at which the logs may match, and its term."""
    hint_term: Term = Term(0)


class Install(NamedTuple):
    """Restart the log where the leader's starts: the leader no longer has what the receiver
    needs."""

    term: Term
    sender: NodeId
    to: NodeId
    start: Start
    members: bytes
    mark: bytes
    """What the storage needs to begin there, such as the physical offset; opaque to Raft. Empty for
    a witness, which stores no entries: only a witness may begin with it."""
    round: int


class VoteRequest(NamedTuple):
    term: Term
    sender: NodeId
    to: NodeId
    last_index: LogIndex
    last_term: Term
    pre: bool
    """Whether this only asks whether a vote would be granted. It binds no member."""
    forced: bool
    """The leader asked for this election, so a live leader does not prevent it."""


class VoteReply(NamedTuple):
    term: Term
    sender: NodeId
    to: NodeId
    granted: bool
    pre: bool


class TimeoutNow(NamedTuple):
    """Leadership transfer: start an election at once."""

    term: Term
    sender: NodeId
    to: NodeId


Message: TypeAlias = Append | AppendReply | Install | VoteRequest | VoteReply | TimeoutNow
