"""The roles of a member and every way from one to another.

    LEARNER        follows and stores, but neither votes for itself nor is elected: it has no
                   seat in the group, is a witness, or may have forgotten what it once knew (doubt)
    FOLLOWER       follows the leader of its term, if it knows one
    PRE_CANDIDATE  has not heard of a leader and asks whether it would be elected; its term
                   stays, so that a member that was cut off does not disturb the group later
    CANDIDATE      has begun a term of its own and asks for votes
    LEADER         the only one that appends

The table below is the state machine: `Core.become` looks the next role up in it and nothing else
assigns a role. docs/raft.md draws it; a test compares the two.
"""

import enum
from collections.abc import Mapping
from typing import Final


class Role(enum.Enum):
    LEARNER = "Learner"
    FOLLOWER = "Follower"
    PRE_CANDIDATE = "PreCandidate"
    CANDIDATE = "Candidate"
    LEADER = "Leader"


class Event(enum.Enum):
    """What makes a member change its role."""

    TIMEOUT = "heard of no leader"
    PRE_VOTE_WON = "a majority would vote for it"
    TOLD_TO_LEAD = "the leader hands over"
    VOTE_WON = "a majority voted for it"
    LEADER_SEEN = "a leader of this term speaks"
    HIGHER_TERM = "sees a higher term"
    QUORUM_LOST = "no majority answers"
    UNSEATED = "has no seat or is in doubt"
    SEATED = "has a seat and is not in doubt"


_R, _E = Role, Event

TRANSITIONS: Final[Mapping[Role, Mapping[Event, Role]]] = {
    Role.LEARNER: {
        _E.LEADER_SEEN: _R.LEARNER,
        _E.HIGHER_TERM: _R.LEARNER,
        _E.SEATED: _R.FOLLOWER,
    },
    Role.FOLLOWER: {
        _E.TIMEOUT: _R.PRE_CANDIDATE,
        _E.TOLD_TO_LEAD: _R.CANDIDATE,
        _E.LEADER_SEEN: _R.FOLLOWER,
        _E.HIGHER_TERM: _R.FOLLOWER,
        _E.UNSEATED: _R.LEARNER,
    },
    Role.PRE_CANDIDATE: {
        _E.TIMEOUT: _R.PRE_CANDIDATE,
        _E.PRE_VOTE_WON: _R.CANDIDATE,
        _E.LEADER_SEEN: _R.FOLLOWER,
        _E.HIGHER_TERM: _R.FOLLOWER,
    },
    Role.CANDIDATE: {
        _E.TIMEOUT: _R.PRE_CANDIDATE,
        _E.VOTE_WON: _R.LEADER,
        _E.LEADER_SEEN: _R.FOLLOWER,
        _E.HIGHER_TERM: _R.FOLLOWER,
    },
    Role.LEADER: {
        _E.HIGHER_TERM: _R.FOLLOWER,
        _E.QUORUM_LOST: _R.FOLLOWER,
        _E.UNSEATED: _R.LEARNER,
    },
}
