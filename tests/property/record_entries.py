"""Strategies: messages of every shape that a producer, a Java broker or a bug may produce."""

import struct
from typing import Final

from hypothesis import strategies as st

from tianzhou.base.kinds import queue_key
from tianzhou.record import flags
from tianzhou.record.chunk import Entry, RecordChunk, build, stamp

TOPICS: Final = (
    "orders",
    "o",
    "SCHEDULE_TOPIC_XXXX",
    "%RETRY%group",
    "主题",
    "t" * 127,
    "t" * 128,
    "u" * 255,
)
KINDS: Final = (
    0,
    0,
    0,
    flags.COMPRESSED,
    flags.MULTI_TAGS,
    flags.INNER_BATCH,
    flags.TRANSACTION_PREPARED,
    flags.TRANSACTION_COMMIT,
    flags.TRANSACTION_ROLLBACK,
)
STORE_HOSTS: Final = (bytes.fromhex("7F00000100009FCF"), bytes(range(16)) + bytes(4))
NOW_MS: Final = 1_700_000_000_000

int32 = st.integers(-(1 << 31), (1 << 31) - 1)
int63 = st.integers(0, (1 << 63) - 1)

_pieces = st.sampled_from(
    [
        b"\x01",
        b"\x02",
        b"TAGS",
        b"KEYS",
        b"UNIQ_KEY",
        b"DELAY",
        b"\x02TAGS\x01",
        b"\x02KEYS\x01",
        b" ",
        b"  ",
        b"a",
        b"\t",
        b"\0",
        b"\xff",
        "键".encode(),
        "😀".encode(),
        b"12",
        b"__CRC32#\x01",
    ]
)
odd_properties = st.lists(_pieces, max_size=12).map(b"".join)

_text = st.text(st.sampled_from("abcK9 é键😀\t"), min_size=1, max_size=8).map(str.encode)
_names = st.sampled_from([b"TAGS", b"KEYS", b"UNIQ_KEY", b"DELAY", b"TAGS2", b"x", "名".encode()])
_values = st.one_of(_text, st.integers(0, 40).map(lambda n: b"%d" % n))
usual_properties = st.lists(st.tuples(_names, _values), max_size=5).map(
    lambda pairs: b"".join(name + b"\x01" + value + b"\x02" for name, value in pairs)
)


@st.composite
def entries(draw: st.DrawFn) -> Entry:
    """One message with arbitrary contents."""
    sys_flag = draw(st.sampled_from(KINDS)) | draw(st.sampled_from([0, 0, flags.BORN_HOST_V6]))
    host_size = 20 if sys_flag & flags.BORN_HOST_V6 else 8
    return Entry(
        queue_key(draw(st.sampled_from(TOPICS)), draw(st.integers(0, 3))),
        draw(st.binary(max_size=20)),
        draw(st.one_of(usual_properties, odd_properties)),
        draw(int32),
        sys_flag,
        draw(int63),
        draw(st.binary(min_size=host_size, max_size=host_size)),
        draw(int32),
        draw(int63),
    )


@st.composite
def families(draw: st.DrawFn) -> list[Entry]:
    """Messages that differ only in their values, like those of one producer."""
    topic = draw(st.sampled_from(TOPICS))
    names = draw(st.lists(_names, max_size=4))
    sizes = [draw(st.integers(1, 12)) for _ in names]
    alphabet = draw(st.sampled_from([b"abc", b"ab ", b"a12", b"a\x01", b"a\0\xc3", b"0123456789"]))
    count = draw(st.integers(1, 40))
    noise = draw(st.binary(min_size=8, max_size=64))
    queues = draw(st.integers(1, 3))
    made: list[Entry] = []
    for rank in range(count):
        picked = _Picks(alphabet, noise, rank)
        properties = b"".join(
            name + b"\x01" + picked.take(size) + b"\x02"
            for name, size in zip(names, sizes, strict=True)
        )
        made.append(Entry(queue_key(topic, rank % queues), picked.take(rank % 5), properties))
    return made


class _Picks:
    """Picks letters of an alphabet by a few drawn bytes: drawing each letter is too slow."""

    def __init__(self, alphabet: bytes, noise: bytes, rank: int) -> None:
        self._alphabet = alphabet
        self._noise = noise
        self._at = rank * 7

    def take(self, size: int) -> bytes:
        letters = bytearray()
        for _ in range(size):
            self._at += 1
            pick = self._noise[self._at % len(self._noise)] + self._at // len(self._noise)
            letters.append(self._alphabet[pick % len(self._alphabet)])
        return bytes(letters)


@st.composite
def mixtures(draw: st.DrawFn, *, count_min: int = 0) -> list[Entry]:
    """Families and single messages, in an order in which they may arrive together."""
    rows = [entry for family in draw(st.lists(families(), max_size=4)) for entry in family]
    rows += draw(st.lists(entries(), max_size=12))
    while len(rows) < count_min:
        rows += rows or [Entry(queue_key("orders", 0), b"")]
    stride = draw(st.sampled_from([1, 1, 3, 7]))
    return [row for first in range(stride) for row in rows[first::stride]]


@st.composite
def chunks(draw: st.DrawFn, *, count_min: int = 0, record_crc: bool | None = None) -> RecordChunk:
    """A stamped chunk, as the log would store it from offset 0 on."""
    rows = draw(mixtures(count_min=count_min))
    crc = draw(st.booleans()) if record_crc is None else record_crc
    chunk = build(rows, store_host=draw(st.sampled_from(STORE_HOSTS)), record_crc=crc)
    if len(chunk):
        stamp(
            chunk,
            0,
            len(chunk),
            queue_offsets=_queue_offsets(chunk, skip=draw(st.sampled_from([0, 0, 5, 11]))),
            physical_offset=0,
            store_timestamp=NOW_MS,
        )
    return chunk


def _queue_offsets(chunk: RecordChunk, *, skip: int) -> list[int]:
    """Offsets counted by queue; every `skip`-th record leaves a gap, as after damage."""
    counts: dict[object, int] = {}
    offsets: list[int] = []
    for rank, queue in enumerate(chunk.queues):
        offset = 0 if queue is None else counts.get(queue, 0)
        if skip and rank % skip == skip - 1:
            offset += 3
        counts[queue] = offset + 1
        offsets.append(offset)
    return offsets


def flip(data: bytes | bytearray, bit: int) -> bytearray:
    flipped = bytearray(data)
    flipped[bit // 8] ^= 1 << bit % 8
    return flipped


def put_time(data: bytearray, start: int, value: int) -> None:
    struct.pack_into(">q", data, start + 56, value)
