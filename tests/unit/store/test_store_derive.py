import pytest

from tianzhou.base.java import key_hash, string_hash
from tianzhou.base.kinds import PhysicalOffset, QueueKey, queue_key
from tianzhou.record import flags
from tianzhou.record.chunk import Entry, RecordChunk, build, stamp
from tianzhou.store import derive as module
from tianzhou.store.consume_queue import UNIT
from tianzhou.store.derive import (
    Derived,
    Facts,
    derive,
    derive_by_shape,
    derive_plainly,
    facts_of,
    store_time_of,
)
from tianzhou.wire.names import SCHEDULE_TOPIC

NOW = 1_700_000_000_000
BASE = PhysicalOffset(1 << 33)
A, B = queue_key("a", 0), queue_key("b", 7)


def made(entries: list[Entry], ranks: list[int]) -> RecordChunk:
    chunk = build(entries, store_host=bytes(8), record_crc=True)
    stamp(chunk, 0, len(chunk), queue_offsets=ranks, physical_offset=BASE, store_timestamp=NOW)
    return chunk


def rows(derived: Derived) -> dict[tuple[QueueKey, int], list[tuple[int, int, int]]]:
    return {(run.queue, run.first): [*UNIT.iter_unpack(run.units)] for run in derived.runs}


def of(chunk: RecordChunk) -> Derived:
    return derive(chunk.data, chunk.starts, len(chunk.data), base=BASE, delays_ms=())


# The same from the loop (below 16 records) and from the matrices: `times` repeats each case.
@pytest.mark.parametrize("times", [1, 20])
def test_derive_units_have_offset_size_and_tag_hash(times: int) -> None:
    tagged = Entry(A, b"body", b"TAGS\x01red\x02")
    chunk = made([tagged] * times + [Entry(B, b"")], [*range(times), 5])
    where = [BASE + start for start in chunk.starts]
    size = chunk.ends[0]
    assert rows(of(chunk)) == {
        (A, 0): [(at, size, string_hash("red")) for at in where[:-1]],
        (B, 5): [(where[-1], len(chunk.data) - chunk.starts[-1], 0)],
    }


@pytest.mark.parametrize("times", [1, 20])
def test_derive_missing_queue_offset_starts_a_new_run(times: int) -> None:
    ranks = [3, 4, 6, 7, *range(8, 7 + times)]
    found = rows(of(made([Entry(A, b"x")] * len(ranks), ranks)))
    assert {first: len(units) for (_, first), units in found.items()} == {3: 2, 6: 1 + times}


@pytest.mark.parametrize("times", [1, 20])
def test_derive_alternating_queues_have_one_run_each(times: int) -> None:
    ranks = [rank for rank in range(2 * times) for _ in range(2)]
    found = rows(of(made([Entry(A, b"x"), Entry(B, b"y")] * 2 * times, ranks)))
    assert {key: len(units) for key, units in found.items()} == {
        (A, 0): 2 * times,
        (B, 0): 2 * times,
    }


@pytest.mark.parametrize("times", [1, 20])
def test_derive_keys_are_in_log_order_with_offset_and_time(times: int) -> None:
    entry = Entry(A, b"", b"KEYS\x01k1 k2\x02UNIQ_KEY\x01u\x02")
    chunk = made([entry] * times, list(range(times)))
    derived = of(chunk)
    hashes = [key_hash(f"a#{key}") for key in ("u", "k1", "k2")]
    assert list(derived.key_hashes) == hashes * times
    assert list(derived.key_offsets) == [BASE + at for at in chunk.starts for _ in range(3)]
    assert list(derived.key_timestamps) == [NOW] * 3 * times


@pytest.mark.parametrize("times", [1, 20])
def test_derive_half_messages_have_keys_but_no_units(times: int) -> None:
    half = Entry(A, b"", b"KEYS\x01k\x02", sys_flag=flags.TRANSACTION_PREPARED)
    derived = of(made([half] * times, [0] * times))
    assert derived.runs == []
    assert len(derived.key_hashes) == times
    assert derived.last_timestamp == NOW


def test_derive_last_time_is_that_of_the_last_record() -> None:
    chunk = made([Entry(A, b"x"), Entry(A, b"y")], [0, 1])
    stamp(
        chunk,
        1,
        2,
        queue_offsets=[1],
        physical_offset=BASE + chunk.starts[1],
        store_timestamp=NOW + 5,
    )
    assert of(chunk).last_timestamp == NOW + 5


@pytest.mark.parametrize(("count", "way"), [(15, "derive_plainly"), (16, "derive_by_shape")])
def test_derive_uses_the_loop_for_few_records_and_numpy_for_many(
    count: int, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    chunk = made([Entry(A, b"x")] * count, list(range(count)))
    expected = of(chunk)
    other = {"derive_plainly": derive_by_shape, "derive_by_shape": derive_plainly}[way]
    monkeypatch.delattr(module, other.__name__)
    assert rows(of(chunk)) == rows(expected)


# One record

DELAYS = (1000, 5000, 10_000)


def facts(entry: Entry, delays: tuple[int, ...] = DELAYS) -> Facts:
    chunk = build([entry], store_host=bytes(8), record_crc=True)
    stamp(chunk, 0, 1, queue_offsets=[7], physical_offset=0, store_timestamp=NOW)
    assert store_time_of(chunk.data, 0) == NOW
    return facts_of(chunk.data, 0, len(chunk.data), delays)


def delayed(text: bytes, delays: tuple[int, ...] = DELAYS) -> int:
    properties = b"TAGS\x01t\x02DELAY\x01" + text + b"\x02"
    return facts(Entry(queue_key(SCHEDULE_TOPIC, 1), b"", properties), delays).tags_code


def test_derive_record_delayed_message_has_its_delivery_time() -> None:
    assert delayed(b"1") == NOW + 1000
    assert delayed(b"3") == NOW + 10_000
    assert delayed(b"99") == NOW + 10_000, "a level too high is the highest"


def test_derive_record_invalid_delay_level_keeps_the_tag_hash() -> None:
    for text in (b"0", b"-1", b"x", "٣".encode(), b"9" * 5000):
        assert delayed(text) == string_hash("t")
    assert delayed(b"1", ()) == string_hash("t")


def test_derive_record_of_transactions_follows_their_state() -> None:
    def entry(kind: int) -> Entry:
        return Entry(queue_key("orders", 2), b"", b"UNIQ_KEY\x01u\x02", sys_flag=kind)

    prepared = facts(entry(flags.TRANSACTION_PREPARED))
    assert (prepared.queue, len(prepared.key_hashes)) == (None, 1)
    committed = facts(entry(flags.TRANSACTION_COMMIT))
    assert (committed.queue, len(committed.key_hashes)) == (("orders", 2), 1)
    rolled_back = facts(entry(flags.TRANSACTION_ROLLBACK))
    assert (rolled_back.queue, len(rolled_back.key_hashes)) == (None, 0)


def test_derive_record_skips_long_hosts_and_topics() -> None:
    entry = Entry(
        queue_key("t" * 200, 3),
        b"body",
        b"TAGS\x01x\x02",
        sys_flag=flags.BORN_HOST_V6,
        born_host=bytes(20),
    )
    found = facts(entry)
    assert found.queue == ("t" * 200, 3)
    assert (found.queue_offset, found.tags_code) == (7, string_hash("x"))
    assert found.store_timestamp == NOW


def test_derive_record_without_keys_omits_only_key_hashes() -> None:
    made = build(
        [Entry(queue_key("orders", 0), b"body", b"TAGS\x01red\x02KEYS\x01order-1\x02")],
        store_host=bytes(8),
        record_crc=True,
    )
    whole = facts_of(made.data, 0, len(made.data), ())
    assert whole.key_hashes
    found = facts_of(made.data, 0, len(made.data), (), with_keys=False)
    assert found == whole._replace(key_hashes=[])


@pytest.mark.parametrize(
    "key", ["a", "k" * 254, "k" * 255, "k" * 256, "k" * 300, "北京", "\U0001f680-lifts"]
)
def test_derive_key_hash_is_that_of_topic_and_key(key: str) -> None:
    entry = Entry(A, b"", f"KEYS\x01{key}\x02".encode())
    assert facts(entry).key_hashes == [key_hash(f"a#{key}")]
