"""The invariants of groups with a witness."""

from tianzhou.raft.messages import Append, Entry, Install, Kind, Message, NodeId
from tianzhou.raft.roles import Role
from tianzhou.testing.sim.raft_checks import Invariant, is_quorum
from tianzhou.testing.sim.raft_member import SimMember


class WitnessesOnlyVote(Invariant):
    """A witness gets no data, only entries that it commits by having them, and it never stands."""

    number = "I16"

    def on_role(self, member: SimMember) -> None:
        if member.is_witness:
            self.demand(member.role is Role.LEARNER, f"the witness {member.id} is {member.role}")

    def on_send(self, member: SimMember, message: Message) -> None:
        to_witness = self.ghost.members[message.to].is_witness
        if type(message) is Install:
            fits = to_witness != bool(message.mark)
            self.demand(fits, f"{message.to} cannot begin with {message}")
            is_settled = message.start.index <= member.live().core.log.commit
            self.demand(is_settled, f"{message.to} begins with {message}, which is not committed")
        if type(message) is not Append:
            return
        for entry in message.entries:
            whole = entry.kind is Kind.MEMBERS or (entry.kind is Kind.OMITTED) == to_witness
            self.demand(whole, f"{message.to} gets {entry}")
        if to_witness and message.entries:
            self._check_last(member, message.to, message.entries[-1])

    def _check_last(self, member: SimMember, witness: NodeId, last: Entry) -> None:
        ghost, node = self.ghost, member.live()
        self.demand(last.term == node.hard.term, f"{witness} gets {last} of another term")
        holders = ghost.durable_on(last.index, last.term)
        copies = {name for name in holders if not ghost.members[name].is_witness}
        # A member may be removed while the message waits for the disk of its sender.
        rows = node.core.log.members.rows()[-2:]
        enough = any(is_quorum(members, copies | {witness}) for _, members in rows)
        self.demand(enough, f"{witness} gets {last}; only {copies} have it on disk")


class AckedCanLead(Invariant):
    """An acknowledged entry is, with its data, on a copy that can be elected."""

    number = "I17"

    def on_ack(self, member: SimMember, entry: Entry) -> None:
        members = member.live().core.log.members.current
        holders = self.ghost.durable_on(entry.index, entry.term)
        copies = {name for name in holders if not self.ghost.members[name].is_witness}
        fit = copies & (members.voters | members.outgoing)
        self.demand(fit, f"{entry} is acknowledged, but only {holders} have it")
