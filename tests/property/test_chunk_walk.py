"""Chunks and walks: the fast algorithms equal the simple ones, and no damage passes as a record."""

from collections.abc import Iterator

from hypothesis import assume, given, settings
from hypothesis import strategies as st
from record_entries import NOW_MS, STORE_HOSTS, chunks, entries, flip, int63, mixtures

from tianzhou.base.kinds import queue_key
from tianzhou.record import chunk as chunk_module
from tianzhou.record import flags, properties
from tianzhou.record.chunk import NUMPY_FROM, Entry, RecordChunk, build, stamp
from tianzhou.record.ids import decode_host
from tianzhou.record.layout import FIELDS, HEAD, position_of
from tianzhou.record.message import MessageView, decode_all
from tianzhou.record.walk import Stop, are_vouched_for, first_unsound, is_sound, walk

hosts = st.sampled_from(STORE_HOSTS)


def same_bytes(one: RecordChunk, other: RecordChunk) -> None:
    assert one.data == other.data
    assert (one.starts, one.ends, one.queues) == (other.starts, other.ends, other.queues)


@settings(deadline=None)
@given(mixtures(), hosts, st.booleans())
def test_building_many_messages_equals_building_each(
    rows: list[Entry], host: bytes, crc: bool
) -> None:
    chunk = build(rows, store_host=host, record_crc=crc)
    singles = [build([row], store_host=host, record_crc=crc) for row in rows]
    assert chunk.data == b"".join(single.data for single in singles)
    assert chunk.queues == [queue for single in singles for queue in single.queues]
    assert chunk.starts == [0, *chunk.ends][: len(rows)]
    assert len(chunk.data) == (chunk.ends[-1] if rows else 0)


@settings(deadline=None)
@given(entries(), hosts, st.booleans())
def test_built_messages_are_read_back_unchanged(entry: Entry, host: bytes, crc: bool) -> None:
    view = MessageView(build([entry], store_host=host, record_crc=crc).data)
    assert (view.topic, view.queue_id) == entry.queue
    assert view.stored_body == entry.body
    assert view.flag == entry.flag
    assert view.sys_flag & ~flags.STORE_HOST_V6 == entry.sys_flag
    assert view.born_timestamp == entry.born_timestamp
    assert view.born_host == decode_host(entry.born_host)
    assert view.store_host == decode_host(host)
    assert view.reconsume_times == entry.reconsume_times
    assert view.prepared_offset == entry.prepared_offset
    # The checksum of a retried message is replaced by a new one.
    wanted = properties.decode(entry.properties)
    wanted.pop("__CRC32#", None)
    assert view.properties == wanted
    view.verify()


@settings(deadline=None)
@given(mixtures(count_min=2 * NUMPY_FROM), hosts, st.booleans(), int63.map(lambda n: n >> 4))
def test_stamping_many_records_equals_stamping_few(
    rows: list[Entry], host: bytes, crc: bool, base: int
) -> None:
    few = build(rows, store_host=host, record_crc=crc)
    many = build(rows, store_host=host, record_crc=crc)
    first = len(rows) // 3
    offsets = list(range(7, 7 + len(rows) - first))
    chunk_module._stamp_few(few, (first, len(rows)), offsets, base=base, now_ms=NOW_MS)
    stamp(
        many,
        first,
        len(rows),
        queue_offsets=offsets,
        physical_offset=base + many.starts[first],
        store_timestamp=NOW_MS,
    )
    same_bytes(few, many)


@settings(deadline=None)
@given(mixtures(count_min=1), st.booleans(), int63.map(lambda n: n >> 4))
def test_stamped_chunk_is_valid_at_its_offset(rows: list[Entry], crc: bool, base: int) -> None:
    # Without a checksum at the end, a text that ends in zeros looks torn, and one that ends like a
    # checksum is checked against it: the price of finding every flip in records that have one.
    ends = [row.properties[-1:] == b"\0" or b"__CRC32#" in row.properties for row in rows]
    assume(crc or not any(ends))
    chunk = build(rows, store_host=STORE_HOSTS[0], record_crc=crc)
    offsets = list(range(len(rows)))
    stamp(chunk, 0, len(rows), queue_offsets=offsets, physical_offset=base, store_timestamp=5)
    found = walk(chunk.data, 0, len(chunk.data))
    assert (found.starts, found.end, found.stop) == (chunk.starts, len(chunk.data), Stop.END)
    assert first_unsound(chunk.data, found.starts, found.end, base=base) is None
    assert first_unsound(chunk.data, found.starts, found.end, base=base + 1) == 0
    views = list(decode_all(chunk.data))
    assert [view.queue_offset for view in views] == offsets
    assert [view.physical_offset for view in views] == [base + start for start in chunk.starts]
    assert {view.store_timestamp for view in views} == {5}


@settings(deadline=None, max_examples=200)
@given(chunks(count_min=NUMPY_FROM), st.data())
def test_fast_check_equals_the_simple_check(chunk: RecordChunk, data: st.DataObject) -> None:
    bits = st.integers(0, len(chunk.data) * 8 - 1)
    buffer = bytearray(chunk.data)
    for bit in data.draw(st.lists(bits, max_size=4)):
        buffer = flip(buffer, bit)
    ends = [*chunk.starts[1:], len(buffer)]
    plain = [
        rank
        for rank, (start, end) in enumerate(zip(chunk.starts, ends, strict=True))
        if not is_sound(buffer, start, end, base=0)
    ]
    found = first_unsound(buffer, chunk.starts, len(buffer), base=0)
    assert found == (plain[0] if plain else None)
    is_vouched = are_vouched_for(buffer, chunk.starts, ends, places=chunk.starts)
    assert is_vouched == (chunk.has_crc and not plain)
    elsewhere = [start + 1 for start in chunk.starts]
    assert not are_vouched_for(buffer, chunk.starts, ends, places=elsewhere)


@settings(deadline=None)
@given(chunks(), st.integers(0, 200), st.data())
def test_walk_stops_at_a_limit_and_resumes_from_there(
    chunk: RecordChunk, count: int, data: st.DataObject
) -> None:
    end = len(chunk.data)
    first = walk(chunk.data, 0, end, count_max=count)
    assert first.starts == chunk.starts[:count]
    assert first.stop is (Stop.LIMIT if count < len(chunk) else Stop.END)
    rest = walk(chunk.data, first.end, end)
    assert first.starts + rest.starts == chunk.starts


@given(st.binary(max_size=300))
def test_walk_accepts_any_bytes(data: bytes) -> None:
    found = walk(data, 0, len(data))
    assert 0 <= found.end <= len(data)
    first_unsound(data, found.starts, found.end, base=0)


def one_record(*, record_crc: bool) -> bytes:
    """About 300 bytes, with something in every field."""
    entry = Entry(
        queue_key("golden_orders", 3),
        b"B" * 90,
        b"TAGS\x01beijing\x02KEYS\x01T1 T2\x02UNIQ_KEY\x01" + b"0A" * 16 + b"\x02",
        7,
        0,
        NOW_MS,
        bytes(range(8)),
        2,
        12345,
    )
    chunk = build([entry], store_host=STORE_HOSTS[0], record_crc=record_crc)
    stamp(chunk, 0, 1, queue_offsets=[99], physical_offset=4096, store_timestamp=NOW_MS)
    return bytes(chunk.data)


def is_taken(buffer: bytes | bytearray) -> bool:
    """Whether a start would accept these bytes as the original record."""
    found = walk(buffer, 0, len(buffer))
    whole = found.starts == [0] and found.end == len(buffer)
    return whole and first_unsound(buffer, found.starts, found.end, base=4096) is None


def test_record_checksum_detects_every_flipped_bit() -> None:
    record = one_record(record_crc=True)
    assert is_taken(record)
    assert len(record) > 250
    passed = [bit for bit in range(len(record) * 8) if is_taken(flip(record, bit))]
    assert passed == []


def test_record_checksum_detects_every_pair_of_flips_in_itself() -> None:
    """Two flips in its name must not turn it into a record that never had a checksum."""
    record = one_record(record_crc=True)
    first = (len(record) - 20) * 8
    for one in range(first, first + 9 * 8):
        for two in range(one + 1, len(record) * 8):
            if is_taken(flip(flip(record, one), two)):
                # Then readers do not see the property either, and the checksum of the body applies.
                raise AssertionError(f"bits {one - first} and {two - first} pass")


def fields_of(record: bytes) -> Iterator[tuple[str, int]]:
    """Every bit of a record with IPv4 hosts, and its field."""
    view = MessageView(record)
    body_end = HEAD.size + len(view.stored_body)
    topic_end = body_end + 1 + len(view.topic)
    for bit in range(len(record) * 8):
        at = bit // 8
        if at < HEAD.size:
            name = [name for name, _ in FIELDS if position_of(name) <= at][-1]
        elif at < body_end:
            name = "body"
        elif at == body_end:
            name = "topic_size"
        elif at < topic_end:
            name = "topic"
        else:
            name = "properties_size" if at < topic_end + 2 else "properties"
        yield name, bit


def test_without_a_record_checksum_some_flips_are_undetected() -> None:
    """RocketMQ's own format protects lengths, place and body. The rest is why we write a checksum
    of the whole record unless configured otherwise."""
    record = one_record(record_crc=False)
    passed = {name for name, bit in fields_of(record) if is_taken(flip(record, bit))}
    assert passed == {
        "queue_id",
        "flag",
        "queue_offset",
        "sys_flag",
        "born_timestamp",
        "born_host",
        "store_timestamp",
        "store_host",
        "reconsume_times",
        "prepared_offset",
        "topic",
        "properties",
    }


def test_every_truncated_record_is_torn() -> None:
    for crc in (True, False):
        record = one_record(record_crc=crc)
        for size in range(len(record)):
            found = walk(record, 0, size)
            assert found.starts == []
            # The first two bytes of a length are zero, so it is not noticed before its third byte.
            assert found.stop is (Stop.TORN if any(record[:size]) else Stop.END)


def test_every_truncated_record_followed_by_zeros_is_rejected() -> None:
    """As after a crash: the length was written, the end of the record was not."""
    for record in (one_record(record_crc=True), one_record(record_crc=False), bare_record()):
        _check_truncations(record)


def bare_record() -> bytes:
    """A message without properties: its last bytes are those of the topic."""
    entry = Entry(queue_key("orders", 0), b"B" * 9)
    chunk = build([entry], store_host=STORE_HOSTS[0], record_crc=False)
    stamp(chunk, 0, 1, queue_offsets=[99], physical_offset=4096, store_timestamp=NOW_MS)
    return bytes(chunk.data)


def _check_truncations(record: bytes) -> None:
    for size in range(len(record.rstrip(b"\0"))):
        torn = record[:size].ljust(len(record) + 64, b"\0")
        found = walk(torn, 0, len(torn))
        if found.starts:
            assert first_unsound(torn, found.starts, found.end, base=4096) == 0
        else:
            assert found.stop in (Stop.END, Stop.DAMAGED, Stop.TORN)
            assert found.end == 0
