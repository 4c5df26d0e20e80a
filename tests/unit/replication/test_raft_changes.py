"""What an operator asks of a group, asked again because the answer was lost."""

from pathlib import Path

import pytest
from raft_trio import Member, Trio, play, until

from tianzhou.base.errors import UsageError
from tianzhou.broker.replica.admin_raft import LEARNER, MEMBERS_MAX, REMOVE, VOTER, WITNESS, changed
from tianzhou.raft.membership import Members

ADDRESSES = "n0=a:1;n1=b:2;n2=c:3"
MEMBERS = Members(frozenset({"n0", "n1"}), learners=frozenset({"n2"}), addresses=ADDRESSES)


def test_change_that_is_already_in_effect_does_nothing() -> None:
    assert changed(MEMBERS, REMOVE, "n9", address="") == MEMBERS
    assert changed(MEMBERS, LEARNER, "n2", address="c:3") == MEMBERS
    assert changed(MEMBERS, VOTER, "n1", address="") == MEMBERS


def test_add_of_a_voter_keeps_its_vote() -> None:
    with pytest.raises(UsageError, match="n0 has a vote"):
        changed(MEMBERS, LEARNER, "n0", address="a:1")


@pytest.mark.parametrize(
    ("member", "address", "complaint"),
    [
        ("n0", "elsewhere:1", "n0 is already a member, at a:1"),
        ("n3", "b:2", "b:2 is the address of n1"),
        ("n3", "127.0.0.1:9", "use an address all can reach"),
        ("n3", "localhost:9", "use an address all can reach"),
        ("n3", "", "the address of n3 is missing"),
        ("n3", "d", "invalid peer"),
        ("n3", "d:0", "invalid peer"),
        ("n3", "d:99999999999999999999", "invalid peer"),
        ("n3", "d:４", "invalid peer"),
        ("n3", "a b:4", "invalid peer"),
        ("n3", "d:4;n4=e:5", "invalid peer"),
        ("n,3", "d:4", "invalid member name"),
        ("n\n3", "d:4", "invalid member name"),
        ("", "d:4", "invalid member name"),
        ("n" * 65, "d:4", "invalid member name"),
    ],
)
def test_change_with_an_invalid_member_or_address_is_rejected(
    member: str, address: str, complaint: str
) -> None:
    for action in (LEARNER, VOTER):
        with pytest.raises(UsageError, match=complaint):
            changed(MEMBERS, action, member, address=address)


def test_witness_joins_without_a_vote_and_keeps_what_it_is() -> None:
    joined = changed(MEMBERS, WITNESS, "w", address="d:4")
    assert (joined.learners, joined.witnesses) == ({"n2", "w"}, {"w"})
    voting = changed(joined, VOTER, "w", address="")
    assert (voting.voters, voting.witnesses) == ({"n0", "n1", "w"}, {"w"})
    assert changed(voting, REMOVE, "w", address="") == MEMBERS


def test_add_to_a_group_with_the_maximum_of_members_is_rejected() -> None:
    names = [f"n{number}" for number in range(MEMBERS_MAX)]
    addresses = ";".join(f"{name}={name}:1" for name in names)
    full = Members(frozenset(names[:3]), learners=frozenset(names[3:]), addresses=addresses)
    assert changed(full, VOTER, names[3], address="").voters == set(names[:4])
    with pytest.raises(UsageError, match="at most 16 members"):
        changed(full, LEARNER, "one-more", address="d:4")


def test_change_requested_twice_is_applied_once(tmp_path: Path) -> None:
    async def scene(trio: Trio) -> None:
        leader = await trio.leader()
        gone = next(one.group.node.id for one in trio.members if one is not leader)
        target = changed(leader.group.members, REMOVE, gone, address="")
        # The one that stays may not have answered yet; without it the change is refused.
        await until(
            lambda: all(peer.round for peer in leader.group.node.core.leading.peers.values())
        )
        first = leader.group.change(target)
        assert leader.group.change(target) == first
        assert leader.group.change(changed(target, REMOVE, gone, address="")) == first
        await until(lambda: leader.group.applied >= leader.group.storage.last)
        assert leader.group.change(target) == first
        await until(lambda: gone not in trio.named(gone).group.members.voters)
        await until(lambda: not leader.group.peers.is_connected(gone))

    play(tmp_path, scene)


def test_transfer_to_the_current_leader_does_nothing(tmp_path: Path) -> None:
    async def scene(trio: Trio) -> None:
        leader = await trio.leader()
        term = leader.group.node.hard.term
        assert leader.group.transfer(leader.group.node.id) is None
        await trio.send(b"at once")
        heir: Member = trio.named(leader.group.best_heir())
        assert leader.group.transfer(heir.group.node.id) is None
        await until(lambda: heir.group.is_leading)
        assert heir.group.transfer(heir.group.node.id) is None
        await trio.send(b"at once")
        assert heir.group.node.hard.term == term + 1

    play(tmp_path, scene)
