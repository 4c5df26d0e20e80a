"""Requests that inspect a Raft group, and change its leader or its members."""

import re
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from tianzhou.base.errors import UsageError
from tianzhou.broker.replica.gate import unknown
from tianzhou.broker.replica.mode import Mode
from tianzhou.broker.replica.raft_view import view_of
from tianzhou.net.router import encode_reply
from tianzhou.net.rpc import Handler, Reply, Request, RequestRejected
from tianzhou.raft.membership import Members
from tianzhou.raft.node import Refusal
from tianzhou.raft.roles import Role
from tianzhou.replication.durability import Outcome
from tianzhou.replication.raft_group import RaftGroup
from tianzhou.replication.raft_settings import is_loopback, peers_of, text_of
from tianzhou.wire import fastjson
from tianzhou.wire._generated_codes import RequestCode, ResponseCode
from tianzhou.wire._generated_headers_cluster import ChangeRaftRequest

TRANSFER: Final = "transfer"
LEARNER: Final = "learner"
WITNESS: Final = "witness"
"""Joins as a learner, too, and gets its vote like one."""
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


class AdminRaft:
    """Requests of operators about the Raft group. Owner: the broker loop."""

    def __init__(self, mode: Mode, monotonic_s: Callable[[], float]) -> None:
        self._mode = mode
        self._monotonic_s = monotonic_s
        self._waiting: list[_Waiting] = []

    def handlers(self) -> dict[int, Handler]:
        return {RequestCode.VIEW_RAFT: self.view, RequestCode.CHANGE_RAFT: self.change}

    def view(self, _request: Request) -> Reply:
        return Reply(body=fastjson.encode(view_of(self._mode.raft_group())))

    def change(self, request: Request) -> Reply | None:
        """Transfer the leadership or change the members; a change is confirmed when it is
        committed."""
        wanted, group = ChangeRaftRequest.from_ext(request.header.ext), self._mode.raft_group()
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
        deadline_s = self._monotonic_s() + self._mode.change_timeout_s()
        self._waiting.append(_Waiting(request, target, group.node.hard.term, deadline_s))
        self.progressed()
        return None

    def progressed(self) -> None:
        """Answer waiting requests: entries were committed, the leader changed, or a timeout
        passed."""
        if not self._waiting:
            return
        group, waiting = self._mode.raft_group(), self._waiting
        self._waiting = []
        for change in waiting:
            reply = self._outcome(change, group)
            if reply is None:
                self._waiting.append(change)
            elif not change.request.header.is_oneway:
                change.request.peer.send(encode_reply(change.request.header, reply))

    def _outcome(self, waiting: _Waiting, group: RaftGroup) -> Reply | None:
        log = group.node.core.log
        if log.members.current == waiting.target and log.members.current_index <= log.commit:
            return Reply()
        if (group.node.role, group.node.hard.term) != (Role.LEADER, waiting.term):
            return unknown(Outcome.NOT_MASTER)
        return unknown(Outcome.NO_QUORUM) if self._monotonic_s() >= waiting.deadline_s else None


def _raise_if_refused(refusal: Refusal | None, group: RaftGroup) -> None:
    if refusal is not None:
        # The other refusals are temporary: a client that retries may succeed.
        is_final = refusal in (Refusal.UNFIT, Refusal.NOT_A_LEARNER)
        code = ResponseCode.INVALID_PARAMETER if is_final else ResponseCode.SYSTEM_BUSY
        raise RequestRejected(
            code, f"{refusal.value}; the leader is {group.node.leader or 'unknown'}"
        )


def changed(members: Members, action: str, member: str, *, address: str) -> Members:
    """The members after the requested change; the present ones if nothing changes. Raises
    UsageError."""
    addresses = peers_of(members.addresses)
    voters, learners = members.voters - {member}, members.learners - {member}
    witnesses = members.witnesses
    if action == REMOVE:
        addresses.pop(member, None)
        witnesses -= {member}
    elif action in (LEARNER, WITNESS, VOTER):
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
            if action == WITNESS:
                witnesses |= {member}
    else:
        raise UsageError(
            f"action {action[:64]!r} must be one of {TRANSFER}, {LEARNER}, {WITNESS}, {VOTER}, "
            f"{REMOVE}"
        )
    return members._replace(
        voters=voters, learners=learners, addresses=text_of(addresses), witnesses=witnesses
    )


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
