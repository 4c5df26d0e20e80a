"""A Raft group as operators see it: the state of one member, and what it knows of the others."""

from collections.abc import Mapping

from tianzhou.raft.membership import Members
from tianzhou.replication.raft_group import RaftGroup
from tianzhou.store.retention import Hold
from tianzhou.wire.raft_bodies import RaftPeer, RaftView


def view_of(group: RaftGroup) -> RaftView:
    """The state of the member, and of its peers as far as it knows."""
    node = group.node
    raft_log = node.core.log
    members, history = raft_log.members.current, raft_log.members
    addresses = group.contacts.addresses()
    return RaftView(
        applied=group.applied,
        commit=raft_log.commit,
        first=raft_log.start.index + 1,
        group=group.storage.group.name,
        is_changing=bool(members.outgoing) or history.current_index > raft_log.commit,
        is_in_doubt=bool(node.hard.doubt),
        is_leading=group.is_leading,
        last=raft_log.last,
        leader=node.leader,
        leader_broker=group.leader_broker,
        member=node.id,
        needs_witness=group.needs_witness,
        peers=tuple(_peers(group, members, addresses)),
        role=node.role.value,
        term=node.hard.term,
    )


def hold_of(group: RaftGroup) -> Hold | None:
    """What the member that is furthest behind still needs of the leader's log. A member whose
    progress is unknown, or that may have lost entries, needs all of it; a witness has no messages
    and needs none of it."""
    if not group.is_leading:
        return None
    node, raft_log = group.node, group.node.core.log
    holds: list[Hold] = []
    members = raft_log.members.current
    for name in members.everyone() - members.witnesses - {node.id}:
        known = node.core.leading.peers.get(name)
        match = 0 if known is None or known.doubt else int(known.match)
        start = raft_log.start.index
        offset = int(group.storage.end_of(known.match)) if known and match > start else 0
        if match < raft_log.last:
            holds.append(Hold(offset, f"member {name} does not have them yet"))
    return min(holds, default=None)


def _peers(group: RaftGroup, members: Members, addresses: Mapping[str, str]) -> list[RaftPeer]:
    node, found = group.node, list[RaftPeer]()
    for name in sorted(members.everyone()):
        known, is_self = node.core.leading.peers.get(name), name == node.id
        match = int(known.match) if known is not None else -1
        doubt = known.doubt if known is not None else node.hard.doubt if is_self else 0
        found.append(
            RaftPeer(
                address=addresses.get(name, ""),
                is_connected=is_self or group.peers.is_connected(name),
                is_in_doubt=bool(doubt),
                is_voter=members.may_vote(name),
                is_witness=name in members.witnesses,
                match=int(node.core.log.stable) if is_self and node.core.leading.peers else match,
                name=name,
            )
        )
    return found
