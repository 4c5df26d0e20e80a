"""`tianzhou raft`: inspect and change Raft groups."""

from time import monotonic, sleep
from typing import TYPE_CHECKING, Any, Final

import click

from tianzhou.admin.commands import output
from tianzhou.admin.commands.failures import Failure, not_found
from tianzhou.admin.commands.session import (
    Session,
    asking,
    credentials_from_environment,
    force,
    watched,
)
from tianzhou.base.errors import TianzhouError, UsageError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from tianzhou.wire.raft_bodies import RaftPeer, RaftView

ASK_S: Final = 2.0
CHANGE_S: Final = 5.0
"""A leader responds when the change is committed, or after raft_ack_timeout_ms."""
CATCH_UP_S: Final = 600.0
"""Without progress. A member that receives a large log takes longer in all."""
SETTLE_S: Final = 15.0
NEAR: Final = 100
"""A learner that is at most this many entries behind becomes a voter."""
_PAUSE_S: Final = 0.1
_COLUMNS: Final = {
    "member": "member",
    "role": "role",
    "term": "term",
    "leader": "leader",
    "broker": "broker",
    "commit": "commit",
    "applied": "applied",
    "last": "last",
    "lag": "lag",
    "state": "state",
}


@click.group()
def raft() -> None:
    """Inspect Raft groups, transfer leadership, add and remove members."""


@raft.command()
@click.argument("group")
@watched
def status(session: Session, group: str) -> None:
    """Show role, term, committed and applied entries of every member."""
    session.show(lambda: _rows(session, group), _view)


@raft.command()
@click.argument("group")
@click.argument("member")
@asking
def transfer(session: Session, group: str, member: str) -> None:
    """Transfer the leadership of GROUP to MEMBER."""
    is_new = _bring_about(session, group, "transfer", member)
    _say(session, {"group": group, "leader": member}, f"{member} leads {group}", is_new=is_new)


@raft.command()
@click.argument("group")
@click.argument("member", metavar="MEMBER=HOST:PORT")
@click.option("--learner", is_flag=True, help="Add it as a learner, which does not vote.")
@click.option("--witness", is_flag=True, help="Add it as the witness, which has no messages.")
@asking
def add(session: Session, group: str, member: str, learner: bool, witness: bool) -> None:
    """Add a member to GROUP: as a learner, then as a voter once it has caught up.

    Start the member first, with all members and itself in --raft-peers, an empty directory and
    without --raft-new.
    """
    name, sign, address = member.partition("=")
    if not sign:
        raise UsageError(f"{member!r} has no address; use {member}=HOST:PORT")
    if learner and witness:
        raise UsageError("a witness has a vote and a learner has none; pass only one of them")
    known = _peer(_leader(session, group), name)
    if known is not None and known.address != address:
        raise UsageError(
            f"{name} is already a member of {group}, at {known.address}; if it has moved to "
            f"{address}, remove it first"
        )
    joins = "witness" if witness else "learner"
    kind, is_new = "voter" if joins == "learner" and not learner else joins, False
    if learner or _kind(known) != "voter" or _is_witness(known) != witness:
        is_new |= _bring_about(session, group, joins, name, where=address)
    if not learner:
        _wait_for_learner(session, group, name)
        is_new |= _bring_about(session, group, "voter", name)
    facts = {"group": group, "member": name, "kind": kind}
    _say(session, facts, f"{name} is a {kind} of {group}", is_new=is_new)


@raft.command()
@click.argument("group")
@click.argument("member")
@force
@asking
def remove(session: Session, group: str, member: str, yes: bool) -> None:
    """Remove MEMBER from GROUP; afterwards it can be stopped."""
    leader = _leader(session, group)
    voters = [peer.name for peer in leader.peers if peer.is_voter and peer.name != member]
    session.confirm(f"remove {member} from {group}, leaving {', '.join(voters)}?", yes=yes)
    if leader.member == member and (heirs := [p for p in leader.peers if _is_heir(p, member)]):
        # Transfer the leadership first; otherwise the others would have to wait for an election.
        _bring_about(session, group, "transfer", max(heirs, key=lambda peer: peer.match).name)
    is_new = _bring_about(session, group, "remove", member)
    sentence = f"{member} is not a member of {group}; its voters are {', '.join(voters)}"
    _say(session, {"group": group, "removed": member}, sentence, is_new=is_new)


def _say(session: Session, facts: dict[str, Any], sentence: str, *, is_new: bool) -> None:
    """Report the result; a repeated command reports that it was done already."""
    session.done({**facts, "already": not is_new}, sentence + ("" if is_new else " already"))


# Reading the state


def look_at(address: str) -> "RaftView | None":
    """The state of the group as the broker sees it; None if it has no group or does not respond."""
    from tianzhou.net.blocking import BlockingPeer, Unreachable
    from tianzhou.wire._generated_codes import RequestCode
    from tianzhou.wire.raft_bodies import decode_raft_view

    try:
        with BlockingPeer(address, timeout_s=ASK_S) as peer:
            answer, body = peer.call(RequestCode.VIEW_RAFT)
    except Unreachable:
        return None
    return decode_raft_view(body) if answer.code == 0 else None


def cluster_facts(addresses: list[str]) -> dict[str, dict[str, Any]]:
    """Raft columns of `tianzhou cluster`, by broker address."""
    looks = {address: look_at(address) for address in addresses}
    leaders = {look.group: look for look in looks.values() if look is not None and look.is_leading}
    return {
        address: _cluster_row(look, leaders.get(look.group)) if look is not None else {}
        for address, look in looks.items()
    }


def _cluster_row(look: "RaftView", leads: "RaftView | None") -> dict[str, Any]:
    match = {peer.name: peer.match for peer in leads.peers}.get(look.member, -1) if leads else -1
    following = f"follows {look.leader}" if look.leader else "knows no leader"
    return {
        "member": look.member,
        "raft_role": look.role,
        "term": look.term,
        "leader": look.leader,
        "commit": look.commit,
        "applied": look.applied,
        "lag_entries": leads.last - match if leads is not None and match >= 0 else None,
        "following": "" if look.is_leading else "in doubt" if look.is_in_doubt else following,
    }


def cluster_columns(rows: list[dict[str, Any]]) -> dict[str, str]:
    """The Raft columns, if any broker is a member of a group."""
    if not any("member" in row for row in rows):
        return {}
    return {
        "member": "member",
        "term": "term",
        "commit": "commit",
        "applied": "applied",
        "lag_entries": "entries behind",
    }


def _looks(session: Session, group: str) -> "list[tuple[str, RaftView]]":
    places = [place for place in session.admin.brokers.all() if place.name == group]
    addresses = [address for place in places for address in place.addresses.values()]
    found = [(address, look_at(address)) for address in addresses]
    looks = [(address, look) for address, look in found if look is not None]
    if not looks:
        raise not_found(
            f"no broker of {group} is a member of a Raft group; "
            "`tianzhou cluster` lists all brokers"
        )
    return looks


def _rows(session: Session, group: str) -> list[dict[str, Any]]:
    looks = {look.member: (address, look) for address, look in _looks(session, group)}
    newest = max((look for _, look in looks.values()), key=lambda look: look.term)
    leads = next((look for _, look in looks.values() if look.is_leading), newest)
    rows = [_row(*looks[name], leads) for name in sorted(looks)]
    others = [peer for peer in leads.peers if peer.name not in looks]
    return rows + [dict.fromkeys(_COLUMNS) | _row_without_broker(peer) for peer in others]


def _row_without_broker(peer: "RaftPeer") -> dict[str, Any]:
    """A witness, whose state only the others know, or a broker that does not respond."""
    if not peer.is_witness:
        return {"member": peer.name, "state": "away"}
    state = "in doubt: it is being repaired" if peer.is_in_doubt else "votes"
    return {
        "member": peer.name,
        "role": "Witness",
        "state": state if peer.is_connected else "away",
    }


def _row(address: str, look: "RaftView", leads: "RaftView") -> dict[str, Any]:
    match = {peer.name: peer.match for peer in leads.peers}.get(look.member, -1)
    states = [
        text
        for text, is_so in (
            ("accepts messages", look.is_leading),
            ("in doubt: it is being repaired", look.is_in_doubt),
            ("members are changing", look.is_changing and look.is_leading),
            ("needs the witness: too few copies keep up", look.needs_witness),
        )
        if is_so
    ]
    return {
        "member": look.member,
        "role": look.role,
        "term": look.term,
        "leader": look.leader,
        "broker": address,
        "commit": look.commit,
        "applied": look.applied,
        "last": look.last,
        "lag": leads.last - match if match >= 0 else None,
        "state": "; ".join(states),
    }


def _view(rows: list[dict[str, Any]]) -> "RenderableType":
    return output.listing(rows, _COLUMNS, "no member responds")


# Changing the group


def _leader(session: Session, group: str) -> "RaftView":
    looks = [look for _, look in _looks(session, group)]
    for look in looks:
        if look.is_leading:
            return look
    said = ", ".join(f"{look.member} is {look.role} in term {look.term}" for look in looks)
    raise _NotYet(f"{group} has no leader: {said}; wait for an election, or check the members")


def _is_heir(peer: "RaftPeer", leaving: str) -> bool:
    fit = peer.is_voter and peer.is_connected and not (peer.is_in_doubt or peer.is_witness)
    return fit and peer.name != leaving


def _bring_about(
    session: Session, group: str, action: str, member: str, *, where: str = ""
) -> bool:
    """Request the change until it is in effect; return whether it was needed. Repeating a request
    is safe: a response may be lost, and a change as well, with the leader that started it."""
    from tianzhou.net.blocking import Unreachable

    deadline, is_asked, reason = monotonic() + SETTLE_S, False, ""
    with session.busy(f"for {action} {member}"):
        while monotonic() < deadline:
            try:
                look = _leader(session, group)
                if _is_so(look, action, member):
                    return is_asked
                is_asked = True
                _ask(look.leader_broker, action, member, where)
            except (_NotYet, Unreachable) as error:
                reason = f": {error}"
            except Failure:
                if not is_asked:
                    raise
                # Between two leaders there may briefly be no broker that responds.
            sleep(_PAUSE_S)
    raise TianzhouError(
        f"{action} {member}: not done within {SETTLE_S:.0f} s{reason}; check with "
        "`tianzhou raft status`"
    )


def _is_so(look: "RaftView", action: str, member: str) -> bool:
    if action == "transfer":
        return look.member == member
    peer = _peer(look, member)
    if action == "witness":
        return not look.is_changing and _is_witness(peer)
    wanted = "" if action == "remove" else action
    return not look.is_changing and _kind(peer) == wanted


def _peer(look: "RaftView", name: str) -> "RaftPeer | None":
    return next((peer for peer in look.peers if peer.name == name), None)


def _kind(peer: "RaftPeer | None") -> str:
    return "" if peer is None else "voter" if peer.is_voter else "learner"


def _is_witness(peer: "RaftPeer | None") -> bool:
    return peer is not None and peer.is_witness


class _NotYet(TianzhouError):
    """There is no leader now, or the leader is busy with another change."""


def _ask(address: str, action: str, member: str, where: str) -> None:
    from tianzhou.net.blocking import BlockingPeer
    from tianzhou.wire._generated_codes import RequestCode, ResponseCode
    from tianzhou.wire.signing import Credentials

    ext = {"action": action, "member": member, "address": where}
    pair = Credentials.read(credentials_from_environment())
    if pair is not None:
        ext = pair.sign(ext)
    with BlockingPeer(address, timeout_s=CHANGE_S) as peer:
        answer, _ = peer.call(RequestCode.CHANGE_RAFT, ext)
    if answer.code != 0:
        # The member is busy, lost the leadership, or does not know the outcome: check the state and
        # retry.
        passing = (
            ResponseCode.SYSTEM_BUSY,
            ResponseCode.SERVICE_NOT_AVAILABLE,
            ResponseCode.SYSTEM_ERROR,
        )
        kind = _NotYet if answer.code in passing else TianzhouError
        raise kind(f"{address} rejected the request: {answer.remark}")


def _is_near(look: "RaftView", name: str) -> bool:
    peer = _peer(look, name)
    if peer is None or peer.is_in_doubt:
        return False
    if peer.is_witness:
        return peer.is_connected and peer.match >= 0  # it has no log to catch up with
    return peer.match >= look.last - NEAR


def _wait_for_learner(session: Session, group: str, name: str) -> None:
    """Wait until a learner has caught up, and show how much of the log it has."""
    deadline, said, most = monotonic() + CATCH_UP_S, "it has not connected yet", 0
    with session.busy(f"until {name} has caught up") as shown:
        while monotonic() < deadline:
            try:
                look = _leader(session, group)
                if _is_near(look, name):
                    return
                said = _lag_of(look, name)
                if (peer := _peer(look, name)) is not None and peer.match > most:
                    deadline, most = monotonic() + CATCH_UP_S, peer.match
                if hasattr(shown, "update"):  # programs get no progress display
                    shown.update(f"until {name} has caught up: {said}")
            except (_NotYet, Failure):
                pass  # between two leaders there may briefly be no broker that responds
            sleep(_PAUSE_S)
    raise TianzhouError(
        f"{name} made no progress for {CATCH_UP_S:.0f} s: {said}; it stays a learner; check "
        "that it runs and reaches the others, and run the command again"
    )


def _lag_of(look: "RaftView", name: str) -> str:
    peer = _peer(look, name)
    if peer is None or not peer.is_connected or peer.match < 0:
        return "it does not respond to the leader"
    state = ", in doubt" if peer.is_in_doubt else ""
    return f"it has {peer.match:,} of {look.last:,} entries{state}"
