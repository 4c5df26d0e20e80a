"""A store without a group becomes a member: nothing moves, and other members get the same bytes."""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path

import pytest
from raft_logs import FILE_BYTES, KEY, CalmFiles, Log, barrier, chunk

from tianzhou.base.errors import UsageError
from tianzhou.base.kinds import PhysicalOffset, QueueKey, QueueOffset, queue_key
from tianzhou.raft.membership import members_of
from tianzhou.raft.messages import Entry, Kind, LogIndex, Start, Term
from tianzhou.raft.ready import Begin
from tianzhou.record.message import decode_all
from tianzhou.replication import raft_member
from tianzhou.replication.raft_member import (
    Converted,
    Tell,
    convert,
    follow,
    open_member,
    read_rows,
)
from tianzhou.replication.raft_prefix import digest_of
from tianzhou.replication.raft_settings import RaftSettings
from tianzhou.replication.raft_state import RaftFiles, membership_of
from tianzhou.replication.raft_storage import Opened, RaftStorage
from tianzhou.store.config import FlushMode, StoreConfig
from tianzhou.store.errors import StoreDamaged
from tianzhou.store.files import Files
from tianzhou.store.read import ReadLimit
from tianzhou.store.store import MessageStore
from tianzhou.testing.sim.clock import ManualClock
from tianzhou.testing.sim.disk import SimDisk
from tianzhou.testing.sim.disk_images import CrashPoint, build, plans

TABLES = queue_key("tables", 0)
SETTINGS = RaftSettings(raft_group="g", raft_id="n0", raft_peers="n0=127.0.0.1:1")
SECOND = RaftSettings(raft_group="g", raft_id="n1", raft_peers="n0=127.0.0.1:1;n1=127.0.0.1:2")
CONFIG = StoreConfig(
    commit_log_file_bytes=FILE_BYTES,
    consume_queue_file_bytes=200,
    commit_log_preallocate_bytes=FILE_BYTES,
    index_slots=8,
    index_entries=40,
    retention_hours=1,
    retention_at_hours=(),
    flush_mode=FlushMode.SYNC,
)
IMAGES = 4
TERM = 3


@contextmanager
def small_entries() -> Generator[None]:
    """Several entries in each of the small files."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(raft_member, "ENTRY_BYTES", 900)
        yield


def plain(root: Path | str, disk: Files | None = None) -> MessageStore:
    return MessageStore(disk or CalmFiles(), str(root), CONFIG, ManualClock())


def fill(
    store: MessageStore, count: int = 40, *, first: int = 0, letter: bytes = b"x"
) -> list[bytes]:
    numbers = range(first, first + count)
    sent = [b"%d-" % number + letter * (number * 37 % 500) for number in numbers]
    for body in sent:
        store.append(chunk(body))
    return sent


def to_raft(store: MessageStore, tell: Tell = lambda _done, _all: None) -> Converted:
    tables = chunk(b"all tables", key=TABLES)
    with small_entries():
        return convert(store, SETTINGS, term=TERM, tables=tables, tell=tell)


def as_copy(store: MessageStore, first: Path) -> Converted:
    rows = read_rows(CalmFiles(), str(first / "raft/plain"))
    with small_entries():
        return follow(store, SECOND, rows, tell=lambda _done, _all: None)


def member(
    root: Path | str, disk: Files | None = None, settings: RaftSettings = SETTINGS
) -> Opened:
    return open_member(settings, disk or CalmFiles(), str(root), CONFIG, clock=ManualClock())


def all_bytes(store: MessageStore) -> bytes:
    log = store.log
    data = b"".join(segment.read(0, log.file_bytes) for segment in log.segments)
    return data[: log.end - log.min_offset]


def bodies(store: MessageStore, key: QueueKey = KEY) -> list[bytes]:
    start = QueueOffset(store.min_offset(key))
    with store.read(key, start, ReadLimit(1000, 1 << 20)) as found:
        return [view.body for span in found.spans for view in decode_all(span)]


def entries(storage: RaftStorage) -> list[Entry]:
    first = LogIndex(storage.terms.start.index + 1)
    return list(storage.entries(first, storage.last, 1 << 30))


def close(opened: Opened) -> None:
    opened.files.close()
    opened.store.close()


@pytest.fixture
def converted(tmp_path: Path) -> tuple[Path, list[bytes]]:
    """The directory of a first member, and what it has."""
    store = plain(tmp_path / "n0")
    sent = fill(store)
    to_raft(store)
    store.close()
    return tmp_path / "n0", sent


def test_conversion_keeps_the_bytes_and_offsets_of_the_log(tmp_path: Path) -> None:
    store = plain(tmp_path)
    sent = fill(store)
    before = all_bytes(store)
    done = to_raft(store)
    assert (done.start, done.end) == (0, len(before))
    store.close()
    opened = member(tmp_path)
    assert all_bytes(opened.store)[: len(before)] == before
    assert bodies(opened.store) == sent
    assert bodies(opened.store, TABLES) == [b"all tables"]
    assert opened.storage.terms.start == Start(LogIndex(1), Term(TERM))
    assert opened.storage.last == done.entries + 2
    assert not opened.state.doubt
    assert (opened.state.term, opened.state.vote) == (TERM, "n0")
    assert opened.storage.members.current.voters == {"n0"}
    kinds = [entry.kind for entry in entries(opened.storage)]
    assert kinds == [Kind.PLAIN] * done.entries + [Kind.CHUNK]
    assert len(kinds) > 20
    close(opened)


def test_conversion_gives_an_empty_member_the_same_bytes(
    converted: tuple[Path, list[bytes]], tmp_path: Path
) -> None:
    """In parts, with a start in between that has to find where it was."""
    root, sent = converted
    first = member(root)
    mark = Begin(first.storage.terms.start, members_of(["n0"]), first.storage.mark())
    other = Log(tmp_path / "n1", member="n1")
    other.storage.begin(mark)
    wanted = entries(first.storage)
    for start in range(0, len(wanted), 7):
        other.storage.write(wanted[start : start + 7])
        other.store.flush()
        other.close()
        other = Log(tmp_path / "n1", member="n1")
        assert other.storage.last == wanted[min(start + 7, len(wanted)) - 1].index
    other.commit(other.storage.last)
    assert all_bytes(other.store) == all_bytes(first.store)
    assert bodies(other.store) == sent
    assert entries(other.storage) == wanted
    behind = barrier(first.storage.last + 1, term=TERM + 1)
    first.storage.write([behind])
    other.storage.write([behind])
    assert all_bytes(other.store) == all_bytes(first.store)
    close(first)
    other.close()


def test_conversion_of_an_old_log_tells_members_where_it_starts(tmp_path: Path) -> None:
    """Its first files have expired, and with them the first messages of the queue."""
    store = plain(tmp_path / "n0")
    sent = fill(store)
    store.close()
    for name in sorted(path.name for path in (tmp_path / "n0/commitlog").iterdir())[:2]:
        (tmp_path / "n0/commitlog" / name).unlink()
    store = plain(tmp_path / "n0")
    left = bodies(store)
    assert 0 < len(left) < len(sent)
    done = to_raft(store)
    assert done.start == 2 * FILE_BYTES
    store.close()
    first = member(tmp_path / "n0")
    other = Log(tmp_path / "n1", member="n1")
    start = first.storage.terms.start
    other.storage.begin(Begin(start, members_of(["n0"]), first.storage.mark()))
    other.storage.write(entries(first.storage))
    other.commit(other.storage.last)
    assert bodies(other.store) == left
    assert other.store.max_offset(KEY) == len(sent)
    close(first)
    other.close()


def test_conversion_of_an_empty_log_starts_a_group(tmp_path: Path) -> None:
    store = plain(tmp_path)
    store.append(chunk(b"only"))
    to_raft(store)
    store.close()
    opened = member(tmp_path)
    assert bodies(opened.store) == [b"only"]
    close(opened)


def test_conversion_continues_where_it_was_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker ran again in between, and wrote more."""
    monkeypatch.setattr(raft_member, "_SYNC_ROWS", 1)
    store = plain(tmp_path)
    sent = fill(store)
    seen: list[int] = []

    def interrupt(done: int, _all: int) -> None:
        seen.append(done)
        if len(seen) == 20:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        to_raft(store, interrupt)
    store.close()
    assert membership_of(str(tmp_path), CalmFiles()) is None
    store = plain(tmp_path)
    sent += fill(store, 20, first=40)
    again: list[int] = []
    to_raft(store, lambda done, _all: again.append(done))
    store.close()
    assert again[0] > seen[10], "it did not start from the beginning"
    opened = member(tmp_path)
    assert bodies(opened.store) == sent
    close(opened)


def test_conversion_lists_a_log_again_that_was_truncated() -> None:
    """What an earlier attempt listed is not in the log any more: a master truncated its slave."""
    disk = SimDisk()
    store = plain("d", disk)
    fill(store)

    def interrupt(done: int, whole: int) -> None:
        if done > whole * 3 // 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        to_raft(store, interrupt)
    store.truncate(PhysicalOffset(FILE_BYTES))
    store.dispatch_all()
    store.begin_writing()
    kept = bodies(store)
    other = fill(store, 40 - len(kept), first=len(kept), letter=b"y")
    to_raft(store)
    for row in read_rows(disk, "d/raft/plain"):
        data = store.log.read(row.place, row.size)
        assert data is not None
        assert digest_of(data) == row.digest
    store.close()
    opened = member("d", disk)
    assert bodies(opened.store) == kept + other
    close(opened)


def test_conversion_rejects_a_damaged_log(tmp_path: Path) -> None:
    store = plain(tmp_path)
    fill(store)
    store.close()
    path = tmp_path / "commitlog" / f"{FILE_BYTES:020d}"
    data = bytearray(path.read_bytes())
    data[300] ^= 1
    path.write_bytes(data)
    store = plain(tmp_path)
    with pytest.raises(StoreDamaged, match="store import"):
        to_raft(store)
    store.close()
    assert membership_of(str(tmp_path), CalmFiles()) is None


def test_conversion_of_a_copy_keeps_what_equals_the_first_member(tmp_path: Path) -> None:
    """The copy ends earlier; the leader then sends the rest only."""
    store = plain(tmp_path / "n0")
    sent = fill(store, 30)
    copy = plain(tmp_path / "n1")
    copy.append_raw(PhysicalOffset(0), all_bytes(store))
    copy.flush()
    sent += fill(store, 10, first=30)
    to_raft(store)
    store.close()
    before = copy.log.end
    done = as_copy(copy, tmp_path / "n0")
    copy.close()
    assert done.end + done.dropped_bytes == before
    assert done.dropped_bytes < 2000
    first, second = member(tmp_path / "n0"), member(tmp_path / "n1", settings=SECOND)
    assert second.state.doubt, "it has a vote only when the group has repaired it"
    assert second.storage.last == done.entries + 1
    second.storage.write(entries(first.storage)[done.entries :])
    assert all_bytes(second.store) == all_bytes(first.store)
    second.store.flush()
    second.store.limit_visible(None)
    second.store.dispatch_all()
    assert bodies(second.store) == sent
    close(first)
    close(second)


def test_conversion_of_a_log_that_is_not_a_copy_is_rejected() -> None:
    disk = SimDisk()
    store = plain("n0", disk)
    fill(store)
    to_raft(store)
    store.close()
    other = plain("n1", disk)
    fill(other, letter=b"y")
    before = all_bytes(other)
    rows = read_rows(disk, "n0/raft/plain")
    with pytest.raises(UsageError, match="differs from that of the first member between 0 and"):
        follow(other, SECOND, rows, tell=lambda _done, _all: None)
    assert all_bytes(other) == before
    other.close()
    assert membership_of("n1", disk) is None


def test_conversion_of_a_copy_with_more_messages_is_rejected(tmp_path: Path) -> None:
    store = plain(tmp_path / "n0")
    fill(store)
    copy = plain(tmp_path / "n1")
    copy.append_raw(PhysicalOffset(0), all_bytes(store))
    copy.flush()
    copy.dispatch_all()
    copy.begin_writing()
    fill(copy, 3)
    to_raft(store)
    store.close()
    with pytest.raises(UsageError, match="the log continues after"):
        as_copy(copy, tmp_path / "n0")
    copy.close()


def test_conversion_of_a_copy_needs_the_list_of_the_first_member(
    converted: tuple[Path, list[bytes]], tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match="is not the file raft/plain"):
        read_rows(CalmFiles(), str(converted[0] / "raft/state"))
    empty = plain(tmp_path / "n1")
    with pytest.raises(UsageError, match="empty directory"):
        as_copy(empty, converted[0])
    empty.close()


def test_member_rejects_an_entry_for_another_offset(
    converted: tuple[Path, list[bytes]], tmp_path: Path
) -> None:
    first = member(converted[0])
    other = Log(tmp_path / "n1", member="n1")
    other.storage.begin(Begin(first.storage.terms.start, members_of(["n0"]), first.storage.mark()))
    wanted = entries(first.storage)
    skipped = wanted[1]._replace(index=wanted[0].index)
    with pytest.raises(ValueError, match="the log ends at 0"):
        other.storage.write([skipped])
    torn = wanted[0]._replace(data=wanted[0].data[:-5])
    with pytest.raises(ValueError, match="invalid chunk"):
        other.storage.write([torn])
    empty = wanted[0]._replace(data=b"")
    with pytest.raises(ValueError, match="has no records"):
        other.storage.write([empty])
    close(first)
    other.close()


# Power loss at every call


def at_every_call(
    root: str, prepare: Callable[[SimDisk], MessageStore], act: Callable[[MessageStore], object]
) -> list[CrashPoint]:
    disk = SimDisk()
    store = prepare(disk)
    points: list[CrashPoint] = []
    disk.on_call = lambda: points.append(disk.crash_point())
    act(store)
    disk.on_call = None
    points.append(disk.crash_point())
    return points


@pytest.mark.slow
def test_conversion_crash_leaves_the_old_broker_or_the_member() -> None:
    """Whatever the crash left: without a group it starts as before, and the same command finishes
    the work; as a member it has everything."""
    sent: list[bytes] = []

    def prepare(disk: SimDisk) -> MessageStore:
        store = plain("d", disk)
        sent.extend(fill(store, 24))
        store.flush()
        store.dispatch_all()
        return store

    points = at_every_call("d", prepare, to_raft)
    outcomes = set[bool]()
    for point in points:
        for plan in islice(plans(point, f"{point.call}"), IMAGES):
            disk = SimDisk(build(point, plan))
            is_member = membership_of("d", disk) is not None
            outcomes.add(is_member)
            if not is_member:
                store = plain("d", disk)
                assert bodies(store) == sent
                to_raft(store)
                store.close()
            opened = member("d", disk)
            assert not opened.state.doubt, point.call
            opened.store.flush()  # it is visible once the member has committed it again
            opened.store.dispatch_all()
            assert bodies(opened.store) == sent
            assert bodies(opened.store, TABLES)[-1:] == [b"all tables"]
            assert entries(opened.storage)[-1].kind is Kind.CHUNK
    assert outcomes == {False, True}
    assert len(points) > 30


@pytest.mark.slow
def test_joining_crash_leaves_a_log_that_the_leader_can_continue() -> None:
    """A member that receives the old records loses power at any call."""
    source = SimDisk()
    store = plain("n0", source)
    fill(store, 16)
    to_raft(store)
    store.close()
    first = member("n0", source)
    wanted = entries(first.storage)
    begin = Begin(first.storage.terms.start, members_of(["n0"]), first.storage.mark())
    disk = SimDisk()
    other = Log("n1", files=disk, member="n1")
    points: list[tuple[CrashPoint, int]] = []
    durable = 0
    disk.on_call = lambda: points.append((disk.crash_point(), durable))
    other.storage.begin(begin)
    for start in range(0, len(wanted), 3):
        other.storage.write(wanted[start : start + 3])
        other.store.flush()
        durable = other.storage.last
    disk.on_call = None
    for point, acked in points:
        for plan in islice(plans(point, f"{point.call}"), IMAGES):
            again = Log("n1", files=SimDisk(build(point, plan)), member="n1")
            storage = again.storage
            assert storage.last >= acked, point.call
            if storage.terms.start != begin.start:
                storage.begin(begin)
            storage.write(wanted)
            assert entries(storage) == wanted
            again.store.flush()
            assert all_bytes(again.store) == all_bytes(first.store)


def test_draft_of_a_member_is_not_a_member(tmp_path: Path) -> None:
    store = plain(tmp_path)
    fill(store, 3)
    store.close()
    with pytest.raises(UsageError, match="store to-raft"):
        member(tmp_path)
    assert RaftFiles(CalmFiles(), str(tmp_path)).is_new
