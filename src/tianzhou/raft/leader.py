"""Behaviour of a leader: append, replicate, commit, transfer leadership, repair.

A witness gets the index and term of entries, and its acknowledgement counts like that of a copy,
but it is asked last. As long as the copies that keep up are a majority by themselves, they alone
commit, and the witness only gets what is committed. So its log is never ahead of theirs, and if the
leader dies, it can vote for any of them. When too few copies keep up, the witness gets the entries
that it alone keeps from being committed. Its log is then ahead of copies that are behind, and it
votes for none of these: the group waits for a copy that has everything.

So its log never has an entry that is not committed once it has it. Otherwise it could be ahead of
every copy that is left, for an entry that was acknowledged to no client.
"""

from collections import deque
from collections.abc import Iterable
from typing import Final

from tianzhou.raft.core import Core, PendingRead, Transfer
from tianzhou.raft.membership import Members
from tianzhou.raft.messages import (
    NOT_REJECTED,
    Append,
    AppendReply,
    Entry,
    Install,
    Kind,
    LogIndex,
    NodeId,
    Start,
    TimeoutNow,
)
from tianzhou.raft.progress import Progress, ProgressState
from tianzhou.raft.quorum import agreed, won
from tianzhou.raft.ready import ReadAt
from tianzhou.raft.roles import Event, Role

_NEVER: Final = -1


def begin(core: Core) -> None:
    core.become(Event.VOTE_WON)
    core.follow(core.id)
    core.leading.ends = deque([core.log.last], core.config.election_ticks)
    _meet_peers(core, LogIndex(core.log.last + 1))
    # Entries of earlier terms are committed by committing this one (section 5.4.2).
    append(core, Kind.BARRIER, b"")


def append(core: Core, kind: Kind, data: bytes) -> LogIndex:
    entry = Entry(LogIndex(core.log.last + 1), core.term, kind, data)
    if core.log.append((entry,)):
        _meet_peers(core, entry.index)
    leading = core.leading
    leading.uncommitted.append((entry.index, len(data)))
    leading.uncommitted_bytes += len(data)
    leading.pump_due = True
    return entry.index


def _meet_peers(core: Core, following: LogIndex) -> None:
    """Replicate to all members, and to removed members until their removal is committed."""
    history = core.log.members
    wanted = history.current.everyone()
    before = history.previous()
    if before is not None and history.current_index > core.log.commit:
        wanted |= before.everyone()
    peers = core.leading.peers
    for peer in sorted(wanted - peers.keys() - {core.id}):
        peers[peer] = Progress(following, core.timer.now)
    for peer in peers.keys() - wanted:
        del peers[peer]


# Time


def tick(core: Core) -> None:
    now, leading = core.timer.now, core.leading
    quorum_heard = agreed(core.log.members.current, lambda node: _heard(core, node))
    if now - quorum_heard >= core.config.election_ticks:
        core.become(Event.QUORUM_LOST)
        core.follow("")
        core.take_seat()
        return
    if leading.transfer is not None and now >= leading.transfer.deadline:
        leading.transfer = None
    leading.ends.append(core.log.last)
    if core.log.members.current.witnesses:
        leading.pump_due = True  # a copy may have stopped keeping up
        commit(core)
    if now % core.config.heartbeat_ticks == 0:
        heartbeat(core)


def _heard(core: Core, node: NodeId) -> int:
    if node == core.id:
        return core.timer.now
    peer = core.leading.peers[node]
    # A member that may have lost a vote cannot confirm this leadership.
    return _NEVER if peer.doubt else peer.heard


def heartbeat(core: Core) -> None:
    core.leading.round += 1
    for node, peer in core.leading.peers.items():
        if _must_restart(core, node, peer):
            _send_install(core, node, peer)
        else:
            _send(core, node, peer, ())


def _must_restart(core: Core, node: NodeId, peer: Progress) -> bool:
    if peer.next <= core.log.start.index:
        return True
    if not core.log.members.is_witness(node):
        return peer.state is ProgressState.INSTALL
    # Only an append tells a witness that it is repaired.
    return peer.next <= core.log.commit and not _is_repaired(core, peer)


# Sending


def pump(core: Core) -> None:
    """Send each peer the entries that it may receive now."""
    core.leading.pump_due = False
    inflight_max = core.config.inflight_max
    for node, peer in core.leading.peers.items():
        end = _end(core, node)
        while peer.next <= end and peer.may_send(inflight_max):
            if peer.next <= _floor(core, node):
                _send_install(core, node, peer)
                break
            entries = _entries(core, node, peer.next, end)
            _send(core, node, peer, entries)
            peer.sent(entries[-1].index)


def _floor(core: Core, node: NodeId) -> LogIndex:
    """A peer that lacks an entry up to here must restart its log behind it."""
    # A witness needs only the last of the entries that are committed.
    return core.log.commit if core.log.members.is_witness(node) else core.log.start.index


def _end(core: Core, node: NodeId) -> LogIndex:
    """The last entry that this peer may get now. A witness gets what is committed with
    heartbeats."""
    log = core.log
    if not log.members.is_witness(node):
        return log.last
    if copies_suffice(core):
        return LogIndex(0)
    match = agreed(
        log.members.current, lambda peer: log.last if peer == node else _match(core, peer)
    )
    return LogIndex(match if log.terms.at(LogIndex(match)) == core.term else 0)


def _entries(core: Core, node: NodeId, first: LogIndex, end: LogIndex) -> tuple[Entry, ...]:
    if core.log.members.is_witness(node):
        # All at once, because a part of them may end with an entry that is not committed by it.
        return core.log.headers(first, end)
    return core.log.slice(first, core.config.append_bytes_max)


def _send(core: Core, node: NodeId, peer: Progress, entries: tuple[Entry, ...]) -> None:
    log, prev = core.log, LogIndex(peer.next - 1)
    settled = _is_repaired(core, peer)
    core.outbox.append(
        Append(
            core.term,
            core.id,
            node,
            prev,
            log.terms.at(prev),
            entries,
            log.commit,
            core.leading.round,
            peer.doubt if settled else 0,
        )
    )


def _is_repaired(core: Core, peer: Progress) -> bool:
    """Whether a peer in doubt has everything again that it may have lost."""
    return peer.doubt != 0 and min(core.log.commit, peer.match) >= peer.barrier


def _send_install(core: Core, node: NodeId, peer: Progress) -> None:
    log = core.log
    index = _floor(core, node)  # it may have moved since the last attempt
    peer.install(index)
    peer.sent(index)
    start, members = Start(index, log.terms.at(index)), log.members.at(index).encode()
    mark = b"" if log.members.is_witness(node) else log.storage.mark()
    core.outbox.append(Install(core.term, core.id, node, start, members, mark, core.leading.round))


# Replies


def on_reply(core: Core, reply: AppendReply) -> None:
    peer = core.leading.peers.get(reply.sender)  # only a leader has peers
    if peer is None or not _believe(core, peer, reply):
        return
    peer.heard, peer.is_lost = core.timer.now, False
    if reply.rejected != NOT_REJECTED:
        _back_off(core, peer, reply)
    else:
        if peer.answered(reply.match, reply.round):
            commit(core)
        core.leading.pump_due = True
    confirm_reads(core)
    _hand_over(core)


def _believe(core: Core, peer: Progress, reply: AppendReply) -> bool:
    """Whether a reply is current, and not from before its sender lost data."""
    if reply.round <= peer.doubt_round:
        return False
    if reply.doubt == peer.doubt:
        return True
    if not reply.doubt:
        peer.repaired(reply.round)
        return True
    # The barrier is after everything the peer may have acknowledged, and later rounds are new.
    barrier = append(core, Kind.BARRIER, b"")
    peer.forgot(reply.doubt, barrier=barrier, before=core.leading.round)
    core.leading.round += 1
    return False


def _back_off(core: Core, peer: Progress, reply: AppendReply) -> None:
    peer.round = max(peer.round, reply.round)
    stale = reply.rejected <= peer.match or reply.round < peer.probe_round
    if stale or peer.state is ProgressState.INSTALL:
        return
    agree = core.log.terms.last_at_most(reply.hint_index, reply.hint_term)
    core.leading.round += 1
    peer.rejected(LogIndex(agree + 1), core.leading.round)
    core.leading.pump_due = True


# Committing


def commit(core: Core) -> None:
    """Commit what a majority has on disk, if it is of the current term (figure 8)."""
    members = core.log.members.current
    idle = members.witnesses
    if idle and not copies_suffice(core):
        idle = frozenset[NodeId]()
    match = agreed(members, lambda node: 0 if node in idle else _match(core, node))
    index = LogIndex(match)
    if index <= core.log.commit or core.log.terms.at(index) != core.term:
        return
    history = core.log.members
    settles = core.log.commit < history.current_index <= index
    core.commit_to(index)
    leading = core.leading
    while leading.uncommitted and leading.uncommitted[0][0] <= index:
        leading.uncommitted_bytes -= leading.uncommitted.popleft()[1]
    leading.pump_due = True
    if settles:
        # Removed members also learn of the commit before they are dropped.
        heartbeat(core)
        _meet_peers(core, LogIndex(core.log.last + 1))
    finish_change(core)


def _match(core: Core, node: NodeId) -> int:
    if node == core.id:
        return core.log.stable
    peer = core.leading.peers[node]
    return 0 if peer.doubt else peer.match


def copies_suffice(core: Core) -> bool:
    """Whether the copies that keep up are a majority, so that no witness is needed to commit."""
    members = core.log.members.current
    copies = (members.voters | members.outgoing) - members.witnesses
    return won(members, {node for node in copies if _keeps_up(core, node)})


def _keeps_up(core: Core, node: NodeId) -> bool:
    """Whether this copy responds, and has everything that is older than an election timeout."""
    return node == core.id or (_answers(core, node) and _match(core, node) >= core.leading.ends[0])


def finish_change(core: Core) -> None:
    """Leave a committed joint membership; a leader that is no longer a member steps down."""
    history = core.log.members
    if history.current_index > core.log.commit:
        return
    if history.current.outgoing:
        append(core, Kind.MEMBERS, history.current.settled().encode())
    elif not history.current.may_vote(core.id):
        core.become(Event.UNSEATED)
        core.follow("")


def has_committed_in_term(core: Core) -> bool:
    return core.log.terms.at(core.log.commit) == core.term


def have_caught_up(core: Core, learners: Iterable[NodeId]) -> bool:
    """Whether these members respond and lack only the newest entries of the log. A witness has no
    log to catch up with."""
    enough = core.log.last - core.config.learner_lag_max
    witnesses = core.log.members.current.witnesses
    return all(
        _answers(core, node) and (node in witnesses or _match(core, node) >= enough)
        for node in learners
    )


def answers_majority(core: Core, target: Members) -> bool:
    """Whether a majority of these voters, including this member, currently responds."""
    return 2 * sum(_answers(core, node) for node in target.voters) > len(target.voters)


def _answers(core: Core, node: NodeId) -> bool:
    if node == core.id:
        return True
    peer = core.leading.peers.get(node)
    # `heard` is set when the leadership starts; only a peer that has responded knows a round.
    if peer is None or peer.doubt or peer.is_lost or not peer.round:
        return False
    return core.timer.now - peer.heard < core.config.election_ticks


def change(core: Core, target: Members) -> LogIndex:
    step = core.log.members.current.towards(target)
    return append(core, Kind.MEMBERS, step.encode())


# Reading


def read(core: Core, token: object) -> None:
    """Allow the read once a majority has answered a round that starts now (section 8)."""
    heartbeat(core)
    core.leading.reads.append(PendingRead(token, core.log.commit, core.leading.round))
    confirm_reads(core)


def confirm_reads(core: Core) -> None:
    reads = core.leading.reads
    if reads:
        reached = agreed(core.log.members.current, lambda node: _round(core, node))
        done = [read for read in reads if read.round <= reached]
        del reads[: len(done)]
        for one in done:
            core.reads_done.append(ReadAt(one.token, one.index))


def _round(core: Core, node: NodeId) -> int:
    if node == core.id:
        return core.leading.round
    peer = core.leading.peers[node]
    return 0 if peer.doubt else peer.round


# Leadership transfer


def hand_over(core: Core, target: NodeId) -> None:
    core.leading.transfer = Transfer(target, core.timer.now + core.config.election_ticks)
    _hand_over(core)


def _hand_over(core: Core) -> None:
    """Make the successor start an election at once when it has the whole log."""
    leading = core.leading
    if leading.transfer is not None and core.role is Role.LEADER:
        peer = leading.peers.get(leading.transfer.target)
        if peer is None or peer.doubt:
            leading.transfer = None
        elif peer.match == core.log.last:
            core.outbox.append(TimeoutNow(core.term, core.id, leading.transfer.target))
