"""Looking at a Raft group and changing it: who leads, who belongs to it."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from tianzhou.base.errors import UsageError
from tianzhou.broker.replica.gate import unknown
from tianzhou.net.router import encode_reply
from tianzhou.net.rpc import Handler, Reply, Request, RequestRejected
from tianzhou.raft.membership import Members
from tianzhou.raft.node import Refusal
from tianzhou.raft.roles import Role
from tianzhou.replication.durability import Outcome
from tianzhou.replication.raft_group import RaftGroup, text_of
from tianzhou.replication.raft_settings import is_loopback, peers_of
from tianzhou.wire import fastjson
from tianzhou.wire._generated_codes import RequestCode, ResponseCode
from tianzhou.wire._generated_headers_cluster import ChangeRaftRequest
from tianzhou.wire.raft_bodies import RaftPeer, RaftView

TRANSFER: Final = "transfer"
LEARNER: Final = "learner"
VOTER: Final = "voter"
REMOVE: Final = "remove"
MEMBERS_MAX: Final = 16
"""Members of a group, learners included: the leader sends the log to each."""
_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,64}")


class _Waiting(NamedTuple):
    request: Request
    target: Members
    term: int
    deadline_s: float


@dataclass(slots=True)
class AdminRaft:
    """Owner: the broker loop."""

    monotonic_s: Callable[[], float]
    group: RaftGroup | None = None
    """Set by whoever makes this broker a member of one."""
    timeout_s: float = 0.0
    """How long the response to a change of members may wait for the commit."""
    _waiting: "list[_Waiting]" = field(default_factory=list["_Waiting"])

    def handlers(self) -> dict[int, Handler]:
        return {RequestCode.VIEW_RAFT: self.look, RequestCode.CHANGE_RAFT: self.change}

    def _group(self) -> RaftGroup:
        if self.group is None:
            raise RequestRejected(
                ResponseCode.INVALID_PARAMETER, "this broker is no member of a Raft group"
            )
        return self.group

    def told(self) -> RaftView | None:
        """None: this broker is no member of a group."""
        return None if self.group is None else look_at(self.group)

    def look(self, _request: Request) -> Reply:
        return Reply(body=fastjson.encode(look_at(self._group())))

    def change(self, request: Request) -> Reply | None:
        """Transfer the leadership or change the members; a change is confirmed when it is
        committed."""
        wanted, group = ChangeRaftRequest.from_ext(request.header.ext), self._group()
        try:
            if wanted.action == TRANSFER:
                _raise_if_refused(group.transfer(wanted.member), group)
                return Reply()
            target = changed(
                group.members, wanted.action, wanted.member, address=wanted.address or ""
            )
            index = group.change(target)
        except UsageError as error:
            raise RequestRejected(ResponseCode.INVALID_PARAMETER, str(error)) from error
        if isinstance(index, Refusal):
            _raise_if_refused(index, group)
        deadline_s = self.monotonic_s() + self.timeout_s
        self._waiting.append(_Waiting(request, target, group.node.hard.term, deadline_s))
        self.progressed()
        return None

    def progressed(self) -> None:
        """Answer waiting requests: entries were committed, the leader changed, or a timeout
        passed."""
        if self._waiting and self.group is not None:
            waiting, self._waiting = self._waiting, []
            for one in waiting:
                reply = self._outcome(one, self.group)
                if reply is None:
                    self._waiting.append(one)
                elif not one.request.header.is_oneway:
                    one.request.peer.send(encode_reply(one.request.header, reply))

    def _outcome(self, waiting: "_Waiting", group: RaftGroup) -> Reply | None:
        log = group.node.core.log
        if log.members.current == waiting.target and log.members.current_index <= log.commit:
            return Reply()
        if (group.node.role, group.node.hard.term) != (Role.LEADER, waiting.term):
            return unknown(Outcome.NOT_MASTER)
        return unknown(Outcome.NO_QUORUM) if self.monotonic_s() >= waiting.deadline_s else None


def _raise_if_refused(refusal: Refusal | None, group: RaftGroup) -> None:
    if refusal is not None:
        # The other refusals are temporary: a client that retries may succeed.
        is_final = refusal in (Refusal.UNFIT, Refusal.NOT_A_LEARNER)
        code = ResponseCode.INVALID_PARAMETER if is_final else ResponseCode.SYSTEM_BUSY
        raise RequestRejected(
            code, f"{refusal.value}; the leader is {group.node.leader or 'unknown'}"
        )


def changed(members: Members, action: str, member: str, *, address: str) -> Members:
    """The members that are wanted; those that there are, if it is so already. Raises UsageError."""
    addresses = peers_of(members.addresses)
    voters, learners = members.voters - {member}, members.learners - {member}
    if action == REMOVE:
        addresses.pop(member, None)
    elif action in (LEARNER, VOTER):
        if address:
            addresses |= {member: _checked_address(addresses, member, address)}
        if member not in addresses:
            raise UsageError(f"the address of {member} is missing; use {member}=host:port")
        if len(members.everyone() | {member}) > MEMBERS_MAX:
            raise UsageError(f"a group has at most {MEMBERS_MAX} members; remove some first")
        if action == VOTER:
            voters |= {member}
        elif members.may_vote(member):
            raise UsageError(f"{member} has a vote; to make it a learner remove it first")
        else:
            learners |= {member}
    else:
        raise UsageError(
            f"action {action[:64]!r} must be one of {TRANSFER}, {LEARNER}, {VOTER}, {REMOVE}"
        )
    return members._replace(voters=voters, learners=learners, addresses=text_of(addresses))


def _checked_address(known: Mapping[str, str], member: str, address: str) -> str:
    """Validate the address that the leader will connect to. Raises UsageError."""
    if not _NAME.fullmatch(member):
        raise UsageError(
            f"invalid member name {member[:64]!r}; use up to 64 letters, digits, dots, _ and -"
        )
    if ";" in address:
        raise UsageError(f"invalid peer address {address[:128]!r}; use one host:port")
    (checked,) = peers_of(f"{member}={address}").values()
    if known.get(member, checked) != checked:
        raise UsageError(
            f"{member} is already a member, at {known[member]}; if it has moved to {checked}, "
            "remove it first"
        )
    owner = next((name for name, held in known.items() if held == checked and name != member), None)
    if owner is not None:
        raise UsageError(f"{checked} is the address of {owner}; give each member its own")
    if is_loopback(checked) and not all(map(is_loopback, known.values())):
        raise UsageError(
            f"{checked} is a different machine for each member; use an address all can reach"
        )
    return checked


def look_at(group: RaftGroup) -> RaftView:
    node = group.node
    raft_log = node.core.log
    members, history = raft_log.members.current, raft_log.members
    addresses = group.addresses()
    return RaftView(
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
