"""Marks: how a retried task detects what an earlier attempt has written. And the file that says
where its search begins."""

import json
from pathlib import Path

import pytest

from tianzhou.spark.errors import SourceError
from tianzhou.spark.idempotence import (
    PROGRESS_FILE,
    EarlierWrites,
    SinkProgress,
    SinkProgressFile,
    Task,
    digest_of,
)
from tianzhou.wire.queues import MessageQueue

TASK = Task("q-1", 7, 2)


def mark(rank: int, digest: bytes) -> bytes:
    return b"%s%d:%s" % (TASK.prefix, rank, digest)


def test_idempotence_claims_earlier_writes_once_each() -> None:
    written = EarlierWrites(TASK)
    apple, pear = digest_of(b"apple", b""), digest_of(b"pear", b"")
    written.record(mark(0, apple))
    written.record(mark(3, apple))
    written.record(mark(3, apple))  # a duplicate in the topic
    assert not written.claim(pear)
    assert written.claim(apple)
    assert written.claim(apple)
    assert not written.claim(apple)


def test_idempotence_next_rank_skips_used_ranks() -> None:
    written = EarlierWrites(TASK)
    written.record(mark(0, b"x"))
    written.record(mark(2, b"y"))
    assert [written.next_rank() for _ in range(3)] == [1, 3, 4]


def test_idempotence_record_ignores_marks_of_other_tasks() -> None:
    written = EarlierWrites(TASK)
    for other in (Task("q-2", 7, 2), Task("q-1", 8, 2), Task("q-1", 7, 3)):
        written.record(b"%s0:x" % other.prefix)
    assert not written.claim(b"x")


def test_idempotence_digest_distinguishes_body_from_properties() -> None:
    made = {digest_of(b"ab", b"c"), digest_of(b"a", b"bc"), digest_of(b"ab", b"")}
    assert len(made) == 3


FIRST, SECOND = (
    MessageQueue(topic="paid", broker_name="broker-a", queue_id=queue_id) for queue_id in range(2)
)


def file_in(place: Path) -> SinkProgressFile:
    return SinkProgressFile(str(place))


def test_progress_keeps_the_start_of_an_open_micro_batch(tmp_path: Path) -> None:
    file = file_in(tmp_path)
    file.open(file.load(), {FIRST: 5}, {FIRST: 0})
    repeated = file.open(file.load(), {FIRST: 900, SECOND: 7}, {FIRST: 0, SECOND: 0})
    assert repeated.began == {FIRST: 5}
    assert not repeated.has_stored("q", 0)


def test_progress_begins_at_the_new_end_after_a_commit(tmp_path: Path) -> None:
    file = file_in(tmp_path)
    file.commit(file.open(file.load(), {FIRST: 5}, {}), "q", 0)
    following = file.open(file.load(), {FIRST: 900}, {})
    assert following.began == {FIRST: 900}
    assert following.has_stored("q", 0)
    assert not following.has_stored("q", 1)


def test_progress_accepts_the_path_that_hadoop_writes(tmp_path: Path) -> None:
    SinkProgressFile(f"file:{tmp_path}").open(SinkProgress(), {FIRST: 5}, {})
    assert SinkProgressFile(f"file://{tmp_path}").load().began == {FIRST: 5}


def test_progress_rejects_a_start_whose_messages_were_deleted(tmp_path: Path) -> None:
    file = file_in(tmp_path)
    progress = file.open(file.load(), {FIRST: 5}, {FIRST: 0})
    file.open(progress, {FIRST: 9}, {FIRST: 5})
    with pytest.raises(SourceError, match=r"offset 5 of queue 0 at broker-a.*up to offset 6"):
        file.open(progress, {FIRST: 9}, {FIRST: 6})
    with pytest.raises(SourceError, match="offset 0 of queue 1"):
        file.open(progress, {FIRST: 9}, {FIRST: 0, SECOND: 3})


def test_progress_rejects_a_lost_or_damaged_file(tmp_path: Path) -> None:
    file = file_in(tmp_path)
    (tmp_path / "commits").mkdir()
    assert file.load() == SinkProgress()
    (tmp_path / "commits" / "0").write_text("v1\n{}")
    with pytest.raises(SourceError, match=rf"{PROGRESS_FILE} is missing, although micro-batches"):
        file.load()
    for text in ("", "{", "[]", '{"committed": "x"}', '{"began": [1]}', '{"began": {"t": 1}}'):
        (tmp_path / PROGRESS_FILE).write_text(text)
        with pytest.raises(SourceError, match="is damaged, so it cannot be known"):
            file.load()
    (tmp_path / PROGRESS_FILE).write_text("{}")
    assert file.load() == SinkProgress()


def test_progress_rejects_a_checkpoint_that_was_set_back(tmp_path: Path) -> None:
    file = file_in(tmp_path)
    file.commit(SinkProgress(), "q", 7)
    progress = file.load()
    with pytest.raises(SourceError, match=r"micro-batch 6 runs again.*up to micro-batch 7"):
        progress.has_stored("q", 6)
    with pytest.raises(SourceError, match="belongs to query q, and this is query p"):
        progress.has_stored("p", 8)


def test_progress_is_json_that_an_operator_can_read(tmp_path: Path) -> None:
    file_in(tmp_path).open(SinkProgress("q", 3), {FIRST: 5}, {})
    assert json.loads((tmp_path / PROGRESS_FILE).read_text()) == {
        "query": "q",
        "committed": 3,
        "began": {"paid": {"broker-a": {"0": 5}}},
    }
