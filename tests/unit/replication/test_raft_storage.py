"""The log of a group in a commit log: the same bytes on all members, and what a start finds."""

import shutil
from pathlib import Path

import pytest
from raft_logs import FILE_BYTES, KEY, CalmFiles, Log, barrier, chunk, members

from tianzhou.base.errors import RemoteProtocolError
from tianzhou.base.kinds import PhysicalOffset, QueueOffset, queue_key
from tianzhou.raft.membership import members_of
from tianzhou.raft.messages import Entry, Kind, LogIndex, Start, Term
from tianzhou.raft.ready import Begin, HardState
from tianzhou.record.chunk import Entry as Record
from tianzhou.record.chunk import build
from tianzhou.record.light_queues import with_room
from tianzhou.record.message import decode_all
from tianzhou.replication import raft_entry
from tianzhou.replication.raft_entry import HEADER_BYTES, TOPIC
from tianzhou.replication.raft_member import open_member
from tianzhou.replication.raft_settings import RaftSettings
from tianzhou.replication.raft_storage import Opened, RaftStorage
from tianzhou.store.files import RealFiles
from tianzhou.store.read import ReadLimit
from tianzhou.store.verify import Directory


@pytest.fixture
def leader(tmp_path: Path) -> Log:
    log = Log(tmp_path / "n0")
    log.storage.write([barrier(1)])
    log.lead()
    return log


def bodies(log: Log) -> list[bytes]:
    with log.store.read(KEY, QueueOffset(0), ReadLimit(1000, 1 << 20)) as found:
        return [view.body for span in found.spans for view in decode_all(span)]


def test_storage_of_a_follower_has_the_same_bytes_and_offsets(leader: Log, tmp_path: Path) -> None:
    """Over several files, with barriers, members and chunks of all sizes."""
    for number in range(40):
        leader.send(*[b"%d-%d" % (number, n) * (number % 7 * 20 + 1) for n in range(3)])
        if number % 10 == 5:
            leader.storage.write([barrier(leader.storage.last + 1)])
        if number == 17:
            leader.storage.write([members(leader.storage.last + 1, "n0", "n1", "n2", "n3")])
    assert len(leader.store.log.segments) > 4
    follower = Log(tmp_path / "n1", member="n1")
    entries = leader.entries()
    follower.storage.write(entries[:7])
    follower.storage.write(entries[7:])
    assert follower.bytes() == leader.bytes()
    leader.commit(leader.storage.last)
    follower.commit(follower.storage.last)
    assert bodies(follower) == bodies(leader) != []


def test_storage_starts_every_file_with_a_header(leader: Log) -> None:
    for number in range(30):
        leader.send(b"x" * (number * 37 % 900 + 1))
    segments = leader.store.log.segments
    assert len(segments) > 3
    for segment in segments:
        data = segment.read(0, raft_entry.HEADER_BYTES)
        assert raft_entry.header_at(data, 0, base=segment.start) is not None


def test_storage_splits_a_large_chunk_into_several_entries(leader: Log) -> None:
    before, parts = leader.storage.last, list[bytes]()
    appended = leader.storage.append(chunk(*[b"y" * 500] * 30), Term(1), parts.append)
    assert leader.storage.last == before + len(parts) > before + 3
    assert list(appended.queue_offsets) == list(range(30))
    places = appended.physical_offsets()
    leader.commit(leader.storage.last)
    for place in places:
        view = leader.store.log.read(place, 8)
        assert view is not None
        assert int.from_bytes(view[:4], "big") > 500
    assert len(bodies(leader)) == 30


def test_storage_assigns_offsets_in_light_queues_on_all_members(
    leader: Log, tmp_path: Path
) -> None:
    """Also if a chunk is split into several entries."""
    light = queue_key("%LMQ%a", 0)
    made = Record(KEY, b"y" * 500, with_room(b"", [b"%LMQ%a"]))
    plain = Record(KEY, b"z" * 500)
    built = build([plain, *[made] * 30], store_host=bytes(8), record_crc=True)
    leader.storage.append(built, Term(1), lambda _data: None)
    follower = Log(tmp_path / "n1", member="n1")
    follower.storage.write(leader.entries())
    assert follower.bytes() == leader.bytes()
    for member in (leader, follower):
        member.commit(member.storage.last)
        assert member.store.max_offset(light) == 30
        with member.store.read(light, QueueOffset(0), ReadLimit(1000, 1 << 20)) as found:
            views = [view for span in found.spans for view in decode_all(span)]
        assert [view.light_queues["%LMQ%a"] for view in views] == list(range(30))


def test_storage_headers_are_in_no_queue_and_pass_verify(leader: Log, tmp_path: Path) -> None:
    leader.send(b"a", b"b")
    leader.commit(leader.storage.last)
    assert [queue.key for queue in leader.store.queues] == [KEY]
    assert not [queue for queue in leader.store.queues if queue.key.topic == TOPIC]
    leader.close()
    directory = Directory(RealFiles(), str(tmp_path / "n0"), leader.store.config)
    found = directory.verify(lambda _done, _total: None)
    assert found.is_sound
    assert found.records == 4


def test_storage_shows_only_committed_entries_after_a_restart(leader: Log, tmp_path: Path) -> None:
    leader.send(b"first")
    leader.commit(leader.storage.last)
    leader.send(b"second")
    leader.store.flush()
    leader.store.dispatch_all()
    assert bodies(leader) == [b"first"]
    leader.crash()
    again = Log(tmp_path / "n0")
    assert again.storage.last == 3
    assert bodies(again) == [b"first"]
    again.commit(3)
    assert bodies(again) == [b"first", b"second"]


def test_storage_truncates_a_tail_that_the_new_leader_lacks(leader: Log, tmp_path: Path) -> None:
    leader.send(b"kept")
    leader.clock.advance(ms=7)  # a barrier has the time of the entry before it, which is this one
    leader.send(b"lost" * 100)
    leader.send(b"lost too")
    other = Log(tmp_path / "n1", member="n1")
    other.storage.write(leader.entries(1, 2))
    other.storage.write([barrier(3, term=2)])
    other.lead()
    other.send(b"instead", term=2)
    leader.storage.write(other.entries(3))
    assert leader.bytes() == other.bytes()
    assert leader.storage.terms.last_term == 2
    leader.commit(4)
    assert bodies(leader) == [b"kept", b"instead"]
    leader.close()
    again = Log(tmp_path / "n0")
    assert again.bytes() == other.bytes()
    assert again.storage.saved(HardState()).terms == ((1, 1), (3, 2))


def test_storage_does_not_rewrite_entries_it_has(leader: Log) -> None:
    leader.send(b"a")
    leader.send(b"b")
    before, end = leader.bytes(), leader.store.log.end
    assert leader.storage.write(leader.entries(2)) == end
    assert leader.bytes() == before


def test_storage_rejects_a_chunk_for_another_offset(leader: Log, tmp_path: Path) -> None:
    (data,) = leader.send(b"a")
    leader.send(b"b")
    follower = Log(tmp_path / "n1", member="n1")
    follower.storage.write([barrier(1)])
    wrong = leader.entries(3)[0]._replace(index=LogIndex(2))
    with pytest.raises(ValueError, match="is for"):
        follower.storage.write([wrong])
    torn = Entry(LogIndex(2), Term(1), Kind.CHUNK, data[:-3])
    with pytest.raises(ValueError, match="invalid chunk for"):
        follower.storage.write([torn])
    assert follower.storage.last == 1


@pytest.mark.parametrize("missing", [1, 100, HEADER_BYTES, HEADER_BYTES + 30])
def test_storage_truncates_an_incomplete_entry(leader: Log, tmp_path: Path, missing: int) -> None:
    """A crash leaves the header, and not all of its records."""
    leader.send(b"whole")
    end = leader.store.log.end
    leader.send(b"a" * 50, b"b" * 50)
    torn = leader.store.log.end - missing
    leader.crash()
    path = tmp_path / "n0/commitlog" / f"{0:020d}"
    data = bytearray(path.read_bytes())
    data[torn:] = bytes(len(data) - torn)
    path.write_bytes(data)
    again = Log(tmp_path / "n0")
    assert again.storage.last == 2
    assert again.store.log.end == end


def test_storage_restores_members_after_a_crash(leader: Log, tmp_path: Path) -> None:
    leader.storage.write([members(2, "n0", "n1")])
    leader.send(b"a")
    leader.storage.write([members(4, "n0", "n1", "n3")])
    leader.crash()
    again = Log(tmp_path / "n0")
    rows = again.storage.members.rows()
    assert [index for index, _ in rows] == [0, 2, 4]
    assert rows[-1][1] == members_of(["n0", "n1", "n3"])
    again.storage.cut(LogIndex(4))
    assert again.storage.members.current == members_of(["n0", "n1"])


def test_storage_with_expired_files_restores_start_and_members(leader: Log, tmp_path: Path) -> None:
    leader.storage.write([members(2, "n0", "n1")])
    for _ in range(60):
        leader.send(b"z" * 300)
    leader.commit(leader.storage.last)
    leader.store.checkpoint()
    leader.clock.advance(hours=2)
    assert leader.store.clean(by_hand=True, wait=True) > 0
    index = leader.storage.trim()
    assert index > 2
    assert leader.storage.entries(LogIndex(index + 1), LogIndex(index + 1), 0)[0].index == index + 1
    assert leader.storage.members.rows() == ((2, members_of(["n0", "n1"])),)
    leader.crash()
    again = Log(tmp_path / "n0")
    assert again.storage.terms.start == Start(index, Term(1))
    assert again.storage.members.rows() == ((2, members_of(["n0", "n1"])),)


def test_storage_restarts_where_the_log_of_the_leader_starts(leader: Log, tmp_path: Path) -> None:
    old = queue_key("old", 0)
    leader.send(b"a", b"b", b"c", key=old)
    for _ in range(60):
        leader.send(b"z" * 300)
    leader.commit(leader.storage.last)
    leader.store.checkpoint()
    leader.clock.advance(hours=2)
    leader.store.clean(by_hand=True, wait=True)
    start = LogIndex(leader.storage.trim())
    follower = Log(tmp_path / "n1", member="n1")
    follower.storage.write([barrier(1), barrier(2)])
    follower.storage.begin(
        Begin(Start(start, Term(1)), members_of(["n0", "n1"]), leader.storage.mark())
    )
    follower.storage.write(leader.entries(start + 1))
    assert follower.bytes() == leader.bytes()
    assert follower.store.log.min_offset == leader.store.log.min_offset > FILE_BYTES
    follower.crash()
    again = Log(tmp_path / "n1")
    assert again.bytes() == leader.bytes()
    assert again.storage.members.current == members_of(["n0", "n1"])
    again.lead()
    again.send(b"d", key=old)
    again.commit(again.storage.last)
    queue = again.store.queues.get(old)
    assert queue is not None
    assert queue.end == 4, "ranks of expired messages are not given again"


def test_storage_damage_cuts_everything_after_it(leader: Log, tmp_path: Path) -> None:
    for body in (b"one", b"two", b"three"):
        leader.send(body)
    place = leader.storage.end_of(LogIndex(2))
    storage = RaftStorage(leader.store, leader.files, sound_end=place)
    assert storage.last == 2
    assert leader.store.log.end == place


@pytest.mark.parametrize("flipped", [1500, 1560, 1640, 1700, 2000])
def test_storage_repaired_after_damage_shows_every_message(
    leader: Log, tmp_path: Path, flipped: int
) -> None:
    """A damaged message leaves a mark in its queue, which must go when the log is cut before it."""
    for number in range(30):
        leader.send(b"m%d" % number * 5, key=queue_key("orders", number % 3))
    leader.commit(leader.storage.last)
    follower = Log(tmp_path / "n1", member="n1")
    follower.storage.write(leader.entries())
    follower.commit(follower.storage.last)
    follower.crash()
    path = tmp_path / "n1/commitlog" / f"{0:020d}"
    data = bytearray(path.read_bytes())
    data[flipped] ^= 0x10
    path.write_bytes(data)
    again = Log(tmp_path / "n1", member="n1")
    (damage,) = again.store.recovered.damage
    again.storage = RaftStorage(again.store, again.files, sound_end=PhysicalOffset(damage.start))
    assert again.storage.last < leader.storage.last
    again.visible = again.store.log.end
    again.storage.write(leader.entries(again.storage.last + 1))
    again.commit(again.storage.last)
    assert again.bytes() == leader.bytes()
    for queue in leader.store.queues:
        found = again.store.queues.get(queue.key)
        assert found is not None
        assert (found.end, found.read(0, 10)) == (queue.end, queue.read(0, 10))
    again.close()
    directory = Directory(RealFiles(), str(tmp_path / "n1"), leader.store.config)
    assert directory.verify(lambda _done, _total: None).is_sound
    directory.close()


def follower_of(leader: Log, root: Path, committed: int | None = None) -> None:
    """A member that has everything, and stopped in order."""
    follower = Log(root, member="n1")
    follower.storage.write(leader.entries())
    follower.commit(follower.storage.last if committed is None else committed)
    follower.close()


def opened(root: Path, leader: Log) -> Opened:
    settings = RaftSettings(
        raft_enabled=True, raft_group="g", raft_id="n1", raft_peers="n0=h:1;n1=h:2;n2=h:3"
    )
    return open_member(settings, CalmFiles(), str(root), leader.store.config, clock=leader.clock)


@pytest.mark.parametrize("committed", [3, 6])
def test_member_that_lost_acknowledged_entries_is_in_doubt(
    leader: Log, tmp_path: Path, committed: int
) -> None:
    """After a clean stop nothing is scanned, but the headers of entries are read. The member need
    not know that the lost entries were committed: others may have counted them."""
    for number in range(5):
        leader.send(b"m%d" % number)
    leader.commit(leader.storage.last)
    root = tmp_path / "n1"
    follower_of(leader, root, committed)
    sound = opened(root, leader)
    assert sound.state.doubt == 0
    place = sound.storage.end_of(LogIndex(3))
    sound.files.close()
    sound.store.close()
    path = root / "commitlog" / f"{0:020d}"
    data = bytearray(path.read_bytes())
    data[place + 60] ^= 1
    path.write_bytes(data)
    damaged = opened(root, leader)
    assert damaged.storage.last == 3
    assert damaged.state.doubt != 0
    damaged.files.close()
    damaged.store.close()
    # It remembers that, though its log looks sound now.
    assert opened(root, leader).state.doubt != 0


def test_member_that_lost_its_whole_log_is_in_doubt(leader: Log, tmp_path: Path) -> None:
    leader.send(b"one")
    leader.commit(leader.storage.last)
    root = tmp_path / "n1"
    follower_of(leader, root)
    for name in ("commitlog", "consumequeue", "checkpoint"):
        place = root / name
        shutil.rmtree(place) if place.is_dir() else place.unlink()
    assert opened(root, leader).state.doubt != 0


@pytest.mark.parametrize(
    "mark", [b"", b"{}", b"[1]", b"[1,[[2,3]]]", b'[1,[["t",0,"x"]]]', b"[" * 100_000, b"\xff"]
)
def test_mark_that_cannot_be_decoded_is_a_protocol_error(mark: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match="mark of a log"):
        raft_entry.decode_mark(mark)
