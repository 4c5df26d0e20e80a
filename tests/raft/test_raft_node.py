"""The interface of a node: what it rejects, what it limits, what it passes on unchanged."""

import pytest
from script import NoChance

from tianzhou.base.errors import UsageError
from tianzhou.raft.config import RaftConfig
from tianzhou.raft.membership import members_of
from tianzhou.raft.messages import (
    Append,
    AppendReply,
    Entry,
    Install,
    Kind,
    LogIndex,
    Start,
    Term,
    VoteRequest,
)
from tianzhou.raft.node import TERM_LEAP_MAX, Node, Position, Refusal
from tianzhou.raft.ready import Begin, HardState
from tianzhou.raft.roles import Event, Role
from tianzhou.testing.sim.raft_disk import RaftDisk


class Single:
    """A group of one member, which becomes leader without others."""

    def __init__(self, config: RaftConfig | None = None, *others: str) -> None:
        self.disk = RaftDisk(members_of(["n0", *others]))
        self.node = Node(
            "n0", config or RaftConfig(), NoChance(), storage=self.disk, saved=self.disk.saved()
        )

    def work(self) -> LogIndex:
        """Process everything pending; returns the commit index."""
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


def test_node_that_is_not_leader_rejects_proposals() -> None:
    node = Single().node
    assert node.propose(b"x") is Refusal.NOT_LEADER
    assert node.read("r") is Refusal.NOT_LEADER
    assert node.hand_over("n1") is Refusal.NOT_LEADER
    assert node.change(members_of(["n0"])) is Refusal.NOT_LEADER


def test_node_passes_chunks_on_without_copying() -> None:
    """A leader passes on the very bytes it was given."""
    group = Single()
    node = group.lead()
    chunk = bytes(1_000_000)
    assert node.propose(chunk) == Position(LogIndex(2), Term(1))
    save = node.ready().save
    assert save is not None
    assert save.entries[-1].data is chunk


def test_node_saves_many_chunks_at_once() -> None:
    group = Single()
    node = group.lead()
    for number in range(100):
        node.propose(b"%d" % number)
    save = node.ready().save
    assert save is not None
    assert len(save.entries) == 100
    assert node.ready().save is None, "one save at a time"


def test_node_limits_uncommitted_bytes() -> None:
    group = Single(RaftConfig(uncommitted_bytes_max=100))
    node = group.lead()
    assert isinstance(node.propose(bytes(500)), Position), "a single chunk always fits"
    assert node.propose(b"x") is Refusal.FULL
    group.work()
    assert isinstance(node.propose(bytes(60)), Position)
    assert node.propose(bytes(60)) is Refusal.FULL


def test_node_rejects_a_second_confirmation_of_a_save() -> None:
    group = Single()
    with pytest.raises(AssertionError, match="nothing was to be saved"):
        group.node.advance()


def test_node_rejects_messages_for_other_nodes() -> None:
    node = Single().node
    message = VoteRequest(Term(1), "n1", "n9", LogIndex(0), Term(0), pre=False, forced=False)
    with pytest.raises(UsageError, match="a message for n9 was given to n0"):
        node.step(message)


def test_node_ignores_absurdly_high_terms() -> None:
    """One forged message must not make a group use up its terms (S33)."""
    node = Single(None, "n1", "n2").node
    far = Term(TERM_LEAP_MAX + 1)
    node.step(VoteRequest(far, "n1", "n0", LogIndex(0), Term(0), pre=False, forced=True))
    node.step(Append(far, "n1", "n0", LogIndex(0), Term(0), (), LogIndex(0), 1, 0))
    assert node.hard == HardState()
    assert not node.has_ready()


def test_node_with_two_leaders_in_one_term_fails_an_assertion() -> None:
    node = Single().lead()
    with pytest.raises(AssertionError, match="LEADER_SEEN means nothing to a LEADER"):
        node.step(Append(node.hard.term, "n1", "n0", LogIndex(0), Term(0), (), LogIndex(0), 1, 0))


def test_copy_ignores_what_is_meant_for_a_witness() -> None:
    """It would acknowledge entries that it does not have."""
    node = Single(None, "n1", "n2").node
    entry = Entry(LogIndex(1), Term(1), Kind.OMITTED, b"")
    node.step(Append(Term(1), "n1", "n0", LogIndex(0), Term(0), (entry,), LogIndex(0), 1, 0))
    members = members_of(["n0", "n1", "n2"]).encode()
    node.step(Install(Term(1), "n1", "n0", Start(LogIndex(9), Term(1)), members, b"", 1))
    assert node.core.log.last == 0
    assert not [m for m in node.core.outbox if isinstance(m, AppendReply)]


def test_witness_ignores_what_is_meant_for_a_copy() -> None:
    node = Single(RaftConfig(is_witness=True), "n1", "n2").node
    entry = Entry(LogIndex(1), Term(1), Kind.CHUNK, b"message")
    node.step(Append(Term(1), "n1", "n0", LogIndex(0), Term(0), (entry,), LogIndex(0), 1, 0))
    assert node.core.log.last == 0
    assert not node.core.outbox


def test_member_cannot_become_a_witness() -> None:
    node = Single().lead()
    group = members_of(["n0"], ["n1"])._replace(witnesses=frozenset({"n1"}))
    assert isinstance(node.change(group), Position)
    with pytest.raises(UsageError, match="n1 cannot become a witness or stop being one"):
        node.change(members_of(["n0"], ["n1"]))


def test_node_trim_during_a_log_restart_applies_to_the_old_log() -> None:
    """Found by seed 910024: a full disk may delay the new start of a log, while files expire."""
    log = Single().lead().core.log
    begin = Begin(Start(LogIndex(40), Term(3)), members_of(["n0"]), b"")
    log.begin_at(begin)
    log.trim(LogIndex(1))
    assert (log.start, log.last) == (begin.start, begin.start.index)


def test_node_rejects_joint_memberships_from_callers() -> None:
    node = Single().lead()
    target = members_of(["n0"])._replace(outgoing=frozenset({"n1"}))
    with pytest.raises(UsageError, match="the way there is found"):
        node.change(target)


def test_node_start_with_entries_of_a_later_term_is_rejected() -> None:
    group = Single()
    group.lead()
    group.disk.state = HardState()
    with pytest.raises(AssertionError, match="a term never entered"):
        Node("n0", RaftConfig(), NoChance(), storage=group.disk, saved=group.disk.saved())


@pytest.mark.parametrize(
    "wrong",
    [
        {"heartbeat_ticks": 10},
        {"heartbeat_ticks": 0},
        {"inflight_max": 0},
        {"append_bytes_max": 0},
        {"uncommitted_bytes_max": 0},
    ],
)
def test_invalid_raft_settings_are_rejected(wrong: dict[str, int]) -> None:
    with pytest.raises(UsageError, match="must"):
        RaftConfig(**wrong)  # pyright: ignore[reportArgumentType]


def test_node_role_change_outside_the_table_is_rejected() -> None:
    node = Single().node
    with pytest.raises(AssertionError, match="VOTE_WON means nothing to a FOLLOWER"):
        node.core.become(Event.VOTE_WON)
