"""Marks: how a retried task detects what an earlier attempt has written."""

from tianzhou.spark.idempotence import EarlierWrites, Task, digest_of

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
