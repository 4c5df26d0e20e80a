"""The record of replayed dead letters."""

from typing import cast

from tianzhou.client.core.replays import (
    ReplayedLetters,
    ReplayRecord,
    ReplayRun,
    decode_entry,
    encode_entry,
)
from tianzhou.record.message import MessageView


class Letter:
    """A dead letter by its place and time."""

    def __init__(self, queue_offset: int, *, store_timestamp: int = 100, queue_id: int = 0) -> None:
        self.queue_offset = queue_offset
        self.queue_id = queue_id
        self.store_timestamp = store_timestamp


def letter(offset: int, *, stored_ms: int = 100, queue_id: int = 0) -> MessageView:
    return cast(MessageView, Letter(offset, store_timestamp=stored_ms, queue_id=queue_id))


def run_of(number: int, *, is_done: bool = False, where: str = "true") -> ReplayRun:
    return ReplayRun(str(number), "g", where, {}, "", {}, number, is_done)


def test_replay_entries_round_trip_and_other_bodies_are_ignored() -> None:
    entries = [ReplayedLetters("g", "a", 0, (1, 2), "id"), run_of(1)]
    assert [decode_entry(encode_entry(entry)) for entry in entries] == entries
    for body in (b"", b"{}", b'{"kind": "else"}', b"\xff", b'{"kind": "letters", "group": 1}'):
        assert decode_entry(body) is None


def test_replay_record_has_letters_below_the_floor_and_recorded_ones() -> None:
    record = ReplayRecord("g", floors={("a", 0): 2})
    record.add(ReplayedLetters("g", "a", 0, (4,)), 200)
    record.add(ReplayedLetters("other", "a", 0, (3,)), 200)
    assert [n for n in range(6) if record.has("a", letter(n))] == [0, 1, 4]
    assert not record.has("b", letter(0))
    assert not record.has("a", letter(4, queue_id=1))


def test_replay_record_has_ignores_entries_older_than_the_letter() -> None:
    record = ReplayRecord("g")
    record.add(ReplayedLetters("g", "a", 0, (4,)), 200)
    assert record.has("a", letter(4, stored_ms=200))
    assert not record.has("a", letter(4, stored_ms=201))


def test_replay_record_beyond_floor_counts_valid_entries_only() -> None:
    record = ReplayRecord("g", floors={("a", 0): 3})
    record.add(ReplayedLetters("g", "a", 0, (1, 4)), 200)
    record.add(ReplayedLetters("g", "a", 0, (4, 6)), 300)
    assert record.beyond_floor("a", 0, since_ms=0) == 2
    assert record.beyond_floor("a", 0, since_ms=301) == 0
    assert record.beyond_floor("a", 1, since_ms=0) == 0


def test_replay_record_unfinished_is_the_latest_open_run_of_a_request() -> None:
    record = ReplayRecord("g")
    for run in (run_of(1), run_of(2), run_of(3), run_of(3, is_done=True), run_of(4, where="x")):
        record.add(run, 100)
    found = record.unfinished(where="true", changes={}, topic="")
    assert found is not None
    assert found.id == "2"
    assert record.unfinished(where="true", changes={"body": "x"}, topic="") is None
    # The entries of several brokers are not in order: a finished run stays finished.
    record.add(run_of(3), 100)
    assert record.runs["3"].is_done
