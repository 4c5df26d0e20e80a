"""Many records at once: the same bytes and the same verdicts as one by one."""

import numpy as np

from tianzhou.base.kinds import queue_key
from tianzhou.record import chunk as chunk_module
from tianzhou.record import columns
from tianzhou.record.chunk import Entry, RecordChunk, build
from tianzhou.record.layout import HEAD
from tianzhou.record.walk import is_sound

BASE, NOW_MS, COUNT = 4096, 1_700_000_000_000, 60


def unstamped() -> RecordChunk:
    entries = [
        Entry(queue_key("orders", rank % 3), b"x" * rank, b"KEYS\x01k%d\x02" % rank)
        for rank in range(1, COUNT + 1)
    ]
    return build(entries, store_host=bytes(8), record_crc=True)


def stamped() -> RecordChunk:
    made = unstamped()
    columns.stamp_many(made, (0, COUNT), range(7, 7 + COUNT), base=BASE, now_ms=NOW_MS)
    return made


def test_stamp_many_equals_stamp_few() -> None:
    plain = unstamped()
    chunk_module._stamp_few(plain, (0, COUNT), range(7, 7 + COUNT), base=BASE, now_ms=NOW_MS)
    assert stamped().data == plain.data


def test_stamp_many_changes_only_the_given_records() -> None:
    made, before = unstamped(), bytes(unstamped().data)
    columns.stamp_many(made, (10, 20), range(10), base=BASE, now_ms=NOW_MS)
    start, end = made.starts[10], made.ends[19]
    assert made.data[:start] == before[:start]
    assert made.data[end:] == before[end:]
    assert made.data[start:end] != before[start:end]


def test_suspects_of_valid_records_are_empty() -> None:
    made = stamped()
    assert columns.suspects(made.data, made.starts, len(made.data), BASE) == []


def test_suspects_include_every_damaged_record() -> None:
    made = stamped()
    for rank in (0, 17, COUNT - 1):
        start, end = made.starts[rank], made.ends[rank]
        for at in range(start, end, 7):
            made.data[at] ^= 0x10
            assert not is_sound(made.data, start, end, base=BASE)
            assert rank in columns.suspects(made.data, made.starts, len(made.data), BASE), at
            made.data[at] ^= 0x10


def test_gather_copies_record_heads() -> None:
    made = stamped()
    raw = np.frombuffer(made.data, np.uint8)
    heads = columns.gather(raw, np.array(made.starts), HEAD.size).view(columns.HEAD_DTYPE)
    assert heads["queue_offset"].tolist() == list(range(7, 7 + COUNT))
    assert heads["physical_offset"].tolist() == [BASE + start for start in made.starts]
    assert set(heads["store_timestamp"].tolist()) == {NOW_MS}
