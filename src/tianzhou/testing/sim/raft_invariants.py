"""The invariants of a Raft group, as classes; docs/raft.md states each in one sentence.

They are checked while a simulation runs, after every event that could break them. The safety
ones are from the Raft paper (figure 3); the others are guarantees of this implementation.
"""

from collections.abc import Iterator
from typing import Final

from tianzhou.raft.membership import Members, decode
from tianzhou.raft.messages import (
    Append,
    AppendReply,
    Entry,
    Install,
    Kind,
    LogIndex,
    Message,
    NodeId,
    Term,
    VoteReply,
    VoteRequest,
)
from tianzhou.raft.ready import HardState, Save
from tianzhou.raft.roles import Role
from tianzhou.testing.sim.raft_checks import Before, Ghost, Invariant, is_quorum
from tianzhou.testing.sim.raft_member import SimMember
from tianzhou.testing.sim.raft_witness_invariants import AckedCanLead, WitnessesOnlyVote

MEMBERS_BYTES: Final = 100
"""A change of members is taken even if no chunk would be; here it is never larger."""
_STANDING: Final = (Role.PRE_CANDIDATE, Role.CANDIDATE, Role.LEADER)


class OneLeaderPerTerm(Invariant):
    """A term has one leader at most; terms and votes never go back."""

    number = "I1"

    def __init__(self, ghost: Ghost) -> None:
        super().__init__(ghost)
        self._leaders: dict[Term, tuple[NodeId, int]] = {}

    def on_role(self, member: SimMember) -> None:
        if member.role is Role.LEADER:
            this = member.id, member.life
            leader = self._leaders.setdefault(member.term, this)
            self.demand(leader == this, f"{leader} and {this} both lead term {member.term}")

    def on_synced(self, member: SimMember, before: HardState) -> None:
        now = member.disk.state
        self.demand(now.term >= before.term, f"{member.id} goes from {before} back to {now}")
        if now.term == before.term and before.vote:
            self.demand(now.vote == before.vote, f"{member.id} changes its vote to {now}")


class LogsOnlyGrow(Invariant):
    """A leader never truncates its log; no member truncates committed entries."""

    number = "I2"

    def on_save(self, member: SimMember, save: Save) -> None:
        if save.entries:
            first = save.entries[0].index
            self.demand(
                first > member.disk.start.index or save.begin, "an expired entry is written"
            )
            known = self._known(member)
            self.demand(first > known, f"{member.id} writes {first}; {known} is committed")
            if member.role is Role.LEADER and member.live().role is Role.LEADER:
                end = member.disk.last
                self.demand(first > end, f"the leader {member.id} cuts {end} back to {first}")
        if save.begin is not None:
            start = save.begin.start.index
            self.demand(start >= member.disk.commit, f"{member.id} begins before its commit index")

    def _known(self, member: SimMember) -> LogIndex:
        """The last entry on disk that the member knows to be committed. While a save waited for
        room, others may have been replaced and committed that the disk has in their old form."""
        disk, terms = member.disk, member.live().core.log.terms
        known = min(max(disk.commit, member.commit), disk.last)
        while known > max(disk.commit, disk.start.index) and disk.term_at(known) != terms.at(known):
            known = LogIndex(known - 1)
        return known


class LogsMatch(Invariant):
    """Index and term of an entry decide everything up to it, byte for byte."""

    number = "I3"

    def __init__(self, ghost: Ghost) -> None:
        super().__init__(ghost)
        self._chains: dict[tuple[LogIndex, Term], int] = {}

    def on_save(self, member: SimMember, save: Save) -> None:
        if not save.entries:
            return
        disk, expected = member.disk, save.entries[0].index
        start = save.begin.start.index if save.begin else disk.start.index
        last = start if save.begin else disk.last
        self.demand(start < expected <= last + 1, f"{member.id} leaves a gap at {expected}")
        if member.is_witness:
            return
        chain = disk.chain_before(save)
        for entry in save.entries:
            self.demand(entry.index == expected, f"{member.id} has {entry} at {expected}")
            expected += 1
            chain = disk.chain(chain, entry)
            known = self._chains.setdefault((entry.index, entry.term), chain)
            if known != chain:
                self.demand(False, f"{member.id} has another log up to {entry.index}")


class LeadersAreComplete(Invariant):
    """An elected leader has everything that was committed in earlier terms.

    One that slept may win an old term late. It knows nothing of what came after, and does no harm.
    """

    number = "I4"

    def on_role(self, member: SimMember) -> None:
        ghost = self.ghost
        if member.role is Role.LEADER and member.term > ghost.commit_term:
            log = member.live().core.log
            has = log.start.index >= ghost.commit or (
                log.terms.at(ghost.commit) == ghost.commit_term
            )
            self.demand(has, f"{member.id} leads without {ghost.commit}, which is committed")


class CommittedMeansSame(Invariant):
    """No two members apply different entries at an index; commit indices are sound and grow."""

    number = "I5"

    def __init__(self, ghost: Ghost) -> None:
        super().__init__(ghost)
        self._applied: list[int] = [0]

    def on_commit(self, member: SimMember, before: LogIndex) -> None:
        log = member.live().core.log
        self.demand(
            log.commit > before,
            f"{member.id} lowers its commit index from {before} to {log.commit}",
        )
        self.demand(log.commit <= log.last, f"{member.id} commits {log.commit} of {log.last}")

    def on_apply(self, member: SimMember, first: LogIndex, end: LogIndex) -> None:
        if member.is_witness:
            return
        applied = self._applied
        if end > len(applied):
            missing = LogIndex(len(applied))
            self.demand(
                first <= missing, f"no member has applied {missing}, but {member.id} {first}"
            )
            applied += member.disk.chains(missing, end)
        mine = member.disk.chains(first, end)
        self.demand(mine == applied[first:end], f"{member.id} applies others in {first}..{end - 1}")


class AckedIsDurable(Invariant):
    """Acknowledged entries are synced on the disks of a majority."""

    number = "I6"

    def on_ack(self, member: SimMember, entry: Entry) -> None:
        members = member.live().core.log.members.current
        holders = self.ghost.durable_on(entry.index, entry.term)
        self.demand(is_quorum(members, holders), f"{entry} is acknowledged; only {holders} have it")


class PersistBeforeSend(Invariant):
    """A member sends only what is already true on its disk."""

    number = "I7"

    def on_send(self, member: SimMember, message: Message) -> None:
        disk = member.disk
        if type(message) is AppendReply:
            self.demand(disk.state.term >= message.term, f"{message} before {disk.state}")
            has = message.match <= disk.last
            self.demand(has, f"{message}, but the disk of {member.id} ends at {disk.last}")
        elif type(message) is VoteReply and message.granted and not message.pre:
            self._demand_vote(member, message.term, message.to)
        elif (type(message) is VoteRequest and not message.pre) or type(message) is Append:
            self._demand_vote(member, message.term, member.id)

    def _demand_vote(self, member: SimMember, term: Term, vote: NodeId) -> None:
        state = member.disk.state
        has = state.term > term or (state.term == term and state.vote == vote)
        self.demand(has, f"{member.id} speaks of a vote for {vote} in {term}; on disk is {state}")


class CommitOwnTermOnly(Invariant):
    """A leader commits by counting only entries of its own term, and counts correctly."""

    number = "I8"

    def on_commit(self, member: SimMember, before: LogIndex) -> None:
        ghost, node = self.ghost, member.live()
        log = node.core.log
        term = log.terms.at(log.commit)
        if node.role is Role.LEADER:
            self.demand(term == node.hard.term, f"{member.id} commits {log.commit} of {term}")
            holders = ghost.durable_on(log.commit, term)
            members = log.members.current
            counted = is_quorum(members, holders)
            self.demand(counted, f"{member.id} commits {log.commit}; only {holders} have it")
        if log.commit > ghost.commit:
            ghost.commit, ghost.commit_term = log.commit, term


class AckedStays(Invariant):
    """An acknowledged entry is the committed entry at its index, permanently."""

    number = "I9"

    def __init__(self, ghost: Ghost) -> None:
        super().__init__(ghost)
        self._terms: dict[LogIndex, Term] = {}

    def on_ack(self, member: SimMember, entry: Entry) -> None:
        node = member.live()
        leads = node.role is Role.LEADER and node.hard.term == entry.term
        self.demand(leads, f"{member.id} acknowledges {entry} as {node.role} of {node.hard.term}")
        term = self._terms.setdefault(entry.index, entry.term)
        self.demand(term == entry.term, f"{entry} is acknowledged, and one of {term} before")

    def on_apply(self, member: SimMember, first: LogIndex, end: LogIndex) -> None:
        for index in range(first, end):
            acked = self._terms.get(LogIndex(index))
            if acked is not None:
                found = member.disk.term_at(LogIndex(index))
                self.demand(acked == found, f"{index} was acknowledged in {acked}, not {found}")


class ElectionsDisturbNobody(Invariant):
    """Pre-votes change nothing; a member that hears a leader rejects them."""

    number = "I10"

    def __init__(self, ghost: Ghost) -> None:
        super().__init__(ghost)
        self._ticks: dict[NodeId, int] = dict.fromkeys(ghost.members, 0)
        self._leader_heard: dict[NodeId, int] = {}
        """When, in its own ticks, a member last heard its leader."""
        self._answered: dict[tuple[NodeId, NodeId], int] = {}
        """When, in its own ticks, a leader last got a response from a member."""
        self._led: dict[NodeId, Members] = {}

    def on_start(self, member: SimMember) -> None:
        self._leader_heard.pop(member.id, None)

    def on_lost(self, member: SimMember, peer: SimMember) -> None:
        if member.live().leader == peer.id:
            self._leader_heard.pop(member.id, None)

    def on_role(self, member: SimMember) -> None:
        if member.role is Role.LEADER:
            for name in self.ghost.members:
                self._answered[member.id, name] = self._ticks[member.id]
        if not member.live().leader:
            self._leader_heard.pop(member.id, None)

    def on_delivered(self, member: SimMember, message: Message) -> None:
        kind = type(message)
        if kind is Append or kind is Install:
            if message.term == member.live().hard.term:
                self._leader_heard[member.id] = self._ticks[member.id]
        elif kind is AppendReply and message.term == member.live().hard.term:
            self._answered[member.id, message.sender] = self._ticks[member.id]

    def on_asked(self, member: SimMember, request: VoteRequest, before: Before) -> None:
        node = member.live()
        if request.pre:
            same = node.hard == before.hard
            self.demand(same, f"{member.id} goes from {before.hard} to {node.hard}")
        heard = self._leader_heard.get(member.id)
        if heard is None or request.forced:
            return
        if self._ticks[member.id] - heard < member.config.election_ticks:
            same = node.hard == before.hard
            self.demand(same, f"{member.id} hears a leader, and heeds {request}")
            for reply in node.core.outbox[before.outbox :]:
                votes = type(reply) is VoteReply and reply.granted
                self.demand(not votes, f"{member.id} hears a leader, and answers {reply}")

    def on_tick(self, member: SimMember) -> None:
        now = self._ticks[member.id] = self._ticks[member.id] + 1
        if member.role is not Role.LEADER:
            return
        members = member.live().core.log.members.current
        known = self._led.setdefault(member.id, members)
        if known is not members:
            for name in (members.voters | members.outgoing) - known.voters:
                self._answered[member.id, name] = now  # until now its responses did not matter
            self._led[member.id] = members
        recent = now - member.config.election_ticks - 1
        heard = {member.id, *self._answered_by(member.id, recent)}
        self.demand(is_quorum(members, heard), f"{member.id} leads, heard only by {heard}")

    def _answered_by(self, leader: NodeId, recent: int) -> Iterator[NodeId]:
        for name in self.ghost.members:
            if self._answered[leader, name] > recent:
                yield name


class MembersChangeSafely(Invariant):
    """One change at a time with overlapping majorities; new voters have caught up and respond.

    A leader begins a change after it has committed an entry of its own term. A member gets a vote
    only if it was a learner that lacked few entries, and a majority of the voters that the change
    leaves must have answered this leader."""

    number = "I11"

    def __init__(self, ghost: Ghost) -> None:
        super().__init__(ghost)
        self._answered: dict[tuple[Term, NodeId], set[NodeId]] = {}
        """By term and leader: the members whose responses it has processed."""

    def on_delivered(self, member: SimMember, message: Message) -> None:
        if type(message) is AppendReply:
            self._answered.setdefault((message.term, member.id), set()).add(message.sender)

    def on_save(self, member: SimMember, save: Save) -> None:
        node = member.live()
        if node.role is not Role.LEADER:
            return
        for entry in save.entries:
            if entry.kind is Kind.MEMBERS and entry.term == node.hard.term:
                self._check(member, entry)

    def _check(self, member: SimMember, entry: Entry) -> None:
        log = member.live().core.log
        rows = log.members.rows()
        rank = [index for index, _ in rows].index(entry.index)
        before_index, before = rows[rank - 1]
        self.demand(before_index <= log.commit, f"{before_index} is not committed before {entry}")
        first = log.terms.at(log.commit) == entry.term
        self.demand(first, f"{member.id} changes members in {entry.term}, committed {log.commit}")
        after = decode(entry.data)
        self.demand(_adjacent(before, after), f"{before} and {after} have no majority in common")
        if not before.outgoing:
            self._check_newcomers(member, entry, before, after)

    def _check_newcomers(
        self, member: SimMember, entry: Entry, before: Members, after: Members
    ) -> None:
        node = member.live()
        enough = entry.index - 1 - node.core.config.learner_lag_max
        for name in after.voters - before.voters:
            self.demand(name in before.learners, f"{name} gets a vote but was not a learner")
            newcomer = self.ghost.members[name]
            last = newcomer.disk.last
            has_enough = newcomer.is_witness or last >= enough
            self.demand(has_enough, f"{name} gets a vote with {last} of {entry.index - 1}")
        answered = self._answered.get((entry.term, member.id), set()) | {member.id}
        is_majority = 2 * len(after.voters & answered) > len(after.voters)
        self.demand(is_majority, f"{after} at {member.id}, to whom only {answered} responded")


def _adjacent(before: Members, after: Members) -> bool:
    if before.outgoing:
        return after.voters == before.voters and not after.outgoing
    if after.outgoing:
        return after.outgoing == before.voters
    return len(before.voters ^ after.voters) <= 1


class DoubtCountsNot(Invariant):
    """A member that may have lost data neither votes nor stands for election."""

    number = "I12"

    def on_role(self, member: SimMember) -> None:
        # The node's own state: it may know that it is repaired before its disk does, and stand,
        # but nothing of that leaves before the disk knows it, too; see `on_send`.
        if member.live().hard.doubt:
            self.demand(member.role not in _STANDING, f"{member.id} in doubt is {member.role}")

    def on_send(self, member: SimMember, message: Message) -> None:
        if member.disk.state.doubt:
            votes = type(message) is VoteReply and message.granted
            stands = type(message) in (VoteRequest, Append)
            self.demand(not votes and not stands, f"{member.id} is in doubt, and says {message}")

    def on_synced(self, member: SimMember, before: HardState) -> None:
        """Repaired: it has again all that was committed when it was damaged, or since."""
        disk = member.disk
        if before.doubt and not disk.state.doubt:
            ghost = self.ghost
            acked = ghost.acked_entries
            owed = [i for i in sorted(acked.keys() & disk.lost.keys()) if disk.had(i, acked[i][0])]
            missing = [i for i in owed if not disk.has(i, acked[i][0])]
            self.demand(not missing, f"{member.id} counts as repaired without {missing}")


class ReadsAreFresh(Invariant):
    """A read sees everything that was acknowledged before it began."""

    number = "I13"

    def on_read(self, member: SimMember, asked_at: LogIndex, index: LogIndex) -> None:
        self.demand(index >= asked_at, f"{member.id} reads {index}; {asked_at} was acknowledged")


class ReplicasAreIdentical(Invariant):
    """Up to the commit index all logs have the same bytes at the same physical offsets."""

    number = "I14"

    def __init__(self, ghost: Ghost) -> None:
        super().__init__(ghost)
        self._physical: dict[LogIndex, int] = {}

    def on_apply(self, member: SimMember, first: LogIndex, end: LogIndex) -> None:
        if member.is_witness:
            return
        last = LogIndex(end - 1)
        mine = member.disk.physical_of(last)
        other = self._physical.setdefault(last, mine)
        self.demand(mine == other, f"{member.id} has {last} at {mine}, another at {other}")


class EverythingIsBounded(Invariant):
    """Windows, mailboxes and what waits in memory have limits."""

    number = "I15"

    def on_tick(self, member: SimMember) -> None:
        core, config = member.live().core, member.config
        for name, peer in core.leading.peers.items():
            full = peer.inflight > config.inflight_max
            self.demand(not full, f"{member.id} has {peer.inflight} messages out to {name}")
        if member.role is Role.LEADER:
            waiting = core.leading.uncommitted_bytes
            limit = config.uncommitted_bytes_max + MEMBERS_BYTES
            self.demand(waiting <= limit, f"{waiting} bytes uncommitted")
            counted = sum(size for _, size in core.leading.uncommitted)
            self.demand(waiting == counted, f"{waiting} bytes said to wait, {counted} do")
        self.demand(len(core.outbox) < 1000, f"{member.id} keeps {len(core.outbox)} messages")


ALL: Final[tuple[type[Invariant], ...]] = (
    OneLeaderPerTerm,
    LogsOnlyGrow,
    LogsMatch,
    LeadersAreComplete,
    CommittedMeansSame,
    AckedIsDurable,
    PersistBeforeSend,
    CommitOwnTermOnly,
    AckedStays,
    ElectionsDisturbNobody,
    MembersChangeSafely,
    DoubtCountsNot,
    ReadsAreFresh,
    ReplicasAreIdentical,
    EverythingIsBounded,
    WitnessesOnlyVote,
    AckedCanLead,
)


def all_invariants(ghost: Ghost) -> list[Invariant]:
    return [kind(ghost) for kind in ALL]
