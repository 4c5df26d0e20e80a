"""Files of a group's log that can't be made, or that expire, while members are behind."""

from pathlib import Path

import pytest
from raft_logs import chunk
from raft_trio import FILE_BYTES, RESERVE_BYTES, Member, Trio, play, until

from tianzhou.store.errors import DiskFull

ROOM_LEFT = 60
"""Bytes; less than an entry without messages has."""


def test_leader_with_room_for_part_of_a_chunk_leaves_logs_equal(tmp_path: Path) -> None:
    """The written part stays, and the next entries follow it on all members, unless another
    member becomes leader."""

    async def scene(trio: Trio) -> None:
        await trio.send(b"before")
        leader = await trio.leader()
        heir = trio.named(leader.group.best_heir())
        other = next(one for one in trio.members if one not in (leader, heir))
        leader.disk.room_bytes = FILE_BYTES + FILE_BYTES // 2
        with pytest.raises(DiskFull):
            leader.group.append(chunk(*[b"x" * 1000] * 150))
        trio.crash(heir)  # before it hears that it is to lead
        leader.disk.room_bytes = 1 << 40
        await until(lambda: leader.group.node.may_propose(1) is None)
        await trio.send(b"after")
        await until(lambda: other.shown()[-1:] == [b"after"])
        assert leader.shown() == other.shown()
        assert 1 < leader.shown().count(b"x" * 1000) < 150
        assert not leader.fenced_because

    play(tmp_path, scene)


def test_member_that_needs_an_expired_file_restarts_from_the_leader(tmp_path: Path) -> None:
    """A member that was offline restarts where the leader's log then starts."""

    async def scene(trio: Trio) -> None:
        leader = await trio.leader()
        late = next(one for one in trio.members if one is not leader)
        await late.close()
        for _ in range(30):
            await trio.send(*[b"y" * 1000] * 10)
        leader.disk.free = 12
        assert leader.store.clean(wait=True)
        again = Member(late.group.node.id, tmp_path, trio.peers)
        trio.members[trio.members.index(late)] = again
        await again.start()
        await trio.send(b"after")
        await until(lambda: again.group.applied == leader.group.applied)
        assert again.store.log.min_offset == leader.store.log.min_offset > 0
        assert again.shown()[-1:] == [b"after"]
        assert again.shown() == leader.shown()
        assert not leader.fenced_because

    play(tmp_path, scene)


def test_leader_without_room_for_its_queues_transfers_leadership(tmp_path: Path) -> None:
    """It may be elected: its log has room. But it can't make visible what it has."""

    async def scene(trio: Trio) -> None:
        leader = await trio.leader()
        full = trio.named(leader.group.best_heir())
        full.disk.queues_are_full = True
        await trio.send(*[b"x" * 10] * 300)
        await until(lambda: full.group.applied == leader.group.applied)
        term = leader.group.node.hard.term + 1  # the one in which it is elected
        assert leader.group.transfer(full.group.node.id) is None
        others = [one.group for one in trio.members if one is not full]
        await until(lambda: any(one.is_leading and one.node.hard.term > term for one in others))
        await trio.send(b"elsewhere")
        assert not full.group.is_leading
        full.disk.queues_are_full = False
        full.store.clean()
        full.store.dispatch_all()
        await until(lambda: full.shown()[-1:] == [b"elsewhere"])
        assert len(full.shown()) == 301

    play(tmp_path, scene)


def test_leader_without_room_for_its_first_entry_transfers_leadership(tmp_path: Path) -> None:
    """Its log is complete, so it is elected; but there is no room for the first entry of a
    leader."""

    async def scene(trio: Trio) -> None:
        leader = await trio.leader()
        log = leader.store.log
        before = log.end
        await trio.send(b"x")
        overhead = log.end - before - 1
        await trio.send(b"x" * ((-log.end - overhead - ROOM_LEFT) % RESERVE_BYTES))
        full = trio.named(leader.group.best_heir())
        await until(lambda: full.group.applied == leader.group.applied)
        assert -full.store.log.end % RESERVE_BYTES == ROOM_LEFT
        full.disk.is_full = True
        term = leader.group.node.hard.term + 1  # the one in which it is elected
        assert leader.group.transfer(full.group.node.id) is None
        others = [one.group for one in trio.members if one is not full]
        await until(lambda: any(one.is_leading and one.node.hard.term > term for one in others))
        await trio.send(b"elsewhere")
        full.disk.is_full = False
        await until(lambda: full.shown()[-1:] == [b"elsewhere"])

    play(tmp_path, scene)
