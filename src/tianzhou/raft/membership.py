"""The members of the group, now and at earlier positions of the log.

A membership is in force as soon as its entry is appended, committed or not (Raft paper,
section 6). One that was appended may be cut off again, so the earlier ones are kept until the later
one is committed.

A change of one voter goes in one step, because any majority of n and of n + 1 voters have a member
in common. Anything larger goes through a joint membership, in which both sets must agree; when
that is committed, the leader appends the new set alone.

A group may have one witness: a voter that stores the terms of entries and not their data. The
others are copies. Every majority has a copy in it, because a majority of two or more voters is
larger than the one witness.
"""

from collections.abc import Iterable
from typing import NamedTuple

from tianzhou.base.errors import UsageError
from tianzhou.raft.messages import LogIndex, NodeId


class Members(NamedTuple):
    voters: frozenset[NodeId]
    outgoing: frozenset[NodeId] = frozenset()
    """The voters before, while the change to `voters` is not finished."""
    learners: frozenset[NodeId] = frozenset()
    addresses: str = ""
    """Addresses of the members; opaque to Raft, and replicated with the membership."""
    witnesses: frozenset[NodeId] = frozenset()
    """Those of the members that store no data."""

    def everyone(self) -> frozenset[NodeId]:
        return self.voters | self.outgoing | self.learners

    def may_vote(self, node: NodeId) -> bool:
        return node in self.voters or node in self.outgoing

    def may_lead(self, node: NodeId) -> bool:
        return self.may_vote(node) and node not in self.witnesses

    def towards(self, target: "Members") -> "Members":
        """The first step to `target`."""
        assert not self.outgoing, "a joint membership has one way out"
        if len(self.voters ^ target.voters) <= 1:
            return target
        witnesses = target.witnesses | (self.witnesses & self.voters)
        return target._replace(outgoing=self.voters, witnesses=witnesses)

    def settled(self) -> "Members":
        """The membership that follows a joint one."""
        members = self._replace(outgoing=frozenset())
        return members._replace(witnesses=self.witnesses & members.everyone())

    def encode(self) -> bytes:
        """As lines: voters, outgoing, learners, addresses. If there are witnesses, an empty line is
        in front, and theirs is the line before the addresses: a group has voters, so an earlier
        version of the program rejects this as a group without any."""
        sets = [self.voters, self.outgoing, self.learners]
        parts = [",".join(sorted(ids)) for ids in sets]
        if self.witnesses:
            parts = ["", *parts, ",".join(sorted(self.witnesses))]
        return "\n".join([*parts, self.addresses]).encode()


def members_of(voters: Iterable[NodeId], learners: Iterable[NodeId] = ()) -> Members:
    return Members(frozenset(voters), learners=frozenset(learners))


def decode(data: bytes) -> Members:
    text, witnesses = data.decode(), ""
    if text.startswith("\n"):
        voters, outgoing, learners, witnesses, addresses = text[1:].split("\n", 4)
    else:
        voters, outgoing, learners, addresses = text.split("\n", 3)
    return Members(_ids(voters), _ids(outgoing), _ids(learners), addresses, _ids(witnesses))


def _ids(text: str) -> frozenset[NodeId]:
    return frozenset(text.split(",")) - {""}


def check(members: Members) -> None:
    """Raise UsageError for an invalid membership."""
    if not members.voters:
        raise UsageError("a group needs at least one voter; name the members that stay")
    both = members.voters & members.learners
    if both:
        raise UsageError(f"{', '.join(sorted(both))}: voter and learner at once; choose one")
    _check_witnesses(members)
    for node in members.everyone():
        if not node or set(node) & set(",\n"):
            raise UsageError(f"invalid member name {node!r}: empty, or with a comma or line end")


def _check_witnesses(members: Members) -> None:
    strays = members.witnesses - members.everyone()
    if strays:
        raise UsageError(f"{', '.join(sorted(strays))} is a witness but not a member; add it first")
    for voters in filter(None, (members.voters, members.outgoing)):
        witnesses = sorted(voters & members.witnesses)
        if len(witnesses) > 1:
            raise UsageError(
                f"a group may have one witness, not {' and '.join(witnesses)}: together they would "
                "be a majority that has no messages; remove one of them first"
            )
        if len(witnesses) == len(voters):
            raise UsageError(f"{witnesses[0]} is a witness and has no messages; keep a copy")


def turned(before: Members, after: Members) -> frozenset[NodeId]:
    """The members that would become a witness, or stop being one."""
    both = before.everyone() & after.everyone()
    return (before.witnesses ^ after.witnesses) & both


class MemberHistory:
    """Memberships by the index of their entries, the last one in force.

    Invariant: indices grow, and the first is not above the log's start or the commit index.
    """

    __slots__ = ("_rows", "current", "current_index")

    def __init__(self, rows: Iterable[tuple[LogIndex, Members]]) -> None:
        self._rows = list(rows)
        assert self._rows, "a group without members"
        self.current_index, self.current = self._rows[-1]

    def rows(self) -> tuple[tuple[LogIndex, Members], ...]:
        return tuple(self._rows)

    def append(self, index: LogIndex, members: Members) -> None:
        assert index > self.current_index
        self._rows.append((index, members))
        self.current_index, self.current = index, members

    def cut(self, first: LogIndex) -> bool:
        """Drop memberships from `first` on; returns whether there were any."""
        if self.current_index < first:
            return False
        while self._rows[-1][0] >= first:
            self._rows.pop()
        self.current_index, self.current = self._rows[-1]
        return True

    def trim(self, committed: LogIndex) -> None:
        """Drop memberships that a committed one has replaced."""
        while len(self._rows) > 1 and self._rows[1][0] <= committed:
            del self._rows[0]

    def at(self, index: LogIndex) -> Members:
        """Return the membership in force at this index."""
        return next(members for since, members in reversed(self._rows) if since <= index)

    def replace(self, index: LogIndex, members: Members) -> None:
        """The log restarts behind `index`."""
        self._rows = [(index, members)]
        self.current_index, self.current = index, members

    def previous(self) -> Members | None:
        return self._rows[-2][1] if len(self._rows) > 1 else None

    def has_seat(self, node: NodeId, commit: LogIndex) -> bool:
        """Whether this member may stand for election.

        One that is being removed still may while that is not known to be committed: it can be the
        only one that has the entry that removes it, and then no other member can be elected.
        """
        if self.current.may_lead(node):
            return True
        before = self.previous()
        return self.current_index > commit and before is not None and before.may_lead(node)

    def is_witness(self, node: NodeId) -> bool:
        """Whether a member, or one that is being removed, is a witness. No member changes this."""
        before = self.previous()
        return node in self.current.witnesses or (before is not None and node in before.witnesses)
