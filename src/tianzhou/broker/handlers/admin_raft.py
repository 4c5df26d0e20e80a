"""Looking at a Raft group and changing it: who leads, who belongs to it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from tianzhou.base.errors import UsageError
from tianzhou.net.exchange import Handler, Refused, Reply, Request
from tianzhou.raft.membership import Members
from tianzhou.raft.node import Refusal
from tianzhou.replication.raft_group import RaftGroup, text_of
from tianzhou.replication.raft_settings import peers_of
from tianzhou.wire import fastjson
from tianzhou.wire._generated_codes import RequestCode, ResponseCode
from tianzhou.wire._generated_headers_cluster import ChangeRaftRequest
from tianzhou.wire.raft_bodies import RaftLook, RaftPeer

TRANSFER: Final = "transfer"
LEARNER: Final = "learner"
VOTER: Final = "voter"
REMOVE: Final = "remove"


@dataclass(slots=True)
class AdminRaft:
    """Owner: the broker loop."""

    group: RaftGroup | None = None
    """Set by whoever makes this broker a member of one."""

    def handlers(self) -> dict[int, Handler]:
        return {RequestCode.LOOK_AT_RAFT: self.look, RequestCode.CHANGE_RAFT: self.change}

    def _group(self) -> RaftGroup:
        if self.group is None:
            raise Refused(
                ResponseCode.INVALID_PARAMETER, "this broker is no member of a Raft group"
            )
        return self.group

    def told(self) -> RaftLook | None:
        """None: this broker is no member of a group."""
        return None if self.group is None else look_at(self.group)

    def look(self, _request: Request) -> Reply:
        return Reply(body=fastjson.encode(look_at(self._group())))

    def change(self, request: Request) -> Reply:
        wanted, group = ChangeRaftRequest.from_ext(request.header.ext), self._group()
        try:
            if wanted.action == TRANSFER:
                refusal = group.transfer(wanted.member)
            else:
                target = changed(
                    group.members, wanted.action, wanted.member, address=wanted.address or ""
                )
                done = group.change(target)
                refusal = done if isinstance(done, Refusal) else None
        except UsageError as error:
            raise Refused(ResponseCode.INVALID_PARAMETER, str(error)) from error
        if refusal is not None:
            leads = group.node.leader or "nobody"
            # All but one are of the moment: whoever asks again may get it.
            is_final = refusal is Refusal.UNFIT
            code = ResponseCode.INVALID_PARAMETER if is_final else ResponseCode.SYSTEM_BUSY
            raise Refused(code, f"{refusal.value}; {leads} leads")
        return Reply()


def changed(members: Members, action: str, member: str, *, address: str) -> Members:
    """The members that are wanted; those that there are, if it is so already. Raises UsageError."""
    addresses = peers_of(members.addresses)
    voters, learners = members.voters - {member}, members.learners - {member}
    if action == REMOVE:
        addresses.pop(member, None)
    elif action in (LEARNER, VOTER):
        if address:
            addresses |= peers_of(f"{member}={address}")
        if member not in addresses:
            raise UsageError(f"where is {member}? say {member}=host:port")
        if action == VOTER:
            voters |= {member}
        elif members.may_vote(member):
            raise UsageError(f"{member} has a vote; to make it a learner remove it first")
        else:
            learners |= {member}
    else:
        raise UsageError(f"{action!r} is none of {TRANSFER}, {LEARNER}, {VOTER}, {REMOVE}")
    return members._replace(voters=voters, learners=learners, addresses=text_of(addresses))


def look_at(group: RaftGroup) -> RaftLook:
    node = group.node
    raft_log = node.core.log
    members, history = raft_log.members.current, raft_log.members
    addresses = group.addresses()
    return RaftLook(
        applied=group.applied, commit=raft_log.commit, first=raft_log.start.index + 1,
        group=group.storage.group.name,
        is_changing=bool(members.outgoing) or history.current_index > raft_log.commit,
        is_in_doubt=bool(node.hard.doubt), is_leading=group.is_leading, last=raft_log.last,
        leader=node.leader, leader_broker=group.leader_broker, member=node.id,
        peers=tuple(_peers(group, members, addresses)), role=node.role.value, term=node.hard.term,
    )  # fmt: skip


def _peers(group: RaftGroup, members: Members, addresses: Mapping[str, str]) -> list[RaftPeer]:
    node, found = group.node, list[RaftPeer]()
    for name in sorted(members.everyone()):
        known, is_self = node.core.peers.get(name), name == node.id
        match = int(known.match) if known is not None else -1
        doubt = known.doubt if known is not None else node.hard.doubt if is_self else 0
        found.append(
            RaftPeer(
                address=addresses.get(name, ""),
                is_connected=is_self or group.peers.is_connected(name),
                is_in_doubt=bool(doubt), is_voter=members.may_vote(name),
                match=int(node.core.log.stable) if is_self and node.core.peers else match,
                name=name,
            )
        )  # fmt: skip
    return found
