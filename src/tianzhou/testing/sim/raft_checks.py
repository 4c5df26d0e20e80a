"""The base of invariants: their events, and the state of the whole group.

An invariant is a class. It is called when something happens that could break it, and raises
`Violation`. It may look at every member at once, which no member can: this is what makes it
worth more than an assertion in the node.
"""

from typing import NamedTuple

from tianzhou.raft.membership import Members
from tianzhou.raft.messages import Entry, LogIndex, Message, NodeId, Term, VoteRequest
from tianzhou.raft.ready import HardState, Save
from tianzhou.testing.sim.raft_member import SimMember


class Violation(AssertionError):
    """An invariant of Raft was violated."""


class Before(NamedTuple):
    """The state and the outbox of a member before it received a message."""

    hard: HardState
    outbox: int


class Ghost:
    """Global state that no single member can know."""

    def __init__(self, members: dict[NodeId, SimMember]) -> None:
        self.members = members
        self.commit = LogIndex(0)
        self.commit_term = Term(0)
        """The greatest index that any leader has committed, and its term."""
        self.acked = LogIndex(0)
        self.acked_entries: dict[LogIndex, tuple[Term, bytes]] = {}
        """Everything that was acknowledged to a client."""

    def durable_on(self, index: LogIndex, term: Term) -> set[NodeId]:
        """Return the members that have this entry synced, or had it until their disk was damaged.

        A member in doubt does not count for what it got afterwards.
        """
        found: set[NodeId] = set()
        for name, member in self.members.items():
            disk = member.disk
            if disk.had(index, term) if disk.state.doubt else disk.has(index, term):
                found.add(name)
        return found


class Invariant:
    """All methods do nothing; an invariant overrides those it needs."""

    number = ""

    def __init__(self, ghost: Ghost) -> None:
        self.ghost = ghost

    def demand(self, condition: object, complaint: str) -> None:
        if not condition:
            raise Violation(f"{self.number} {type(self).__name__}: {complaint}")

    def on_role(self, member: SimMember) -> None:
        """The role or the term of a member has changed."""

    def on_save(self, member: SimMember, save: Save) -> None:
        """A member is about to write this."""

    def on_synced(self, member: SimMember, before: HardState) -> None:
        """The writes of a member are durable; `before` is its earlier state."""

    def on_send(self, member: SimMember, message: Message) -> None:
        """A message leaves a member."""

    def on_delivered(self, member: SimMember, message: Message) -> None:
        """A member has processed a message."""

    def on_asked(self, member: SimMember, request: VoteRequest, before: Before) -> None:
        """A member has processed a vote request; `before` is its earlier state."""

    def on_commit(self, member: SimMember, before: LogIndex) -> None:
        """The commit index of a member has changed."""

    def on_apply(self, member: SimMember, first: LogIndex, end: LogIndex) -> None:
        """A member applies entries from `first` to before `end`."""

    def on_ack(self, member: SimMember, entry: Entry) -> None:
        """An entry is acknowledged to a client."""

    def on_read(self, member: SimMember, asked_at: LogIndex, index: LogIndex) -> None:
        """A read that must see `asked_at` gets a response as of `index`."""

    def on_tick(self, member: SimMember) -> None:
        """Time passed for a member."""

    def on_start(self, member: SimMember) -> None:
        """A process has started."""

    def on_lost(self, member: SimMember, peer: SimMember) -> None:
        """A member notices that the connection from another member ended."""


def _overriding(invariants: list[Invariant], name: str) -> list[Invariant]:
    """Return the invariants that need this event: calls are most of the work."""
    return [one for one in invariants if name in vars(type(one))]


class LogChecks:
    """Invariants of what is committed: which entries, in which order, and what clients learn."""

    def __init__(self, invariants: list[Invariant]) -> None:
        self.commit = [one.on_commit for one in _overriding(invariants, "on_commit")]
        self.apply = [one.on_apply for one in _overriding(invariants, "on_apply")]
        self.ack = [one.on_ack for one in _overriding(invariants, "on_ack")]
        self.read = [one.on_read for one in _overriding(invariants, "on_read")]


class Checks:
    """Calls each invariant only for the events that it overrides: here those of a member, its disk
    and its messages."""

    def __init__(self, invariants: list[Invariant]) -> None:
        self.log = LogChecks(invariants)
        self.role = [one.on_role for one in _overriding(invariants, "on_role")]
        self.save = [one.on_save for one in _overriding(invariants, "on_save")]
        self.synced = [one.on_synced for one in _overriding(invariants, "on_synced")]
        self.send = [one.on_send for one in _overriding(invariants, "on_send")]
        self.delivered = [one.on_delivered for one in _overriding(invariants, "on_delivered")]
        self.asked = [one.on_asked for one in _overriding(invariants, "on_asked")]
        self.tick = [one.on_tick for one in _overriding(invariants, "on_tick")]
        self.start = [one.on_start for one in _overriding(invariants, "on_start")]
        self.lost = [one.on_lost for one in _overriding(invariants, "on_lost")]


def is_quorum(members: Members, present: set[NodeId]) -> bool:
    """Compute the majority independently: the product's own arithmetic is under test."""
    sets = [members.voters, members.outgoing] if members.outgoing else [members.voters]
    return all(2 * len(voters & present) > len(voters) for voters in sets)
