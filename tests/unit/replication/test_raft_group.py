"""Members of a group: who is listened to, disks that fail, disks that fill up."""

import asyncio
from pathlib import Path

import pytest
from raft_logs import chunk
from raft_trio import NAMES, Member, Trio, play, until

from tianzhou.base.errors import UsageError
from tianzhou.net.rpc import RequestRejected
from tianzhou.raft.messages import LogIndex, Term, VoteRequest
from tianzhou.raft.roles import Role
from tianzhou.replication.raft_settings import broker_id_of, peers_of
from tianzhou.store.errors import DiskFull


def fill(member: Member) -> None:
    for _ in range(100):
        member.group.append(chunk(b"x" * 1000))


def test_raft_group_replicates_messages_across_several_files(tmp_path: Path) -> None:
    async def scene(trio: Trio) -> None:
        sent = [b"%d" % number * 50 for number in range(600)]
        for first in range(0, 600, 20):
            await trio.send(*sent[first : first + 20])
        await until(lambda: all(len(member.shown()) == 600 for member in trio.members))
        assert all(member.shown() == sent for member in trio.members)
        assert len(trio.members[0].store.log.segments) > 1

    play(tmp_path, scene)


def test_follower_rejects_messages(tmp_path: Path) -> None:
    async def scene(trio: Trio) -> None:
        leader = await trio.leader()
        follower = next(member for member in trio.members if member is not leader)
        with pytest.raises(RequestRejected, match="does not lead"):
            follower.group.append(chunk(b"x"))

    play(tmp_path, scene)


def test_leader_whose_disk_fails_is_fenced_and_replaced(tmp_path: Path) -> None:
    async def scene(trio: Trio) -> None:
        await trio.send(b"before")
        failed = await trio.leader()
        failed.disk.sync_fails = True
        failed.group.append(chunk(b"perhaps"))
        await until(lambda: bool(failed.fenced_because))
        assert not failed.group.is_leading
        assert failed.store.is_broken
        others = [member for member in trio.members if member is not failed]
        await until(lambda: any(member.group.is_leading for member in others))
        await trio.send(b"after")
        for member in others:
            await until(lambda one=member: one.shown()[-1:] == [b"after"])
            assert member.shown()[0] == b"before"

    play(tmp_path, scene)


def test_leader_with_a_full_disk_transfers_leadership(tmp_path: Path) -> None:
    async def scene(trio: Trio) -> None:
        full = await trio.leader()
        full.disk.is_full = True
        with pytest.raises(DiskFull):
            fill(full)
        others = [member for member in trio.members if member is not full]
        await until(lambda: any(member.group.is_leading for member in others))
        await trio.send(b"elsewhere")
        full.disk.is_full = False
        await until(lambda: full.shown()[-1:] == [b"elsewhere"])
        assert full.shown() == others[0].shown()
        assert not full.fenced_because

    play(tmp_path, scene)


def test_leader_serves_committed_entries_once_its_own_disk_has_them(tmp_path: Path) -> None:
    """The other members are a majority without it, and may be faster."""

    async def scene(trio: Trio) -> None:
        await trio.send(b"before")
        leader = await trio.leader()
        slow = trio.named(leader.group.best_heir())
        await until(lambda: slow.group.applied == leader.group.applied)
        slow.disk.may_sync.clear()
        assert leader.group.transfer(slow.group.node.id) is None
        await until(lambda: slow.group.node.core.log.commit > slow.group.applied)
        assert slow.group.node.role is Role.LEADER
        assert not slow.group.is_leading
        slow.disk.may_sync.set()
        await until(lambda: slow.group.is_leading)
        await trio.send(b"after")
        await until(lambda: leader.shown() == [b"before", b"after"])

    play(tmp_path, scene)


def test_follower_whose_disk_was_full_catches_up(tmp_path: Path) -> None:
    async def scene(trio: Trio) -> None:
        leader = await trio.leader()
        full = next(member for member in trio.members if member is not leader)
        full.disk.is_full = True
        for number in range(40):
            await trio.send(b"%d" % number * 400)
        assert full.group.node.role is Role.FOLLOWER
        assert len(full.shown()) < 40
        full.disk.is_full = False
        await until(lambda: len(full.shown()) == 40)

    play(tmp_path, scene)


def test_damage_found_while_reading_is_repaired_after_a_restart(tmp_path: Path) -> None:
    async def scene(trio: Trio) -> None:
        for number in range(30):
            await trio.send(b"%d" % number * 100)
        leader = await trio.leader()
        hurt = next(member for member in trio.members if member is not leader)
        await until(lambda: len(hurt.shown()) == 30)
        place = hurt.group.storage.end_of(LogIndex(12))
        hurt.group.found_damage(place)
        assert hurt.fenced_because
        await hurt.close()
        again = Member(hurt.group.node.id, tmp_path, trio.peers)
        trio.members[trio.members.index(hurt)] = again
        assert again.group.storage.last == 12
        assert again.group.node.hard.doubt
        await again.start()
        await until(lambda: not again.group.node.hard.doubt)
        await until(lambda: again.shown() == leader.shown())

    play(tmp_path, scene)


def test_unknown_member_is_ignored(tmp_path: Path) -> None:
    async def scene(trio: Trio) -> None:
        leader = await trio.leader()
        term = leader.group.node.hard.term
        name, _, rest = trio.peers.partition(";")
        own = "n9=127.0.0.1:1"
        stranger = Member("n9", tmp_path / "other", f"{own};{name};{rest}", group="g")
        stranger.group.peers.reach(peers_of(trio.peers))
        await asyncio.sleep(0.7)
        assert not stranger.group.peers.is_connected(leader.group.node.id)
        assert (await trio.leader()).group.node.hard.term == term
        await stranger.close()

    play(tmp_path, scene)


@pytest.mark.parametrize("secret", ["", "wrong", "right"])
def test_member_without_the_secret_is_ignored(tmp_path: Path, secret: str) -> None:
    """Members do not connect to it either, even if it listens at the address of a member."""

    async def scene(trio: Trio) -> None:
        await trio.send(b"with a secret")
        name, term = NAMES[0], (await trio.leader()).group.node.hard.term
        impostor = Member(name, tmp_path / "other", trio.peers, secret=secret)
        others = {other: at for other, at in peers_of(trio.peers).items() if other != name}
        peers = impostor.group.peers
        peers.reach(others)
        port = peers.listen("127.0.0.1", 0)
        speaker = trio.members[1].group.peers
        speaker.reach({name: f"127.0.0.1:{port}"})
        # From a member this starts a new term, which every member must enter.
        ahead, is_right = Term(term + 5), secret == "right"
        heard = (False, False)
        for _ in range(1500 if is_right else 30):
            for other in others:
                index = LogIndex(1 << 40)
                peers.send(VoteRequest(ahead, name, other, index, ahead, pre=False, forced=True))
            await asyncio.sleep(0.02)
            terms = {member.group.node.hard.term for member in trio.members}
            heard = (max(terms) >= ahead, speaker.is_connected(name))
            if all(heard):
                break
        assert heard == (is_right, is_right)
        await impostor.close()

    play(tmp_path, scene, secret="right")


def test_directory_of_another_member_is_rejected(tmp_path: Path) -> None:
    peers = "n0=127.0.0.1:1;n1=127.0.0.1:2"

    async def run() -> None:
        member = Member("n0", tmp_path, peers)
        member.store.close()
        member.group.files.close()
        (tmp_path / "n1").symlink_to(tmp_path / "n0")
        with pytest.raises(UsageError, match="belongs to n0"):
            Member("n1", tmp_path, peers)

    asyncio.run(run())


def test_peers_are_parsed_in_our_form_and_rocketmqs() -> None:
    assert peers_of("n0=a:1;n1=b:2") == {"n0": "a:1", "n1": "b:2"}
    assert peers_of("n0-a:1;n1-b:2") == {"n0": "a:1", "n1": "b:2"}
    for wrong in ("n0", "n0=a", "n0=a:0", "=a:1", "n0=a:1;n0=b:2"):
        with pytest.raises(UsageError):
            peers_of(wrong)


@pytest.mark.parametrize(
    ("names", "ids"),
    [
        ("n0 n1 n2", [1, 2, 3]),
        ("n7 n3", [8, 4]),
        ("left right", [1, 2]),
        ("east1 west1 west01", [1, 3, 2]),
        ("n0 n1 other", [1, 2, 3]),
    ],
)
def test_members_have_distinct_broker_ids(names: str, ids: list[int]) -> None:
    """The NameServer would know only one of them."""
    peers = dict.fromkeys(names.split(), "")
    assert [broker_id_of(name, peers) for name in peers] == ids
    assert broker_id_of("n3", {}) == 4
