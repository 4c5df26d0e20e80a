import struct

import pytest

from tianzhou.base.kinds import queue_key
from tianzhou.record.chunk import Entry, RecordChunk, build, stamp
from tianzhou.record.layout import MAGIC_BLANK, MAGIC_V1
from tianzhou.record.walk import Stop, first_unsound, is_sound, is_well_formed, walk


def chunk(count: int, *, base: int = 0) -> RecordChunk:
    entries = [Entry(queue_key("orders", 1), b"body %d" % n) for n in range(count)]
    made = build(entries, store_host=bytes(8), record_crc=True)
    stamp(made, 0, count, queue_offsets=range(count), physical_offset=base, store_timestamp=1)
    return made


@pytest.mark.parametrize(
    ("behind", "stop"),
    [
        (b"", Stop.END),
        (bytes(3), Stop.END),
        (bytes(50), Stop.END),
        (b"\0\0\1", Stop.TORN),
        (struct.pack(">ii", 50, MAGIC_BLANK) + bytes(42), Stop.BLANK),
        (struct.pack(">ii", 200, MAGIC_V1) + bytes(42), Stop.TORN),
        (struct.pack(">ii", 90, MAGIC_V1) + bytes(200), Stop.DAMAGED),
        (struct.pack(">ii", -1, MAGIC_V1) + bytes(200), Stop.DAMAGED),
        (struct.pack(">ii", 2**31 - 1, MAGIC_V1) + bytes(200), Stop.DAMAGED),
        (struct.pack(">ii", 100, 1) + bytes(200), Stop.DAMAGED),
        (struct.pack(">ii", 100, 0) + bytes(200), Stop.DAMAGED),
    ],
)
def test_walk_reports_why_it_stopped(behind: bytes, stop: Stop) -> None:
    made = chunk(3)
    found = walk(made.data + behind, 0, len(made.data) + len(behind))
    assert (found.starts, found.end, found.stop) == (made.starts, len(made.data), stop)


def test_walk_stays_within_its_bounds() -> None:
    made = chunk(4)
    found = walk(made.data, made.starts[1], made.ends[2])
    assert (found.starts, found.end, found.stop) == (made.starts[1:3], made.ends[2], Stop.END)
    found = walk(made.data, 0, made.ends[2] - 1)
    assert (found.starts, found.stop) == (made.starts[:2], Stop.TORN)
    assert walk(made.data, 0, len(made.data), count_max=2).stop is Stop.LIMIT
    assert walk(made.data, 0, 0).stop is Stop.END


@pytest.mark.parametrize("count", [1, 5, 60])
def test_first_unsound_returns_the_rank_of_the_first_invalid_record(count: int) -> None:
    made = chunk(count, base=4096)
    end = len(made.data)
    assert first_unsound(made.data, made.starts, end, base=4096) is None
    assert first_unsound(made.data, made.starts, end, base=0) == 0, "it stands elsewhere"
    for rank in {count - 1, count // 2}:
        damaged = bytearray(made.data)
        damaged[made.starts[rank] + 90] ^= 4
        assert first_unsound(damaged, made.starts, end, base=4096) == rank
    assert first_unsound(made.data, [], 0, base=4096) is None


def test_is_sound_of_too_few_bytes_is_false() -> None:
    made = chunk(1)
    assert is_sound(made.data, 0, len(made.data), base=0)
    assert not is_sound(made.data, 0, 90, base=0)
    assert not is_sound(made.data, 0, len(made.data) - 1, base=0)


@pytest.mark.parametrize("field", [12, 20])
def test_is_sound_of_a_negative_queue_id_or_offset_is_false(field: int) -> None:
    made = chunk(1)
    made.data[field] |= 0x80
    plain = build([Entry(queue_key("orders", -1), b"")], store_host=bytes(8), record_crc=False)
    assert not is_sound(made.data, 0, len(made.data), base=0)
    assert not is_sound(plain.data, 0, len(plain.data), base=0)


@pytest.mark.parametrize("count", [3, 60])
@pytest.mark.parametrize("claim", [0x10, 0x20, 0x30])
def test_record_with_a_wrong_flag_is_sound_but_not_well_formed(count: int, claim: int) -> None:
    made = chunk(count)
    made.data[made.starts[1] + 39] |= claim
    stamp(made, 0, count, queue_offsets=range(count), physical_offset=0, store_timestamp=1)
    starts, end = made.starts, len(made.data)
    assert first_unsound(made.data, starts, end, base=0) is None
    assert first_unsound(made.data, starts, end, base=0, well_formed=True) == 1
    assert not is_well_formed(made.data, starts[1], made.ends[1])
    assert is_well_formed(made.data, starts[0], made.ends[0])


@pytest.mark.parametrize(("at", "value"), [(0, 5), (4, 5), (84, -1), (84, 1 << 30), (84, 7)])
def test_record_with_a_wrong_length_is_not_well_formed(at: int, value: int) -> None:
    made = chunk(1)
    struct.pack_into(">i", made.data, at, value)
    assert not is_well_formed(made.data, 0, len(made.data))
