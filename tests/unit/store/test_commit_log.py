from pathlib import Path

import pytest
from small_store import FILE_BYTES, chunk

from tianzhou.record.layout import BLANK, MAGIC_BLANK
from tianzhou.record.message import MessageView
from tianzhou.store.commit_log import CommitLog
from tianzhou.store.files import RealFiles


@pytest.fixture
def log(tmp_path: Path) -> CommitLog:
    return CommitLog(
        RealFiles(), str(tmp_path / "commitlog"), file_bytes=FILE_BYTES, reserve_bytes=4096
    )


def append(log: CommitLog, *sizes: int) -> None:
    made = chunk(*(b"x" * size for size in sizes))
    log.append(made, queue_offsets=range(len(sizes)), now_ms=77)


def empty_size() -> int:
    return len(chunk(b"").data)


def test_commit_log_fills_a_file_up_to_the_end_marker(log: CommitLog) -> None:
    whole = FILE_BYTES - 8 - empty_size()
    append(log, whole)
    assert log.end == FILE_BYTES - 8
    append(log, 1)
    assert BLANK.unpack(log.segments[0].read(FILE_BYTES - 8, FILE_BYTES)) == (8, MAGIC_BLANK)
    assert log.end == FILE_BYTES + empty_size() + 1
    assert len(log.segments) == 2
    log.close()


def test_commit_log_chunk_may_span_several_files(log: CommitLog) -> None:
    append(log, *[1500] * 7)
    assert len(log.segments) == 4
    views = [
        MessageView(segment.read(0, FILE_BYTES), at)
        for segment in log.segments
        for at in (0, 1500 + empty_size())
        if segment.start + at < log.end
    ]
    assert [view.queue_offset for view in views] == list(range(7))
    assert {view.store_timestamp for view in views} == {77}
    log.close()


def test_commit_log_uses_the_file_created_in_advance(log: CommitLog, tmp_path: Path) -> None:
    append(log, 100)
    log.prepare_next()
    assert len(list((tmp_path / "commitlog").iterdir())) == 1, "the first is hardly used"
    append(log, 2500)
    log.prepare_next()
    log.prepare_next()
    assert len(list((tmp_path / "commitlog").iterdir())) == 2
    append(log, 2000)
    assert len(log.segments) == 2
    log.close()


def test_commit_log_view_beyond_the_end_is_rejected(log: CommitLog) -> None:
    append(log, *[1500] * 4)
    assert log.segment_at(-1) is None
    assert log.segment_at(log.end) is None
    assert log.read(0, 100) is not None
    assert log.read(log.end - 10, 11) is None
    log.remove_first()
    assert log.min_offset == FILE_BYTES
    assert log.read(0, 100) is None
    log.close()


def test_commit_log_keeps_the_written_and_the_read_file_open(log: CommitLog) -> None:
    append(log, 10)
    with pytest.raises(AssertionError, match="is being written"):
        log.remove_first()
    log.close()
