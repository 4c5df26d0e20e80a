"""The replication progress of one follower, as its leader knows it.

    PROBE      where the logs diverge is not known: one message at a time
    REPLICATE  it is known: messages are pipelined without waiting for replies
    INSTALL    entries that the follower needs have expired: it must restart where this log starts

A rejection leads from REPLICATE to PROBE, a reply from PROBE or INSTALL to REPLICATE.
"""

import enum
from collections import deque

from tianzhou.raft.messages import LogIndex


class ProgressState(enum.Enum):
    PROBE = enum.auto()
    REPLICATE = enum.auto()
    INSTALL = enum.auto()


class Progress:
    """Owner: the leader.    Invariant: match < next."""

    __slots__ = (
        "_inflight",
        "barrier",
        "doubt",
        "doubt_round",
        "heard",
        "is_lost",
        "match",
        "next",
        "probe_round",
        "round",
        "state",
        "waiting",
    )

    def __init__(self, following: LogIndex, now: int) -> None:
        self.match = LogIndex(0)
        """On the follower's disk, up to here."""
        self.next = following
        self.state = ProgressState.PROBE
        self.probe_round = 0
        """Only replies to this round or a later one show where the logs diverge."""
        self.waiting = False
        """Whether a probe is in flight."""
        self.heard = now
        self.is_lost = False
        """The connection ended, and the peer has not responded since."""
        self.round = 0
        """The newest round it has replied to."""
        self.doubt = 0
        self.doubt_round = 0
        """Replies to this round or an earlier one may be from before it lost its state."""
        self.barrier = LogIndex(0)
        """While in doubt: it is repaired once it has this entry and the group has committed it."""
        self._inflight: deque[LogIndex] = deque()

    def may_send(self, inflight_max: int) -> bool:
        if self.state is ProgressState.REPLICATE:
            return len(self._inflight) < inflight_max
        return not self.waiting

    def sent(self, last: LogIndex) -> None:
        """Record that a message with entries up to `last` was sent."""
        if self.state is ProgressState.REPLICATE:
            self._inflight.append(last)
            self.next = LogIndex(last + 1)
        else:
            self.waiting = True

    @property
    def inflight(self) -> int:
        return len(self._inflight)

    def answered(self, match: LogIndex, in_round: int) -> bool:
        """It agrees, and has this much on disk; whether that is more than before."""
        self.round = max(self.round, in_round)
        found = (
            in_round >= self.probe_round
            if self.state is ProgressState.PROBE
            else match >= self.next
        )
        if self.state is not ProgressState.REPLICATE and found:
            self._set(ProgressState.REPLICATE)
        if match <= self.match:
            return False
        self.match = match
        self.next = max(self.next, LogIndex(match + 1))
        while self._inflight and self._inflight[0] <= match:
            self._inflight.popleft()
        return True

    def rejected(self, next_index: LogIndex, in_round: int) -> None:
        """The logs diverge somewhere: retry from `next_index`, in a new round.

        Without a new round, replies to earlier messages would be taken for replies to the probe,
        and on a link that reorders messages everything would be sent over and over.
        """
        self.next = max(next_index, LogIndex(self.match + 1))
        self.probe_round = in_round
        self._set(ProgressState.PROBE)

    def install(self, start: LogIndex) -> None:
        self.next = start
        self._set(ProgressState.INSTALL)

    def forgot(self, doubt: int, *, barrier: LogIndex, before: int) -> None:
        """Restart replication to a peer that may have lost acknowledged entries, and do not count
        it."""
        self.doubt, self.barrier, self.doubt_round = doubt, barrier, before
        self.match = LogIndex(0)
        self._set(ProgressState.PROBE)

    def repaired(self, since: int) -> None:
        """The follower reported, in reply to this round, that it is complete again."""
        self.doubt = 0
        self.doubt_round = since - 1

    def _set(self, state: ProgressState) -> None:
        self.state, self.waiting = state, False
        self._inflight.clear()
