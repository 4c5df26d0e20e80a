"""Behaviour of a leader: append, replicate, commit, transfer leadership, repair."""

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
    TimeoutNow,
)
from tianzhou.raft.progress import Progress, ProgressState
from tianzhou.raft.quorum import agreed
from tianzhou.raft.ready import ReadAt
from tianzhou.raft.roles import Event, Role

_NEVER: Final = -1


def begin(core: Core) -> None:
    core.become(Event.VOTE_WON)
    core.follow(core.id)
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
        if peer.state is ProgressState.INSTALL or peer.next <= core.log.start.index:
            _send_install(core, node, peer)
        else:
            _send(core, node, peer, ())


# Sending


def pump(core: Core) -> None:
    """Send each peer the entries that it may receive now."""
    core.leading.pump_due = False
    inflight_max, bytes_max = core.config.inflight_max, core.config.append_bytes_max
    for node, peer in core.leading.peers.items():
        while peer.may_send(inflight_max):
            if peer.next <= core.log.start.index:
                peer.install(core.log.start.index)
                _send_install(core, node, peer)
                break
            if peer.next > core.log.last:
                break
            entries = core.log.slice(peer.next, bytes_max)
            _send(core, node, peer, entries)
            peer.sent(entries[-1].index)


def _send(core: Core, node: NodeId, peer: Progress, entries: tuple[Entry, ...]) -> None:
    log, prev = core.log, LogIndex(peer.next - 1)
    settled = peer.doubt != 0 and min(log.commit, peer.match) >= peer.barrier
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


def _send_install(core: Core, node: NodeId, peer: Progress) -> None:
    log = core.log
    peer.install(log.start.index)  # the start of the log may have moved since the last attempt
    peer.sent(log.start.index)
    members, mark = log.members_at_start().encode(), log.storage.mark()
    core.outbox.append(
        Install(core.term, core.id, node, log.start, members, mark, core.leading.round)
    )


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
    index = LogIndex(agreed(core.log.members.current, lambda node: _match(core, node)))
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


def finish_change(core: Core) -> None:
    """Leave a committed joint membership; a leader that is no longer a member steps down."""
    history = core.log.members
    if history.current_index > core.log.commit:
        return
    if history.current.outgoing:
        append(core, Kind.MEMBERS, history.current._replace(outgoing=frozenset()).encode())
    elif not history.current.may_vote(core.id):
        core.become(Event.UNSEATED)
        core.follow("")


def has_committed_in_term(core: Core) -> bool:
    return core.log.terms.at(core.log.commit) == core.term


def have_caught_up(core: Core, learners: Iterable[NodeId]) -> bool:
    """Whether these members respond and lack only the newest entries of the log."""
    enough = core.log.last - core.config.learner_lag_max
    return all(_answers(core, node) and _match(core, node) >= enough for node in learners)


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
