"""Pull responses of a foreign broker: valid ones with bytes changed, removed and inserted."""

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tianzhou.base.kinds import queue_key
from tianzhou.client.core.pulling import read_answer, records_of, untrusted
from tianzhou.client.errors import BadPullAnswer
from tianzhou.record import flags
from tianzhou.record.batch import encode_batch
from tianzhou.record.chunk import Entry, build, stamp
from tianzhou.record.crc import crc31
from tianzhou.record.ids import Host, encode_host
from tianzhou.record.layout import AT_BODY_CRC, HEAD, INT32
from tianzhou.record.message import MessageView
from tianzhou.wire.codec import Header
from tianzhou.wire.queues import MessageQueue

QUEUE = MessageQueue(topic="T", broker_name="foreign", queue_id=3)
HOST = encode_host(Host("10.0.0.1", 10911))
BATCH = flags.NEED_UNWRAP | flags.INNER_BATCH
INNER = encode_batch([(0, b"a", b"TAGS\x01x\x02"), (1, b"bb", b"")])


def stored(body: bytes, properties: bytes, sys_flag: int) -> bytes:
    entry = Entry(queue_key("T", 3), body, properties, sys_flag=sys_flag, born_host=HOST)
    chunk = build([entry], store_host=HOST, record_crc=False)
    stamp(chunk, 0, 1, queue_offsets=range(10, 11), physical_offset=1000, store_timestamp=5)
    return bytes(chunk.data)


PLAIN = stored(b"body", b"TAGS\x01x\x02", 0)
WHOLE_BATCH = stored(INNER, b"INNER_BASE\x0110\x02INNER_NUM\x012\x02", BATCH)
SEEDS = [PLAIN, WHOLE_BATCH, PLAIN + WHOLE_BATCH]


def read(body: bytes, asked: int) -> None:
    """Read a response as every consumer does."""
    with untrusted(QUEUE, asked):
        records = records_of(body, asked=asked, accepts_tag=lambda tag: tag != b"y")
        assert len(records.starts) == len(records.offsets) == len(records.sizes)
        for start in records.starts:
            MessageView(records.buffer, start)


def problem_of(call: Callable[[], None]) -> str | None:
    """The text of the one error that may be raised."""
    try:
        call()
    except BadPullAnswer as error:
        return str(error)
    return None


@st.composite
def mutated(draw: st.DrawFn) -> bytes:
    data = bytearray(draw(st.sampled_from(SEEDS)))
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(data) - 1))
        new = draw(st.binary(min_size=1, max_size=8))
        if draw(st.booleans()):
            data[at : at + len(new)] = new
        else:
            data[at : at + draw(st.integers(0, 3))] = new
    if draw(st.booleans()) and len(data) > HEAD.size:
        # With valid sizes and checksum, so that the contents are parsed.
        INT32.pack_into(data, 0, len(data))
        size = INT32.unpack_from(data, HEAD.size - 4)[0]
        if 0 <= size <= len(data) - HEAD.size:
            crc = crc31(data[HEAD.size : HEAD.size + size])
            INT32.pack_into(data, AT_BODY_CRC, crc)
    return bytes(data)


@settings(max_examples=1500, deadline=None)
@given(mutated() | st.binary(max_size=300), st.integers(0, 20))
def test_reading_mutated_pull_responses_raises_one_error_type(body: bytes, asked: int) -> None:
    text = problem_of(lambda: read(body, asked))
    place = (
        f"broker 'foreign' sent an invalid response to a pull from offset {asked} "
        "of queue 3 of topic 'T'"
    )
    assert text is None or text.startswith(place)


@pytest.mark.parametrize(
    "base", [b"x", b"9" * 30, b"9" * 5000, b"-1" * 9], ids=["word", "huge", "endless", "negative"]
)
def test_reading_a_batch_with_an_invalid_base_raises_one_error_type(base: bytes) -> None:
    body = stored(INNER, b"INNER_BASE\x01" + base + b"\x02", BATCH)
    with pytest.raises(BadPullAnswer, match=r"broker 'foreign' sent .* a pull from offset 7"):
        read(body, 7)


def test_reading_a_batch_with_a_torn_body_raises_one_error_type() -> None:
    with pytest.raises(BadPullAnswer, match="message at byte 30"):
        read(stored(INNER[:-1] + b"..", b"", BATCH), 7)


@given(
    st.dictionaries(
        st.sampled_from(["nextBeginOffset", "minOffset", "maxOffset", "suggestWhichBrokerId"]),
        st.text(max_size=30),
    )
)
def test_reading_an_invalid_pull_header_raises_one_error_type(ext: dict[str, str]) -> None:
    def read_header() -> None:
        with untrusted(QUEUE, 7):
            read_answer(Header(code=0, opaque=1, flag=1, ext=ext), b"")

    text = problem_of(read_header)
    assert text is None or "from offset 7 of queue 3 of topic 'T'" in text


@pytest.mark.parametrize("kind", [1 << 8, 2 << 8, 3 << 8, 4 << 8])
def test_reading_a_batch_that_does_not_decompress_raises_one_error_type(kind: int) -> None:
    with pytest.raises(BadPullAnswer, match="response to a pull from offset 7"):
        read(stored(INNER, b"", BATCH | flags.COMPRESSED | kind), 7)
