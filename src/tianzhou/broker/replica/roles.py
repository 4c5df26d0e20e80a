"""The roles of a broker as a table: state and event to the next state and ordered effects.

Nothing is executed here. A mode (`mode.py`) reports an event to its `RoleMachine`
(`role_change.py`), which executes the effects in the order of the table and then enters the next
state. The order of the effects is what makes a role change safe: a crash between any two of them
must leave a broker that starts in a legal role. tests/scenarios/replica crash it at each of them,
and docs/replication.md shows the table as a diagram.

A Raft member uses the same states: an elected leader is the master, every other member is a slave.
"""

import enum
from collections.abc import Mapping
from typing import Final, NamedTuple


class State(enum.Enum):
    STOPPED = "Stopped"
    STANDALONE = "Standalone"
    """The only broker of its name; it accepts messages."""
    MASTER = "Master"
    """Accepts messages, delivers delayed and timed ones, checks transactions."""
    SLAVE = "Slave"
    """Has the master's log, rejects messages, serves pulls and offsets."""
    PROMOTING = "Promoting"
    """A slave that has claimed an epoch and waits for the NameServers' responses."""
    STEPPING_DOWN = "SteppingDown"
    """No longer accepts messages; its slaves receive the rest of its log."""


class Event(enum.Enum):
    START_ALONE = "starts without a group"
    START_AS_MASTER = "starts as the master"
    START_AS_SLAVE = "starts as a slave"
    START_AS_MEMBER = "starts as a Raft member"
    JOIN = "joins its group"
    CLAIM = "claims an epoch"
    CLAIM_LOST = "another broker has the epoch"
    CLAIM_WON = "no other broker has the epoch"
    PROMOTION_FAILED = "an effect of the promotion fails"
    PROMOTED = "the promotion is complete"
    STEP_DOWN = "an operator appoints another master"
    REPLACED = "a NameServer reports a later master"
    WRITES_ENDED = "no write is pending"
    ELECTED = "the Raft group elects it"
    FOLLOW = "the Raft group elects another leader, or none"


class Effect(enum.Enum):
    # On the broker itself, in every mode
    BEGIN_WRITING = enum.auto()
    """Make the whole log visible, accept messages, and let the master's services load their
    state."""
    REFUSE_WRITES = enum.auto()
    """At a start: accept no messages."""
    STOP_WRITING = enum.auto()
    """Accept no more messages; senders that wait learn that the outcome is unknown."""
    BECOME_MASTER = enum.auto()
    """From now on handlers, clients and NameServers see the master's role and epoch."""
    BECOME_SLAVE = enum.auto()
    """From now on handlers, clients and NameServers see a slave's role and id."""

    # Between a master and its slaves
    SAVE_AS_MASTER = enum.auto()
    """Make the role and the epoch durable; the next start is a master's."""
    SAVE_AS_SLAVE = enum.auto()
    """Make the role durable; the next start is a slave's."""
    MARK_START = enum.auto()
    """Make the role durable, and mark in the log's history that a master started here."""
    CHOOSE_EPOCH = enum.auto()
    """Choose an epoch above every known one; the next registration announces it."""
    DROP_CLAIM = enum.auto()
    DELETE_PENDING_TOPICS = enum.auto()
    """Delete the topics that the last master deleted: no more of their messages can arrive."""
    STOP_FOLLOWING = enum.auto()
    ADOPT_OFFSETS = enum.auto()
    """Offsets that consumers committed at the slave now belong to the master."""
    RETURN_OFFSETS = enum.auto()
    """Offsets that were adopted belong to a slave again, which sends its master those that are
    ahead of the master's."""
    FLUSH_LOG = enum.auto()
    BEGIN_ACKS = enum.auto()
    """Count slaves; responses wait for as many replicas as the settings require."""
    END_ACKS = enum.auto()
    """Responses and readers no longer wait for slaves."""
    NAME_TOPICS = enum.auto()
    """Create topics that have messages here, and that the last master did not report in time."""
    SEND_REST = enum.auto()
    """Send connected slaves the rest of the log."""
    FORGET_ACCEPTED_OFFSETS = enum.auto()
    """Discard the offsets that were set aside when this broker was a slave before: they have been
    part of its own table since."""
    FOLLOW_MASTER = enum.auto()

    # In a Raft group
    SETTLE = enum.auto()
    """Make everything visible that is committed, and answer its senders."""
    ADOPT_TABLES = enum.auto()
    """Read the committed tables to their end, and resume delivery where the last leader was."""
    WRITE_TABLES = enum.auto()
    """Write all tables to the log before the first message."""
    SET_OFFSETS_APART = enum.auto()
    """Keep offsets that consumers commit here apart from the committed ones."""
    NAME_LEADER = enum.auto()
    """Redirect clients that request a change to the leader."""


class Transition(NamedTuple):
    state: State
    effects: tuple[Effect, ...]


_STEP_DOWN: Final = Transition(
    State.STEPPING_DOWN,
    # Saved first: after a crash the new master must not meet a second one.
    (Effect.SAVE_AS_SLAVE, Effect.STOP_WRITING, Effect.BECOME_SLAVE, Effect.END_ACKS),
)
_FOLLOW: Final = Transition(
    State.SLAVE,
    (
        Effect.SET_OFFSETS_APART,
        Effect.STOP_WRITING,
        Effect.BECOME_SLAVE,
        Effect.NAME_LEADER,
    ),
)

TRANSITIONS: Final[Mapping[State, Mapping[Event, Transition]]] = {
    State.STOPPED: {
        Event.START_ALONE: Transition(State.STANDALONE, (Effect.BEGIN_WRITING,)),
        Event.START_AS_MASTER: Transition(
            State.MASTER, (Effect.MARK_START, Effect.BEGIN_ACKS, Effect.BEGIN_WRITING)
        ),
        Event.START_AS_SLAVE: Transition(State.SLAVE, (Effect.REFUSE_WRITES,)),
        Event.START_AS_MEMBER: Transition(
            State.SLAVE, (Effect.REFUSE_WRITES, Effect.SET_OFFSETS_APART)
        ),
    },
    State.STANDALONE: {},
    State.SLAVE: {
        Event.JOIN: Transition(State.SLAVE, (Effect.FOLLOW_MASTER,)),
        Event.CLAIM: Transition(State.PROMOTING, (Effect.CHOOSE_EPOCH,)),
        Event.ELECTED: Transition(
            State.MASTER,
            (
                Effect.SETTLE,
                Effect.ADOPT_TABLES,
                Effect.BEGIN_WRITING,
                Effect.BECOME_MASTER,
                Effect.WRITE_TABLES,
            ),
        ),
        Event.FOLLOW: _FOLLOW,
    },
    State.PROMOTING: {
        Event.CLAIM_LOST: Transition(State.SLAVE, (Effect.DROP_CLAIM,)),
        # Undoes whatever CLAIM_WON has done; it may itself fail, and is then reported again.
        Event.PROMOTION_FAILED: Transition(
            State.SLAVE,
            (
                Effect.DROP_CLAIM,
                Effect.STOP_WRITING,
                Effect.END_ACKS,
                Effect.SAVE_AS_SLAVE,
                Effect.FOLLOW_MASTER,
                Effect.RETURN_OFFSETS,
            ),
        ),
        Event.CLAIM_WON: Transition(
            State.MASTER,
            (
                Effect.DELETE_PENDING_TOPICS,
                Effect.STOP_FOLLOWING,
                Effect.ADOPT_OFFSETS,
                Effect.FLUSH_LOG,
                # Before the first message: a master that crashes at once restarts as one.
                Effect.SAVE_AS_MASTER,
                Effect.BEGIN_ACKS,
                Effect.BEGIN_WRITING,
                Effect.BECOME_MASTER,
            ),
        ),
    },
    State.MASTER: {
        Event.PROMOTED: Transition(State.MASTER, (Effect.NAME_TOPICS,)),
        Event.STEP_DOWN: _STEP_DOWN,
        Event.REPLACED: _STEP_DOWN,
        Event.FOLLOW: _FOLLOW,
    },
    State.STEPPING_DOWN: {
        Event.WRITES_ENDED: Transition(
            State.SLAVE,
            (Effect.SEND_REST, Effect.FORGET_ACCEPTED_OFFSETS, Effect.FOLLOW_MASTER),
        ),
    },
}


def allows(state: State, event: Event) -> bool:
    """Whether the table has a transition for this event."""
    return event in TRANSITIONS[state]


def decide(state: State, event: Event) -> Transition:
    """The next state and the effects of an event. An event that the state does not allow is a bug
    of the caller, which asks `allows` first if a client may cause it."""
    assert allows(state, event), f"a broker in state {state.value} cannot handle {event.name}"
    return TRANSITIONS[state][event]
