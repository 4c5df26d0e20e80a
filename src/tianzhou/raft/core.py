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


class Core:
    """The state of a member. The modules of the roles change it; callers use `Node`.

    Owner: the caller of the node.    Invariant: term never falls; the vote changes with the term,
    or once within a term from no vote to a vote.
    """

    __slots__ = (
        "config",
        "dice",
        "election_at",
        "granted",
        "hard",
        "id",
        "idle",
        "leader",
        "log",
        "matched",
        "now",
        "outbox",
        "peers",
        "pump_due",
        "reads",
        "reads_done",
        "role",
        "round",
        "transfer",
        "uncommitted",
        "uncommitted_bytes",
    )

    def __init__(
        self, node: NodeId, config: RaftConfig, dice: Dice, *, storage: LogStorage, saved: Saved
    ) -> None:
        self.id = node
        self.config = config
        self.dice = dice
        self.hard: HardState = saved.state
        self.log = RaftLog(storage, saved)
        assert self.log.terms.last_term <= saved.state.term, "entries of a term never entered"
        self.role = Role.LEARNER
        self.leader: NodeId = ""
        self.now = 0
        """Ticks since the start."""
        self.idle = 0
        """Ticks since the last message from the leader, the last granted vote, or the start of an
        election."""
        self.election_at = 0
        self.round = 0
        """On a leader: the latest round. On a follower: the latest round in which its log matched
        the leader's."""
        self.outbox: list[Message] = []
        # Follower state
        self.matched = LogIndex(0)
        """Up to here the log is known to match the leader's."""
        # Candidate state
        self.granted: set[NodeId] = set()
        # Leader state
        self.peers: dict[NodeId, Progress] = {}
        self.pump_due = False
        self.transfer: Transfer | None = None
        self.uncommitted: deque[tuple[LogIndex, int]] = deque()
        """Index and size of each entry of this term that is not committed."""
        self.uncommitted_bytes = 0
        self.reads: list[PendingRead] = []
        self.reads_done: list[ReadAt] = []
        self.rest()

    @property
    def term(self) -> Term:
        return self.hard.term

    def become(self, event: Event) -> None:
        """Change the role. No other code does."""
        ways = TRANSITIONS[self.role]
        assert event in ways, f"{self.id}: {event.name} means nothing to a {self.role.name}"
        before, self.role = self.role, ways[event]
        if before is not self.role:
            self.rest()
            self.granted = set()
            if before is Role.LEADER:
                self.peers = {}
                self.transfer = None
                self.reads = []

    def rest(self) -> None:
        """Restart the election timer with a random duration."""
        self.idle = 0
        ticks = self.config.election_ticks
        self.election_at = self.dice.randrange(ticks, 2 * ticks)

    def enter_term(self, term: Term, *, vote: NodeId = "", leader: NodeId = "") -> None:
        assert term > self.hard.term
        self.hard = self.hard._replace(term=term, vote=vote)
        self.outbox.clear()  # messages of the old term are useless in the new one
        self.follow("")
        self.follow(leader)

    def follow(self, leader: NodeId) -> None:
        if leader != self.leader or not leader:
            self.leader = leader
            self.matched = self.log.commit
            self.round = 0

    def hears_leader(self) -> bool:
        """Whether a leader is known to be alive, so that vote requests are ignored (section 6)."""
        if self.role is Role.LEADER:
            return True
        return self.leader != "" and self.idle < self.config.election_ticks

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
            match = min(self.matched, self.log.stable)
            self.outbox.append(
                AppendReply(self.term, self.id, self.leader, match, self.round, self.hard.doubt)
            )
