"""The fast way against the loop, on the cases it must notice. `tests/property/test_derive.py` does
the same with anything."""

from typing import Any

import pytest

from tianzhou.base.java import key_hash, string_hash
from tianzhou.base.kinds import PhysicalOffset, QueueKey, queue_key
from tianzhou.record import flags
from tianzhou.record.chunk import Entry, build, stamp
from tianzhou.store import derive as module
from tianzhou.store.consume_queue import UNIT
from tianzhou.store.derive import Derived, derive_by_shape, derive_plainly
from tianzhou.wire.names import SCHEDULE_TOPIC

NOW = 1_700_000_000_000
KEY = queue_key("orders", 3)
DELAYS_MS = (1000, 5000)
COUNT = 24


def entries(*properties: bytes, key: QueueKey = KEY, count: int = COUNT) -> list[Entry]:
    """As many records, with these properties in turn."""
    return [Entry(key, b"x", properties[rank % len(properties)]) for rank in range(count)]


def both(given: list[Entry]) -> tuple[Derived, Derived]:
    chunk = build(given, store_host=bytes(8), record_crc=True)
    ranks = list(range(len(given)))
    stamp(chunk, 0, len(chunk), queue_offsets=ranks, physical_offset=0, store_timestamp=NOW)
    ways = (derive_by_shape, derive_plainly)
    fast, plain = (
        way(chunk.data, chunk.starts, len(chunk.data), base=PhysicalOffset(0), delays_ms=DELAYS_MS)
        for way in ways
    )
    return fast, plain


def agreed(given: list[Entry]) -> Derived:
    fast, plain = both(given)
    assert sorted(fast.runs) == sorted(plain.runs)
    for name in ("key_hashes", "key_offsets", "key_timestamps"):
        assert list(getattr(fast, name)) == list(getattr(plain, name)), name
    assert fast.last_timestamp == plain.last_timestamp
    return plain


@pytest.fixture
def one_by_one(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The starts of the records that go through the loop after all."""
    seen: list[int] = []
    original: Any = module.__dict__["_one_by_one"]

    def counted(buffer: bytes, columns: Any, row: int, delays_ms: tuple[int, ...]) -> None:
        seen.append(int(columns.at[row]))
        original(buffer, columns, row, delays_ms)

    monkeypatch.setattr(module, "_one_by_one", counted)
    monkeypatch.setattr(module, "_last_shapes", {})
    return seen


def test_derive_columns_handles_records_of_one_shape_together(one_by_one: list[int]) -> None:
    given = [
        Entry(KEY, b"x" * rank, b"TAGS\x01t%02d\x02KEYS\x01k%02d\x02" % (rank, rank))
        for rank in range(COUNT)
    ]
    derived = agreed(given)
    codes = [code for _, _, code in UNIT.iter_unpack(derived.runs[0].units)]
    assert codes == [string_hash(f"t{rank:02d}") for rank in range(COUNT)]
    assert list(derived.key_hashes) == [key_hash(f"orders#k{rank:02d}") for rank in range(COUNT)]
    assert one_by_one == []


def test_derive_columns_handles_several_shapes_and_topics(one_by_one: list[int]) -> None:
    given = entries(b"TAGS\x01a\x02", b"KEYS\x01b\x02", b"")
    given += entries(b"TAGS\x01a\x02", key=queue_key("payments", 0))
    agreed(given)
    assert one_by_one == []


def test_derive_columns_falls_back_for_a_rare_shape(one_by_one: list[int]) -> None:
    agreed([*entries(b"TAGS\x01a\x02"), *entries(b"TAGS\x01longer\x02", count=2)])
    assert len(one_by_one) == 2


@pytest.mark.parametrize(
    "entry",
    [
        Entry(KEY, b"", sys_flag=flags.TRANSACTION_PREPARED, properties=b"KEYS\x01k\x02"),
        Entry(KEY, b"", sys_flag=flags.TRANSACTION_ROLLBACK, properties=b"KEYS\x01k\x02"),
        Entry(KEY, b"", sys_flag=flags.TRANSACTION_COMMIT, properties=b"KEYS\x01k\x02"),
        Entry(KEY, b"", sys_flag=flags.BORN_HOST_V6, born_host=bytes(20)),
        Entry(queue_key("t" * 200, 0), b"", b"TAGS\x01a\x02"),
        Entry(queue_key(SCHEDULE_TOPIC, 1), b"", b"DELAY\x012\x02"),
        Entry(queue_key("ördérs", 1), b"", b"KEYS\x01a\x02"),
        Entry(KEY, b"", b"KEYS\x01" + b"k" * 300 + b"\x02"),
        Entry(KEY, b"", b"TAGS\x01a\x02TAGS\x01b\x02"),
    ],
    ids=[
        "half",
        "rolled-back",
        "committed",
        "v6",
        "long-topic",
        "delayed",
        "foreign",
        "long",
        "twice",
    ],
)
def test_derive_columns_falls_back_for_unsupported_records(
    entry: Entry, one_by_one: list[int]
) -> None:
    agreed([entry] * COUNT)
    assert len(one_by_one) == COUNT
    agreed([entry if rank % 3 else Entry(KEY, b"") for rank in range(3 * COUNT)])


@pytest.mark.parametrize(
    ("leader", "odd"),
    [
        (b"TAGS\x01abcd\x02", b"TAGS\x01\xe5\xbc\xa0x\x02"),  # not ASCII: Java counts otherwise
        (b"KEYS\x01abcd\x02", b"KEYS\x01ab d\x02"),  # a space: two keys
        (b"KEYS\x01ab d\x02", b"KEYS\x01abcd\x02"),  # and the other way round
        (b"KEYS\x01abcd\x02", b"KEYS\x01a\x02bc\x02"),  # a separator within the value
        (b"KEYS\x01abcd\x02", b"KEYS\x01a\x01cd\x02"),
        (b"TAGS\x01abcd\x02", b"TAGZ\x01abcd\x02"),  # another name of the same length
        (b"KEYS\x01a\x02Z\x01b\x02", b"KEYS\x01ab\x02Z\x01\x02"),
        (b"UNIQ_KEY\x01ab\x02", b"UNIQ_KEY\x01a\x02\x02"),
    ],
)
@pytest.mark.parametrize("at", [0, 5])
def test_derive_columns_notices_a_record_of_another_shape(
    leader: bytes, odd: bytes, at: int, one_by_one: list[int]
) -> None:
    assert len(leader) == len(odd)
    given = entries(leader)
    given[at] = Entry(KEY, b"x", odd)
    agreed(given)
    if at:
        assert len(one_by_one) == 1, "only the odd one goes through the loop"


def test_derive_columns_allows_any_value_outside_tags_and_keys(one_by_one: list[int]) -> None:
    agreed(entries(b"NAME\x01abc\x02TAGS\x01t\x02", b"NAME\x01\xe5\xbc\xa0\x02TAGS\x01u\x02"))
    assert one_by_one == []


def test_derive_columns_keeps_the_order_of_keys_and_records() -> None:
    given = entries(b"KEYS\x01a b\x02UNIQ_KEY\x01u\x02", b"KEYS\x01c\x02")
    derived = agreed(given)
    names = ["u", "a", "b", "c"] * (COUNT // 2)
    assert list(derived.key_hashes) == [key_hash(f"orders#{name}") for name in names]


def test_derive_columns_smallest_hash_counts_as_0() -> None:
    """No `topic#key` with this hash is known by heart; one is searched for here."""
    topic = "T"
    begun = string_hash(f"{topic}#")
    wanted = (-(1 << 31) - begun * pow(31, 8, 1 << 32)) % (1 << 32)
    key = _text_with_hash(wanted)
    assert string_hash(f"{topic}#{key}") == -(1 << 31)
    derived = agreed(entries(b"KEYS\x01%b\x02" % key.encode(), key=queue_key(topic, 0)))
    assert set(derived.key_hashes) == {0}


def _text_with_hash(wanted: int) -> str:
    """Eight characters from 48 to 122 whose Java hash is this, modulo 2**32."""
    lowest = sum(48 * 31**place for place in range(8))
    rest = (wanted - lowest) % (1 << 32)
    while True:
        digits: list[int] = []
        left = rest
        for place in range(7, -1, -1):
            digit = min(left // 31**place, 74)
            digits.append(digit)
            left -= digit * 31**place
        if left == 0:
            return "".join(chr(48 + digit) for digit in digits)
        rest += 1 << 32


def test_derive_columns_remembers_shapes_up_to_a_limit(
    one_by_one: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_SHAPES_MAX", 2)
    for size in range(1, 6):
        agreed(entries(b"TAGS\x01" + b"t" * size + b"\x02"))
        assert len(module._last_shapes) <= 2
    assert one_by_one == []


def test_derive_columns_replaces_an_outdated_shape(one_by_one: list[int]) -> None:
    agreed(entries(b"TAGS\x01abc\x02"))
    agreed(entries(b"KEYS\x01abc\x02"))
    agreed(entries(b"TAGS\x01abc\x02"))
    assert one_by_one == []
