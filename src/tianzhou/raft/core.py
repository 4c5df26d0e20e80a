"""The state of a member, and the operations that all roles share."""

from collections import deque
from typing import NamedTuple

from tianzhou.raft.config import Dice, RaftConfig
from tianzhou.raft.log import LogStorage, RaftLog
from tianzhou.raft.messages import AppendReply, LogIndex, Message, NodeId, Term
from tianzhou.raft.progress import Progress
from tianzhou.raft.ready import HardState, ReadAt, Saved
from tianzhou.raft.roles import TRANSITIONS, Event, Role


class PendingRead(NamedTuple):
    token: object
    index: LogIndex  # pyright: ignore[reportIncompatibleMethodOverride]
    round: int


class Transfer(NamedTuple):
    """Leadership is being handed over."""

    target: NodeId
    deadline: int


class ElectionTimer:
    """The time of a member in ticks, and when it starts an election.

    Owner: the core.    Invariant: election_at is random, so that members rarely campaign together.
    """

    __slots__ = ("_dice", "_ticks", "election_at", "idle", "now")

    def __init__(self, config: RaftConfig, dice: Dice) -> None:
        self._ticks = config.election_ticks
        self._dice = dice
        self.now = 0
        """Ticks since the start."""
        self.idle = 0
        """Ticks since the last message from the leader, the last granted vote, or the start of an
        election."""
        self.election_at = 0
        self.restart()

    def restart(self) -> None:
        """Wait for a new random duration."""
        self.idle = 0
        self.election_at = self._dice.randrange(self._ticks, 2 * self._ticks)

    def hurry(self) -> None:
        """Let the leader's time pass at once, and wait only for a short random duration."""
        ticks = self._ticks
        self.idle = max(self.idle, ticks)
        self.election_at = self.idle + self._dice.randrange(1, max(2, ticks // 3 + 1))


class FollowerState:
    """What a follower knows about the log of its leader; new for each leader. Owner: the core."""

    __slots__ = ("matched", "round")

    def __init__(self, commit: LogIndex) -> None:
        self.matched = commit
        """Up to here the log is known to match the leader's."""
        self.round = 0
        """The latest round in which the log matched the leader's."""


class LeaderState:
    """The volatile state of a leader, new for each term that it leads; empty on other members.

    Owner: the core.    Invariant: uncommitted_bytes is the sum of the sizes in `uncommitted`.
    """

    __slots__ = (
        "ends",
        "peers",
        "pump_due",
        "reads",
        "round",
        "transfer",
        "uncommitted",
        "uncommitted_bytes",
    )

    def __init__(self) -> None:
        self.peers: dict[NodeId, Progress] = {}
        self.pump_due = False
        self.round = 1
        """The latest round of heartbeats."""
        self.transfer: Transfer | None = None
        self.uncommitted: deque[tuple[LogIndex, int]] = deque()
        """Index and size of each entry of this term that is not committed."""
        self.uncommitted_bytes = 0
        self.reads: list[PendingRead] = []
        self.ends: deque[LogIndex] = deque()
        """Where the log ended at each tick of the last election timeout, oldest first."""


class Core:
    """The state of a member. The modules of the roles change it; callers use `Node`.

    `hard` and `log` are persistent, everything else is volatile (figure 2 of the Raft paper).

    Owner: the caller of the node.    Invariant: term never falls; the vote changes with the term,
    or once within a term from no vote to a vote.
    """

    __slots__ = (
        "config",
        "following",
        "granted",
        "hard",
        "id",
        "leader",
        "leading",
        "log",
        "outbox",
        "reads_done",
        "role",
        "timer",
    )

    def __init__(
        self, node: NodeId, config: RaftConfig, dice: Dice, *, storage: LogStorage, saved: Saved
    ) -> None:
        self.id = node
        self.config = config
        self.hard: HardState = saved.state
        self.log = RaftLog(storage, saved)
        assert self.log.terms.last_term <= saved.state.term, "entries of a term never entered"
        self.role = Role.LEARNER
        self.leader: NodeId = ""
        self.timer = ElectionTimer(config, dice)
        self.outbox: list[Message] = []
        self.reads_done: list[ReadAt] = []
        self.following = FollowerState(LogIndex(0))
        self.granted: set[NodeId] = set()
        """The votes of a candidate."""
        self.leading = LeaderState()

    @property
    def term(self) -> Term:
        return self.hard.term

    def become(self, event: Event) -> None:
        """Change the role. No other code does."""
        ways = TRANSITIONS[self.role]
        assert event in ways, f"{self.id}: {event.name} means nothing to a {self.role.name}"
        before, self.role = self.role, ways[event]
        if before is not self.role:
            self.timer.restart()
            self.granted = set()
            if before is Role.LEADER:
                self.leading = LeaderState()

    def enter_term(self, term: Term, *, vote: NodeId = "", leader: NodeId = "") -> None:
        assert term > self.hard.term
        self.hard = self.hard._replace(term=term, vote=vote)
        self.outbox.clear()  # messages of the old term are useless in the new one
        self.follow("")
        self.follow(leader)

    def follow(self, leader: NodeId) -> None:
        if leader != self.leader or not leader:
            self.leader = leader
            self.following = FollowerState(self.log.commit)

    def hears_leader(self) -> bool:
        """Whether a leader is known to be alive, so that vote requests are ignored (section 6)."""
        if self.role is Role.LEADER:
            return True
        return self.leader != "" and self.timer.idle < self.config.election_ticks

    def take_seat(self) -> None:
        """Become a follower or a learner, depending on the membership and on this member's
        doubt."""
        seated = not self.hard.doubt and self.log.members.has_seat(self.id, self.log.commit)
        if self.role is Role.LEARNER and seated:
            self.become(Event.SEATED)
        elif self.role is Role.FOLLOWER and not seated:
            self.become(Event.UNSEATED)

    def commit_to(self, index: LogIndex) -> None:
        """Advance the commit index to `index`."""
        if index > self.log.commit:
            assert index <= self.log.last, f"commit {index} behind the end {self.log.last}"
            self.log.commit = index
            self.take_seat()

    def report(self) -> None:
        """Report to the leader what is on this member's disk; only that counts."""
        if self.leader and self.leader != self.id:
            following = self.following
            match = min(following.matched, self.log.stable)
            self.outbox.append(
                AppendReply(
                    self.term, self.id, self.leader, match, following.round, self.hard.doubt
                )
            )
