"""The door of a node: what it refuses, what it holds back, what it hands on untouched."""

import pytest
from script import NoChance

from tianzhou.base.errors import UsageError
from tianzhou.raft.config import RaftConfig
from tianzhou.raft.membership import members_of
from tianzhou.raft.messages import Append, LogIndex, Start, Term, VoteRequest
from tianzhou.raft.node import TERM_LEAP_MAX, Node, Position, Refusal
from tianzhou.raft.ready import Begin, HardState
from tianzhou.raft.roles import Event, Role
from tianzhou.testing.sim.raft_disk import RaftDisk


class Single:
    """A group of one, which needs nobody else to lead."""

    def __init__(self, config: RaftConfig | None = None, *others: str) -> None:
        self.disk = RaftDisk(members_of(["n0", *others]))
        self.node = Node(
            "n0", config or RaftConfig(), NoChance(), storage=self.disk, saved=self.disk.saved()
        )

    def work(self) -> LogIndex:
        """Do everything there is to do; the commit index."""
        while self.node.has_ready():
            ready = self.node.ready()
            if ready.save is not None:
                self.disk.write(ready.save)
                self.disk.sync(ready.commit)
                self.node.advance()
        return self.node.ready().commit

    def lead(self) -> Node:
        for _ in range(10):
            self.node.tick()
        self.work()
        assert self.node.role is Role.LEADER
        return self.node


def test_only_a_leader_takes_anything() -> None:
    node = Single().node
    assert node.propose(b"x") is Refusal.NOT_LEADER
    assert node.read("r") is Refusal.NOT_LEADER
    assert node.hand_over("n1") is Refusal.NOT_LEADER
    assert node.change(members_of(["n0"])) is Refusal.NOT_LEADER


def test_chunks_are_opaque_and_not_copied() -> None:
    """A leader hands on the very bytes it was given."""
    group = Single()
    node = group.lead()
    chunk = bytes(1_000_000)
    assert node.propose(chunk) == Position(LogIndex(2), Term(1))
    save = node.ready().save
    assert save is not None
    assert save.entries[-1].data is chunk


def test_many_chunks_are_one_save() -> None:
    group = Single()
    node = group.lead()
    for number in range(100):
        node.propose(b"%d" % number)
    save = node.ready().save
    assert save is not None
    assert len(save.entries) == 100
    assert node.ready().save is None, "one save at a time"


def test_what_waits_to_be_committed_has_a_limit() -> None:
    group = Single(RaftConfig(uncommitted_bytes_max=100))
    node = group.lead()
    assert isinstance(node.propose(bytes(500)), Position), "a single one always fits"
    assert node.propose(b"x") is Refusal.FULL
    group.work()
    assert isinstance(node.propose(bytes(60)), Position)
    assert node.propose(bytes(60)) is Refusal.FULL


def test_a_save_is_confirmed_once() -> None:
    group = Single()
    with pytest.raises(AssertionError, match="nothing was to be saved"):
        group.node.advance()


def test_messages_for_others_are_refused() -> None:
    node = Single().node
    message = VoteRequest(Term(1), "n1", "n9", LogIndex(0), Term(0), pre=False, forced=False)
    with pytest.raises(UsageError, match="a message for n9 was given to n0"):
        node.step(message)


def test_absurd_terms_are_ignored() -> None:
    """One lie must not make a group use up its terms (S33)."""
    node = Single(None, "n1", "n2").node
    far = Term(TERM_LEAP_MAX + 1)
    node.step(VoteRequest(far, "n1", "n0", LogIndex(0), Term(0), pre=False, forced=True))
    node.step(Append(far, "n1", "n0", LogIndex(0), Term(0), (), LogIndex(0), 1, 0))
    assert node.hard == HardState()
    assert not node.has_ready()


def test_two_leaders_of_a_term_are_a_mistake_of_ours() -> None:
    node = Single().lead()
    with pytest.raises(AssertionError, match="LEADER_SEEN means nothing to a LEADER"):
        node.step(Append(node.hard.term, "n1", "n0", LogIndex(0), Term(0), (), LogIndex(0), 1, 0))


def test_what_expires_of_a_log_that_begins_anew_is_of_the_old_one() -> None:
    """Found by seed 910024: a full disk can keep the new beginning waiting, while files expire."""
    log = Single().lead().core.log
    begin = Begin(Start(LogIndex(40), Term(3)), members_of(["n0"]), b"")
    log.begin_at(begin)
    log.trim(LogIndex(1))
    assert (log.start, log.last) == (begin.start, begin.start.index)


def test_joint_memberships_are_not_for_callers() -> None:
    node = Single().lead()
    target = members_of(["n0"])._replace(outgoing=frozenset({"n1"}))
    with pytest.raises(UsageError, match="the way there is found"):
        node.change(target)


def test_entries_of_a_term_that_was_never_entered_stop_the_start() -> None:
    group = Single()
    group.lead()
    group.disk.state = HardState()
    with pytest.raises(AssertionError, match="a term never entered"):
        Node("n0", RaftConfig(), NoChance(), storage=group.disk, saved=group.disk.saved())


@pytest.mark.parametrize(
    "wrong",
    [
        {"heartbeat_ticks": 10}, {"heartbeat_ticks": 0}, {"inflight_max": 0},
        {"append_bytes_max": 0}, {"uncommitted_bytes_max": 0},
    ],
)  # fmt: skip
def test_settings_that_can_not_work_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(UsageError, match="must"):
        RaftConfig(**wrong)


def test_roles_change_by_the_table_alone() -> None:
    node = Single().node
    with pytest.raises(AssertionError, match="VOTE_WON means nothing to a FOLLOWER"):
        node.core.become(Event.VOTE_WON)
