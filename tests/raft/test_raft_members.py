"""Memberships and majorities."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tianzhou.base.errors import UsageError
from tianzhou.raft.membership import MemberHistory, Members, check, decode, members_of, turned
from tianzhou.raft.messages import LogIndex
from tianzhou.raft.quorum import agreed, won

IDS = st.frozensets(st.sampled_from([f"n{number}" for number in range(7)]), min_size=1)


@given(voters=IDS, outgoing=IDS | st.just(frozenset[str]()), learners=IDS)
def test_members_round_trip_through_the_log(
    voters: frozenset[str], outgoing: frozenset[str], learners: frozenset[str]
) -> None:
    members = Members(voters, outgoing, learners, "n0=host:1;n1=[::1]:2\nanything")
    assert decode(members.encode()) == members


@given(voters=IDS, learners=IDS, witness=st.sampled_from([f"n{number}" for number in range(7)]))
def test_witness_round_trips_through_the_log(
    voters: frozenset[str], learners: frozenset[str], witness: str
) -> None:
    members = Members(voters, frozenset(), learners, "n0=host:1\nanything", frozenset({witness}))
    assert decode(members.encode()) == members


def test_earlier_version_rejects_a_membership_with_a_witness() -> None:
    """It splits the text into four lines; the first has the voters, and must not be empty."""
    voters, *_ = _pair("a", "b", "w").encode().decode().split("\n", 3)
    assert voters == ""


@given(voters=IDS, before=IDS)
def test_every_majority_with_one_witness_has_a_copy(
    voters: frozenset[str], before: frozenset[str]
) -> None:
    for witness in voters:
        members = Members(voters, before, witnesses=frozenset({witness}))
        if len(voters) > 1:
            assert not won(members, {witness})


@given(voters=IDS, outgoing=IDS | st.just(frozenset[str]()), granted=IDS)
def test_majority_matches_a_hand_count(
    voters: frozenset[str], outgoing: frozenset[str], granted: frozenset[str]
) -> None:
    enough = all(2 * len(s & granted) > len(s) for s in (voters, outgoing) if s)
    assert won(Members(voters, outgoing), granted) == enough


@given(st.dictionaries(st.sampled_from("abcdefg"), st.integers(0, 9), min_size=1))
def test_agreed_index_is_the_highest_that_a_majority_reached(reached: dict[str, int]) -> None:
    members = members_of(reached)
    index = agreed(members, lambda node: reached[node])
    assert 2 * sum(value >= index for value in reached.values()) > len(reached)
    assert 2 * sum(value > index for value in reached.values()) <= len(reached)


@given(before=IDS, after=IDS)
def test_each_membership_step_shares_a_majority_with_the_next(
    before: frozenset[str], after: frozenset[str]
) -> None:
    """Every majority before a step shares a member with every majority after it."""
    step = members_of(before).towards(members_of(after))
    assert step.voters == after
    if not step.outgoing:
        assert len(before ^ after) <= 1
    else:
        assert step.outgoing == before


@pytest.mark.parametrize(
    ("members", "complaint"),
    [
        (members_of([]), "at least one voter"),
        (members_of(["a"], ["a"]), "voter and learner at once"),
        (members_of(["a,b"]), "invalid member name"),
        (members_of([""]), "invalid member name"),
        (members_of("ab")._replace(witnesses=frozenset("w")), "w is a witness but not a member"),
        (
            members_of("abvw")._replace(witnesses=frozenset("vw")),
            "may have one witness, not v and w",
        ),
        (members_of("w")._replace(witnesses=frozenset("w")), "has no messages; keep a copy"),
        (
            members_of("ab")._replace(outgoing=frozenset("w"), witnesses=frozenset("w")),
            "has no messages; keep a copy",
        ),
    ],
)
def test_invalid_members_are_rejected(members: Members, complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint):
        check(members)


def _pair(*names: str) -> Members:
    return members_of(names)._replace(witnesses=frozenset({names[-1]}))


def test_joint_membership_knows_the_witnesses_of_both_sets() -> None:
    step = _pair("a", "b", "w").towards(_pair("a", "c", "x"))
    assert step.witnesses == {"w", "x"}
    check(step)
    assert step.settled() == _pair("a", "c", "x")


def test_witness_has_a_vote_but_no_seat() -> None:
    members = _pair("a", "b", "w")
    history = MemberHistory([(LogIndex(0), members)])
    assert members.may_vote("w")
    assert not members.may_lead("w")
    assert not history.has_seat("w", LogIndex(0))
    history.append(LogIndex(4), members_of("ab"))
    assert history.is_witness("w"), "until it is known that it is removed"
    history.trim(LogIndex(4))
    assert not history.is_witness("w")


def test_members_that_become_or_cease_to_be_a_witness_are_found() -> None:
    pair = _pair("a", "b", "w")
    assert turned(pair, members_of("abw")) == {"w"}
    assert turned(members_of("abw"), pair) == {"w"}
    assert not turned(pair, members_of("ab"))
    assert not turned(members_of("ab"), pair)


def test_membership_history_can_be_rolled_back() -> None:
    one, two, three = members_of("a"), members_of("ab"), members_of("abc")
    history = MemberHistory([(LogIndex(0), one)])
    history.append(LogIndex(4), two)
    history.append(LogIndex(9), three)
    assert [history.at(LogIndex(i)) for i in (0, 3, 4, 8, 9)] == [one, one, two, two, three]
    assert not history.cut(LogIndex(10))
    assert history.cut(LogIndex(9))
    assert (history.current, history.current_index) == (two, 4)
    history.trim(LogIndex(3))
    assert history.previous() == one
    history.trim(LogIndex(4))
    assert history.previous() is None


def test_removed_member_keeps_its_vote_until_the_removal_is_committed() -> None:
    history = MemberHistory([(LogIndex(0), members_of("ab")), (LogIndex(5), members_of("a"))])
    assert history.has_seat("b", LogIndex(4))
    assert not history.has_seat("b", LogIndex(5))
    assert not history.has_seat("c", LogIndex(4))
