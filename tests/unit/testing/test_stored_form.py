"""The independent checker accepts valid records and detects an error in every field."""

import struct

import pytest

from tianzhou.base.kinds import QueueKey, queue_key
from tianzhou.record import flags
from tianzhou.record.chunk import Entry, RecordChunk, build, stamp
from tianzhou.testing.stored_form import StoredFormError, check_chunk, read_record

BASE = 4096
TEXT = b"TAGS\x01red\x02KEYS\x01k1 k2\x02UNIQ_KEY\x01U\x02"
HOSTS = (bytes(6) + b"\x2a\x9f", bytes(18) + b"\x2a\x9f")


def chunk(*entries: Entry, crc: bool = True, store_host: bytes = HOSTS[0]) -> RecordChunk:
    made = build(entries, store_host=store_host, record_crc=crc)
    ranks = list(range(5, 5 + len(made)))
    stamp(made, 0, len(made), queue_offsets=ranks, physical_offset=BASE, store_timestamp=99)
    return made


def entry(**more: object) -> Entry:
    return Entry(queue_key("orders", 3), b"body", TEXT)._replace(**more)


@pytest.mark.parametrize("crc", [True, False])
@pytest.mark.parametrize("born", HOSTS)
@pytest.mark.parametrize("store", HOSTS)
@pytest.mark.parametrize("topic", ["orders", "t" * 128, "主题"])
def test_stored_form_check_accepts_every_layout(
    crc: bool, born: bytes, store: bytes, topic: str
) -> None:
    made = chunk(
        entry(born_host=born, queue=queue_key(topic, 3)),
        entry(sys_flag=4),
        crc=crc,
        store_host=store,
    )
    check_chunk(made.data, BASE, made.queues)
    one = read_record(bytes(made.data), 0, BASE)
    assert (one.topic, one.queue_id, one.queue_offset) == (topic, 3, 5)
    assert (one.tags, one.keys, one.store_timestamp) == ("red", ("U", "k1", "k2"), 99)
    assert one.is_visible


@pytest.mark.parametrize(
    ("at", "code", "value"),
    [
        (0, ">i", 90),
        (0, ">i", 100_000),
        (4, ">i", 1),
        (8, ">i", 5),
        (12, ">i", -1),
        (20, ">q", -1),
        (28, ">q", BASE + 1),
        (36, ">i", flags.BORN_HOST_V6),
        (36, ">i", flags.STORE_HOST_V6),
        (36, ">i", flags.LAYOUT_MASK),
        (52, ">i", 70_000),
        (84, ">i", -1),
        (84, ">i", 5),
        (84, ">i", 1 << 30),
        (92, ">b", -1),
        (92, ">b", 100),
    ],
)
@pytest.mark.parametrize("crc", [True, False])
def test_stored_form_check_rejects_a_wrong_field(at: int, code: str, value: int, crc: bool) -> None:
    made = chunk(entry(), crc=crc)
    struct.pack_into(code, made.data, at, value)
    with pytest.raises(StoredFormError):
        check_chunk(made.data, BASE, made.queues)


def test_stored_form_check_rejects_a_flipped_bit_under_the_checksum() -> None:
    made = chunk(entry())
    made.data[44] ^= 1
    with pytest.raises(StoredFormError, match="checksum of the whole"):
        check_chunk(made.data, BASE, made.queues)


def test_stored_form_check_rejects_a_chunk_that_ends_within_a_record() -> None:
    made = chunk(entry(), entry())
    with pytest.raises(StoredFormError):
        check_chunk(made.data[:-1], BASE, made.queues)


@pytest.mark.parametrize("queue", [queue_key("orders", 2), queue_key("other", 3), None])
def test_stored_form_check_rejects_a_record_in_another_queue(queue: QueueKey | None) -> None:
    with pytest.raises(StoredFormError, match="queues are"):
        check_chunk(chunk(entry()).data, BASE, [queue])
