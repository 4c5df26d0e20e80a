"""Marks along the log: a start that goes by them knows what a walk over everything would find, and
marks that do not belong to the log of today are not believed."""

import errno
from pathlib import Path
from random import Random

import pytest
from raft_logs import MARKED, Log, barrier, members

from tianzhou.base.kinds import PhysicalOffset
from tianzhou.raft.messages import Kind, LogIndex, Term
from tianzhou.replication.raft_state import EXPIRED_MAX, MARK_BYTES, Mark, Marks, Spacing
from tianzhou.store.errors import StoreDamaged
from tianzhou.store.files import RealFiles
from tianzhou.testing.sim.disk import SimDisk

SEEDS = 30


def fill(log: Log, entries: int = 60) -> None:
    log.storage.write([barrier(1)])
    log.lead()
    for _ in range(entries):
        log.send(b"z" * 300)
    log.commit(log.storage.last)


def told(log: Log) -> tuple[object, ...]:
    storage = log.storage
    start = storage.terms.start.index
    return storage.terms.runs(), storage.members.rows(), log.entries(start + 1), log.bytes()


def reopened(root: Path, *, has_marks: bool = True) -> tuple[object, ...]:
    """What a start finds."""
    if not has_marks:
        (root / "raft/marks").write_bytes(b"")
    log = Log(root, spacing=MARKED)
    found = told(log)
    log.crash()
    return found


def test_start_reads_only_entries_after_the_last_mark(tmp_path: Path) -> None:
    log = Log(tmp_path, spacing=MARKED)
    fill(log)
    place = log.storage.end_of(LogIndex(3))
    log.close()
    path = min((tmp_path / "commitlog").iterdir())
    data = bytearray(path.read_bytes())
    data[place + 40] ^= 1  # in the header of the fourth entry
    path.write_bytes(data)
    again = Log(tmp_path, spacing=MARKED)
    assert again.storage.last == 61
    with pytest.raises(StoreDamaged, match="no entry of the group starts here"):
        again.entries(4, 4)
    again.crash()
    # What was written last is looked at anyhow: so much as was said.
    walked = Log(tmp_path, spacing=Spacing(step_bytes=500, walk_bytes=1 << 20))
    assert walked.storage.last == 3
    walked.crash()


@pytest.mark.parametrize("seed", range(SEEDS))
def test_marks_of_another_history_are_ignored(seed: int, tmp_path: Path) -> None:
    """Leaders change and truncate uncommitted entries; the file of marks then mixes states of
    different times, as after a power loss, or is damaged."""
    dice, pasts = Random(seed), list[bytes]()
    log, term, committed = Log(tmp_path, spacing=MARKED), 1, 1
    log.storage.write([barrier(1)])
    for _ in range(40):
        last = log.storage.last
        if dice.random() < 0.3:
            term += 1
            cut = dice.randrange(committed + 1, last + 2)
            log.storage.write([barrier(cut, term)])
        elif dice.random() < 0.1:
            names = dice.sample(["n0", "n1", "n2", "n3"], 3)
            log.storage.write([members(last + 1, *names, term=term)])
        else:
            log.storage.write([barrier(last + 1 + rank, term) for rank in range(8)])
        if dice.random() < 0.3:
            committed = dice.randrange(committed, log.storage.last + 1)
        pasts.append((tmp_path / "raft/marks").read_bytes())
    log.store.flush()
    log.crash()
    wanted = reopened(tmp_path, has_marks=False)
    newest = pasts[-1]
    assert len(newest) >= 4 * MARK_BYTES
    for _ in range(10):
        mixed = bytearray(max(pasts, key=len))
        for at in range(0, len(mixed), MARK_BYTES):
            piece = dice.choice([newest, newest, dice.choice(pasts)])[at : at + MARK_BYTES]
            mixed[at : at + len(piece)] = piece
        if dice.random() < 0.3:
            mixed[dice.randrange(len(mixed))] ^= 1 << dice.randrange(8)
        del mixed[dice.choice([len(mixed), dice.randrange(len(mixed))]) :]
        (tmp_path / "raft/marks").write_bytes(mixed)
        assert reopened(tmp_path) == wanted


def test_marks_continue_after_the_log_was_truncated(tmp_path: Path) -> None:
    log = Log(tmp_path, spacing=MARKED)
    log.storage.write([barrier(index) for index in range(1, 61)])
    log.storage.write([barrier(20, term=2)])
    log.storage.write([barrier(index, term=2) for index in range(21, 101)])
    marks = Marks(log.files.marks_file, MARKED.step_bytes).load()
    assert [one.index for one in marks if one.index <= 20][-1] == 20
    assert {one.term for one in marks if one.index >= 20} == {2}
    assert marks[-1].index > 95
    log.store.flush()
    log.crash()
    assert reopened(tmp_path) == reopened(tmp_path, has_marks=False)


def test_marks_of_a_log_with_expired_files_open_it_like_a_full_scan(tmp_path: Path) -> None:
    log = Log(tmp_path, spacing=MARKED)
    log.storage.write([barrier(1), members(2, "n0", "n1")])
    log.lead()
    for _ in range(60):
        log.send(b"z" * 300)
    log.commit(log.storage.last)
    log.store.checkpoint()
    log.clock.advance(hours=2)
    assert log.store.clean(by_hand=True, wait=True) > 0
    log.storage.trim()
    wanted = told(log)
    log.close()
    assert reopened(tmp_path) == wanted
    assert reopened(tmp_path, has_marks=False) == wanted


def mark(index: int, term: int = 1) -> Mark:
    return Mark(LogIndex(index), PhysicalOffset(index * 100), Term(term), Kind.BARRIER)


def test_marks_of_expired_entries_are_removed(tmp_path: Path) -> None:
    files, path = RealFiles(), str(tmp_path / "marks")
    marks = Marks(files.create(path, 0), step_bytes=1)
    rows = [mark(index) for index in range(1, EXPIRED_MAX + 10)]
    for row in rows:
        marks.note(row)
    marks.keep(rows[-5:], expired=len(rows) - 5)
    assert Marks(files.open(path), step_bytes=1).load() == rows[-5:]
    marks.note(mark(9_000, term=2))
    assert Marks(files.open(path), step_bytes=1).load() == [*rows[-5:], mark(9_000, term=2)]


def test_marks_on_a_full_disk_are_skipped() -> None:
    disk = SimDisk()
    file = disk.create("marks", 0)
    marks = Marks(file, step_bytes=1)
    marks.note(mark(1))
    disk.fail_at(1, errno.ENOSPC)
    marks.note(mark(2))
    disk.heal()
    marks.note(mark(3))
    # The third would say that there is nothing between it and the first.
    assert Marks(file, step_bytes=1).load() == [mark(1)]
