"""Behaviour of followers and learners, and of a candidate that finds a leader."""

from tianzhou.raft.core import Core
from tianzhou.raft.membership import decode
from tianzhou.raft.messages import Append, AppendReply, Entry, Install, Kind, LogIndex
from tianzhou.raft.ready import Begin
from tianzhou.raft.roles import Event


def on_append(core: Core, message: Append) -> None:
    if not all(_is_for(core, entry) for entry in message.entries):
        return
    _heed(core, message)
    log = core.log
    if not log.matches(message.prev_index, message.prev_term):
        _reject(core, message)
        return
    following = core.following
    following.round = max(following.round, message.round)
    if message.entries and log.merge(message.entries):
        core.take_seat()
    end = LogIndex(message.prev_index + len(message.entries))
    following.matched = max(following.matched, end)
    # Not beyond `end`: later entries here may come from another leader.
    core.commit_to(min(message.commit, end))
    if message.repaired and message.repaired == core.hard.doubt:
        core.hard = core.hard._replace(doubt=0)
        core.take_seat()
    if not message.entries or log.stable >= end:
        core.report()  # otherwise the report follows when the disk is done


def _is_for(core: Core, entry: Entry) -> bool:
    """Whether an entry has the form that this member stores. A copy that stored the entry of a
    witness would acknowledge data that it does not have."""
    return entry.kind is Kind.MEMBERS or (entry.kind is Kind.OMITTED) == core.config.is_witness


def on_install(core: Core, message: Install) -> None:
    if (not message.mark) != core.config.is_witness:
        return  # without a mark, a copy would skip entries
    _heed(core, message)
    following = core.following
    following.round = max(following.round, message.round)
    log, start = core.log, message.start
    if start.index > log.commit:
        if log.terms.at(start.index) == start.term:
            core.commit_to(start.index)
        else:
            log.begin_at(Begin(start, decode(message.members), message.mark))
            core.take_seat()
    following.matched = max(following.matched, start.index)
    if log.stable >= start.index:
        core.report()


def _heed(core: Core, message: Append | Install) -> None:
    """Accept the leader of the current term."""
    core.become(Event.LEADER_SEEN)
    core.follow(message.sender)
    core.timer.idle = 0


def _reject(core: Core, message: Append) -> None:
    terms = core.log.terms
    hint = terms.last_at_most(message.prev_index, message.prev_term)
    core.outbox.append(
        AppendReply(
            core.term,
            core.id,
            message.sender,
            min(core.following.matched, core.log.stable),
            message.round,
            core.hard.doubt,
            rejected=message.prev_index,
            hint_index=hint,
            hint_term=terms.at(hint),
        )
    )
