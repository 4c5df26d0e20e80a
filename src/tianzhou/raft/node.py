"""Node: one member of a Raft group, without time, disk or network.

Call `step` (a message arrived), `tick` (time passed) and `propose` (append this); then execute
`ready()` in the order persist, send, apply (see `ready.py`), and call `advance()` when the
persisted part is durable. Nothing else changes a node, and equal calls have equal results.
"""

import enum
from typing import Final, NamedTuple

from tianzhou.base.errors import UsageError
from tianzhou.raft import candidate, follower, leader
from tianzhou.raft.config import Dice, RaftConfig
from tianzhou.raft.core import Core
from tianzhou.raft.log import LogStorage
from tianzhou.raft.membership import Members, check, turned
from tianzhou.raft.messages import (
    Append,
    AppendReply,
    Install,
    Kind,
    LogIndex,
    Message,
    NodeId,
    Term,
    TimeoutNow,
    VoteReply,
    VoteRequest,
)
from tianzhou.raft.ready import HardState, ReadAt, Ready, Save, Saved
from tianzhou.raft.roles import Event, Role

TERM_LEAP_MAX: Final = 1 << 32
"""A larger step of the term is not the result of an election, but invalid input."""


class Refusal(enum.Enum):
    """Why a leader rejects a request."""

    NOT_LEADER = "only the leader can do that; ask the one this member names"
    HANDING_OVER = "leadership is being handed over; ask again"
    FULL = "too much waits to be committed; ask again when something was"
    TOO_EARLY = "the leader has not yet committed anything in its term; ask again"
    CHANGING = "another change of members is not finished; ask again when it is"
    UNFIT = "that member has no vote, is a witness, or may have forgotten something"
    NOT_A_LEARNER = "a member gets a vote only after it joined as a learner; add it as one first"
    BEHIND = "the learner does not respond or has not caught up; retry when it has"
    NO_MAJORITY = (
        "the change would leave voters of which no majority responds; start them first, or "
        "remove those that are gone"
    )


class Position(NamedTuple):
    """The position of a proposal in the log, unless the leader changes.

    It is committed when the commit index has reached `index` and the leader was still the leader of
    `term` when it did. After a change of leaders its fate is open.
    """

    index: LogIndex  # pyright: ignore[reportIncompatibleMethodOverride]
    term: Term


class Node:
    """Owner: one thread."""

    __slots__ = ("_core", "_saving", "_showed", "_wrote")

    def __init__(
        self, node: NodeId, config: RaftConfig, dice: Dice, *, storage: LogStorage, saved: Saved
    ) -> None:
        self._core = Core(node, config, dice, storage=storage, saved=saved)
        self._saving: Save | None = None
        self._wrote: HardState = saved.state
        """The hard state on disk, or on its way there."""
        self._showed = LogIndex(0), LogIndex(0)
        self._core.take_seat()

    # Input

    def step(self, message: Message) -> None:
        """Handle a message."""
        core = self._core
        if message.to != core.id:
            raise UsageError(f"a message for {message.to} was given to {core.id}: {message}")
        if message.term != core.hard.term and not self._settle_term(message):
            return
        match message:
            case Append():
                follower.on_append(core, message)
            case AppendReply():
                leader.on_reply(core, message)
            case VoteRequest():
                candidate.on_vote_request(core, message)
            case VoteReply():
                candidate.on_vote_reply(core, message)
            case Install():
                follower.on_install(core, message)
            case TimeoutNow():
                candidate.on_timeout_now(core, message)

    def tick(self) -> None:
        """Advance the time by one tick."""
        core, timer = self._core, self._core.timer
        timer.now += 1
        if core.role is Role.LEADER:
            leader.tick(core)
            return
        timer.idle += 1
        if timer.idle >= timer.election_at and core.role is not Role.LEARNER:
            candidate.ask_first(core)

    def lost(self, peer: NodeId) -> None:
        """The connection from a member ended, as it does when its process dies. If that was the
        leader, a new one should be elected soon; members that still hear it will refuse."""
        core = self._core
        if peer == core.leader and core.role in (Role.FOLLOWER, Role.LEARNER):
            core.timer.hurry()  # a learner never stands, but a witness votes
        elif peer in core.leading.peers:
            core.leading.peers[peer].is_lost = True
            core.leading.pump_due = True  # from now on a witness may be needed

    def resign(self) -> None:
        """Step down, because the disk of this member accepts no more writes."""
        core = self._core
        if core.role is Role.LEADER:
            core.become(Event.QUORUM_LOST)
            core.follow("")
            core.take_seat()

    def propose(self, chunk: bytes) -> Position | Refusal:
        """Append a run of bytes as one entry. Several proposals travel in one message."""
        core = self._core
        refusal = self.may_propose(len(chunk))
        if refusal is not None:
            return refusal
        return Position(leader.append(core, Kind.CHUNK, chunk), core.term)

    def may_propose(self, size: int) -> Refusal | None:
        """Return why a proposal of this size would be rejected now, or None."""
        core = self._core
        waiting = core.leading.uncommitted_bytes
        if waiting and waiting + size > core.config.uncommitted_bytes_max:
            return self._refusal() or Refusal.FULL
        return self._refusal()

    def change(self, target: Members) -> Position | Refusal:
        """Change the membership. The leader completes a change of two steps itself. If these are
        the members already, returns the position of that entry."""
        check(target)
        core = self._core
        refusal = self._refusal()
        if refusal is not None:
            return refusal
        if target.outgoing:
            raise UsageError("name the members that are wanted; the way there is found")
        history = core.log.members
        if target == history.current:
            return Position(history.current_index, core.term)
        others = turned(history.current, target)
        if others:
            raise UsageError(
                f"{', '.join(sorted(others))} cannot become a witness or stop being one; "
                "remove it, and add it under another name"
            )
        if history.current.outgoing or history.current_index > core.log.commit:
            return Refusal.CHANGING
        if not leader.has_committed_in_term(core):
            # Or two changes of two leaders could be in force at once, with no common majority.
            return Refusal.TOO_EARLY
        newcomers = target.voters - history.current.voters
        if not newcomers <= history.current.learners:
            return Refusal.NOT_A_LEARNER
        if not leader.have_caught_up(core, newcomers):
            return Refusal.BEHIND
        if not leader.answers_majority(core, target):
            # The change would take effect at once, and the group might never commit again.
            return Refusal.NO_MAJORITY
        return Position(leader.change(core, target), core.term)

    def read(self, token: object) -> Refusal | None:
        """Request a linearizable read; the result is in `reads`."""
        if self._core.role is not Role.LEADER:
            return Refusal.NOT_LEADER
        if not leader.has_committed_in_term(self._core):
            return Refusal.TOO_EARLY  # earlier leaders may have committed more than we know
        leader.read(self._core, token)
        return None

    def hand_over(self, target: NodeId) -> Refusal | None:
        """Transfer leadership to another member. Aborted after an election timeout."""
        core = self._core
        refusal = self._refusal()
        if refusal is not None or target == core.id:
            return refusal
        peer = core.leading.peers.get(target)
        if peer is None or peer.doubt or not core.log.members.current.may_lead(target):
            return Refusal.UNFIT
        leader.hand_over(core, target)
        return None

    def trimmed(self, index: LogIndex) -> None:
        """The storage has given up everything up to and including `index`, which was applied."""
        self._core.log.trim(index)

    def _refusal(self) -> Refusal | None:
        if self._core.role is not Role.LEADER:
            return Refusal.NOT_LEADER
        return Refusal.HANDING_OVER if self._core.leading.transfer is not None else None

    def _settle_term(self, message: Message) -> bool:
        """Messages of other terms; whether this one is to be taken up."""
        core = self._core
        if message.term < core.term:
            if isinstance(message, Append | Install):
                # A leader of an old term must learn the new term, or it could never rejoin.
                match = LogIndex(0)
                reply = AppendReply(
                    core.term, core.id, message.sender, match, message.round, core.hard.doubt
                )
                core.outbox.append(reply)
            elif isinstance(message, VoteRequest) and not core.hard.doubt:
                core.outbox.append(
                    VoteReply(core.term, core.id, message.sender, False, message.pre)
                )
            return False
        if message.term - core.term > TERM_LEAP_MAX:
            return False
        return self._enter_term(message)

    def _enter_term(self, message: Message) -> bool:
        core = self._core
        if isinstance(message, VoteRequest):
            if message.pre:
                return True
            if not candidate.may_listen(core, message):
                return False
        elif isinstance(message, VoteReply) and message.pre and message.granted:
            return True  # shows the term we would have, not one that there is
        core.become(Event.HIGHER_TERM)
        is_leader = isinstance(message, Append | Install)
        core.enter_term(message.term, leader=message.sender if is_leader else "")
        core.take_seat()
        return True

    # Output

    def ready(self) -> Ready:
        """Return what to persist, send and apply now."""
        core = self._core
        if core.leading.pump_due and core.role is Role.LEADER:
            leader.pump(core)
        save = None
        if self._saving is None:
            save = self._saving = self._save()
        log = core.log
        self._showed = log.commit, min(log.commit, log.stable)
        messages, reads = tuple[Message, ...](), tuple[ReadAt, ...]()
        # Every message shows our term, and may show our vote: these must be durable first. What
        # a message reports of our log is durable already, or is for other members to store.
        if core.outbox and core.hard == self._wrote and not self._saves_state():
            messages, core.outbox = tuple(core.outbox), []
        if core.reads_done:
            reads, core.reads_done = tuple(core.reads_done), []
        return Ready(save, messages, *self._showed, reads)

    def has_ready(self) -> bool:
        """Whether `ready` would return new work."""
        core, log = self._core, self._core.log
        if core.reads_done or (core.leading.pump_due and core.role is Role.LEADER):
            return True
        if self._showed != (log.commit, min(log.commit, log.stable)):
            return True
        if self._saving is None and (core.hard != self._wrote or log.stable < log.last):
            return True
        return bool(core.outbox) and core.hard == self._wrote and not self._saves_state()

    def advance(self) -> None:
        """Record that the last save is durable."""
        core, save = self._core, self._saving
        assert save is not None, "nothing was to be saved"
        self._saving = None
        core.log.saved()
        if core.role is Role.LEADER:
            if core.log.members.current.witnesses:
                core.leading.pump_due = True  # a witness gets only what is durable
            leader.commit(core)
            leader.confirm_reads(core)
        elif core.role is Role.CANDIDATE:
            if save.state is not None and save.state == core.hard:
                candidate.own_vote(core)
        elif save.entries or save.begin or save.state:
            core.report()

    def _save(self) -> Save | None:
        core, log = self._core, self._core.log
        state = core.hard if core.hard != self._wrote else None
        if state is None and log.begin is None and log.stable == log.last:
            return None
        save = Save(state, log.begin, log.unsaved())
        self._wrote = core.hard
        log.saving()
        return save

    def _saves_state(self) -> bool:
        return self._saving is not None and self._saving.state is not None

    # State

    @property
    def id(self) -> NodeId:
        return self._core.id

    @property
    def role(self) -> Role:
        return self._core.role

    @property
    def hard(self) -> HardState:
        return self._core.hard

    @property
    def leader(self) -> NodeId:
        """The leader of this term as far as this member knows, or nothing."""
        return self._core.leader

    @property
    def core(self) -> Core:
        """The rest of the state, read-only."""
        return self._core
