"""What an operator asks of a group, asked again because the answer was lost."""

from pathlib import Path

import pytest
from raft_trio import Member, Trio, play, until

from tianzhou.base.errors import UsageError
from tianzhou.broker.handlers.admin_raft import LEARNER, REMOVE, VOTER, changed
from tianzhou.raft.membership import Members

ADDRESSES = "n0=a:1;n1=b:2;n2=c:3"
MEMBERS = Members(frozenset({"n0", "n1"}), learners=frozenset({"n2"}), addresses=ADDRESSES)


def test_what_is_so_already_changes_nothing() -> None:
    assert changed(MEMBERS, REMOVE, "n9", address="") == MEMBERS
    assert changed(MEMBERS, LEARNER, "n2", address="c:3") == MEMBERS
    assert changed(MEMBERS, VOTER, "n1", address="") == MEMBERS


def test_nobody_loses_its_vote_by_being_added() -> None:
    with pytest.raises(UsageError, match="n0 has a vote"):
        changed(MEMBERS, LEARNER, "n0", address="a:1")


def test_a_change_that_is_asked_for_twice_is_made_once(tmp_path: Path) -> None:
    async def scene(trio: Trio) -> None:
        leader = await trio.leader()
        gone = next(one.group.node.id for one in trio.members if one is not leader)
        target = changed(leader.group.members, REMOVE, gone, address="")
        first = leader.group.change(target)
        assert leader.group.change(target) == first
        assert leader.group.change(changed(target, REMOVE, gone, address="")) == first
        await until(lambda: leader.group.applied >= leader.group.storage.last)
        assert leader.group.change(target) == first
        await until(lambda: gone not in trio.named(gone).group.members.voters)
        await until(lambda: not leader.group.peers.is_connected(gone))

    play(tmp_path, scene)


def test_who_leads_need_not_be_made_the_leader(tmp_path: Path) -> None:
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
