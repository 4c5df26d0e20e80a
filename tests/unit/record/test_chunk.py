import pytest

from tianzhou.base import limits
from tianzhou.base.kinds import queue_key
from tianzhou.record import flags
from tianzhou.record.chunk import Entry, build, crc_digits, stamp
from tianzhou.record.crc import crc32
from tianzhou.record.errors import RecordTooLarge
from tianzhou.record.ids import encode_host
from tianzhou.record.layout import CRC_PROPERTY_BYTES, MAGIC_V1, MAGIC_V2, RECORD_BYTES_MIN
from tianzhou.record.message import MessageView

KEY = queue_key("orders", 1)
HOST = bytes(8)
HOSTS = (HOST, bytes(range(16)) + b"\x00\x00\x2a\x9f")


def record(entry: Entry, *, crc: bool = True) -> bytes:
    chunk = build([entry], store_host=HOST, record_crc=crc)
    stamp(chunk, 0, 1, queue_offsets=[3], physical_offset=100, store_timestamp=7)
    return bytes(chunk.data)


def magic_of(data: bytes) -> int:
    return int.from_bytes(data[4:8], "big", signed=True)


def test_build_without_entries_gives_an_empty_chunk() -> None:
    chunk = build([], store_host=HOST, record_crc=True)
    assert (len(chunk), chunk.data, chunk.starts, chunk.ends) == (0, b"", [], [])


def test_build_of_an_empty_message_has_the_minimum_size() -> None:
    data = record(Entry(queue_key("", 0), b""), crc=False)
    assert len(data) == RECORD_BYTES_MIN == 91


def test_build_puts_the_checksum_last_and_covers_the_rest() -> None:
    data = record(Entry(KEY, b"body", b"TAGS\x01a\x02"))
    digits = crc_digits(crc32(data[:-CRC_PROPERTY_BYTES]))
    assert data.endswith(b"TAGS\x01a\x02__CRC32#\x01" + digits + b"\x02")
    assert crc_digits(12) == b"2100000000", "least significant digit first"
    assert crc_digits(0xFFFFFFFF) == b"7463847412", "31 bits"


def test_build_adds_a_missing_separator_before_the_checksum() -> None:
    data = record(Entry(KEY, b"", b"TAGS\x01a"))
    assert MessageView(data).properties == {"TAGS": "a"}


def test_build_replaces_an_existing_checksum() -> None:
    once = MessageView(record(Entry(KEY, b"", b"TAGS\x01a\x02"))).stored_properties
    twice = record(Entry(KEY, b"", once))
    assert twice.count(b"__CRC32#") == 1
    assert MessageView(twice).tags == "a"
    # Without a checksum of our own the old one would prove the record damaged.
    assert b"__CRC32#" not in record(Entry(KEY, b"", once), crc=False)


@pytest.mark.parametrize("crc", [True, False])
@pytest.mark.parametrize("claim", [0, flags.BORN_HOST_V6, flags.STORE_HOST_V6, flags.LAYOUT_MASK])
@pytest.mark.parametrize("born", HOSTS, ids=len)
@pytest.mark.parametrize("store", HOSTS, ids=len)
@pytest.mark.parametrize("count", [1, 60])
def test_build_derives_layout_bits_from_the_hosts(
    crc: bool, claim: int, born: bytes, store: bytes, count: int
) -> None:
    entry = Entry(KEY, b"body", sys_flag=claim | flags.COMPRESSED, born_host=born)
    chunk = build([entry] * count, store_host=store, record_crc=crc)
    stamp(chunk, 0, count, queue_offsets=range(count), physical_offset=0, store_timestamp=7)
    wanted = flags.COMPRESSED
    wanted |= flags.BORN_HOST_V6 if len(born) == 20 else 0
    wanted |= flags.STORE_HOST_V6 if len(store) == 20 else 0
    for start in chunk.starts:
        view = MessageView(chunk.data, start)
        assert (view.sys_flag, view.stored_body, view.store_timestamp) == (wanted, b"body", 7)
        assert encode_host(view.born_host) == born
        assert encode_host(view.store_host) == store


def test_build_with_a_host_of_another_length_fails() -> None:
    with pytest.raises(AssertionError, match="a host of 12 bytes"):
        build([Entry(KEY, b"", born_host=bytes(12))], store_host=HOST, record_crc=True)


def test_build_chooses_the_version_by_topic_length() -> None:
    assert magic_of(record(Entry(queue_key("t" * 127, 0), b""))) == MAGIC_V1
    assert magic_of(record(Entry(queue_key("t" * 128, 0), b""))) == MAGIC_V2
    assert MessageView(record(Entry(queue_key("题" * 100, 0), b""))).topic == "题" * 100


def test_build_of_invisible_records_assigns_no_queue() -> None:
    kinds = (0, flags.TRANSACTION_PREPARED, flags.TRANSACTION_COMMIT, flags.TRANSACTION_ROLLBACK)
    entries = [Entry(KEY, b"", sys_flag=kind) for kind in kinds]
    chunk = build(entries, store_host=HOST, record_crc=True)
    assert chunk.queues == [KEY, None, KEY, None]


def test_build_of_a_too_large_record_reports_size_and_limit() -> None:
    with pytest.raises(RecordTooLarge, match="4259840"):
        record(Entry(KEY, bytes(limits.RECORD_BYTES_MAX)))
    with pytest.raises(RecordTooLarge, match="32767"):
        record(Entry(KEY, b"", b"x" * limits.PROPERTIES_BYTES_MAX))
    with pytest.raises(RecordTooLarge, match="topic name has 32768"):
        record(Entry(queue_key("t" * 32768, 0), b""))
    assert record(Entry(KEY, b"", b"x" * limits.PROPERTIES_BYTES_MAX), crc=False)


def test_fitting_counts_the_records_within_a_size() -> None:
    chunk = build([Entry(KEY, b"x")] * 5, store_host=HOST, record_crc=True)
    size = chunk.ends[0]
    assert chunk.fitting(0, 5 * size) == 5
    assert chunk.fitting(0, 5 * size - 1) == 4
    assert chunk.fitting(3, 2 * size) == 5
    assert chunk.fitting(3, size) == 4
    assert chunk.fitting(3, size - 1) == 3
    assert chunk.fitting(0, 0) == 0


def test_stamp_changes_only_the_given_records() -> None:
    chunk = build([Entry(KEY, b"x")] * 4, store_host=HOST, record_crc=True)
    before = bytes(chunk.data)
    stamp(chunk, 1, 3, queue_offsets=[8, 9], physical_offset=4096, store_timestamp=5)
    views = [MessageView(chunk.data, start) for start in chunk.starts]
    assert [view.queue_offset for view in views] == [0, 8, 9, 0]
    assert views[1].physical_offset == 4096
    assert views[2].physical_offset == 4096 + views[1].total_size
    assert chunk.data[: chunk.starts[1]] == before[: chunk.starts[1]]
    assert chunk.data[chunk.starts[3] :] == before[chunk.starts[3] :]
