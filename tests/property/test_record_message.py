import struct
from contextlib import suppress

from hypothesis import given
from hypothesis import strategies as st

from tianzhou.base.errors import UsageError
from tianzhou.record import properties
from tianzhou.record.compression import DecompressionError
from tianzhou.record.crc import crc31
from tianzhou.record.errors import RecordDamaged
from tianzhou.record.layout import MAGIC_V1, MAGIC_V2
from tianzhou.record.message import Message, MessageView, decode_all

int32 = st.integers(-(1 << 31), (1 << 31) - 1)
int64 = st.integers(-(1 << 63), (1 << 63) - 1)


@st.composite
def records(draw: st.DrawFn) -> bytes:
    """Whole records with arbitrary contents."""
    sys_flag, body = draw(int32), draw(st.binary(max_size=40))
    magic = draw(st.sampled_from([MAGIC_V1, MAGIC_V2]))
    topic, rest = draw(st.binary(max_size=127)), draw(st.binary(max_size=60))
    born = draw(st.binary(min_size=20, max_size=20))[: 20 if sys_flag & 0x10 else 8]
    store = draw(st.binary(min_size=20, max_size=20))[: 20 if sys_flag & 0x20 else 8]
    data = struct.pack(">iiiqqi", crc31(body), draw(int32), draw(int32), draw(int64), 0, sys_flag)
    data += struct.pack(">q", draw(int64)) + born + struct.pack(">q", draw(int64)) + store
    data += struct.pack(">iqi", draw(int32), draw(int64), len(body)) + body
    data += struct.pack(">B" if magic == MAGIC_V1 else ">h", len(topic)) + topic
    data += struct.pack(">h", len(rest)) + rest
    return struct.pack(">ii", len(data) + 8, magic) + data


def read_everything(view: MessageView) -> None:
    """Read every property of the view, found by reflection so that new ones are covered too."""
    for name, value in vars(MessageView).items():
        if isinstance(value, property):
            try:
                getattr(view, name)
            except DecompressionError:
                assert name == "body"
    repr(view)


@given(st.lists(records(), max_size=3))
def test_record_with_any_contents_can_be_read(run: list[bytes]) -> None:
    views = list(decode_all(b"".join(run)))
    assert [view.total_size for view in views] == [len(data) for data in run]
    for view in views:
        read_everything(view)
        view.verify()


@given(records())
def test_truncated_record_is_damage(data: bytes) -> None:
    for size in range(len(data)):
        try:
            MessageView(data[:size])
        except RecordDamaged:
            continue
        raise AssertionError(f"{size} of {len(data)} bytes passed for a record")


@given(records(), st.data())
def test_record_with_flipped_bits_is_damage_or_readable(data: bytes, draw: st.DataObject) -> None:
    damaged = bytearray(data)
    for bit in draw.draw(st.lists(st.integers(0, len(data) * 8 - 1), min_size=1, max_size=3)):
        damaged[bit // 8] ^= 1 << bit % 8
    with suppress(RecordDamaged):
        view = MessageView(damaged)
        read_everything(view)
        view.verify()


@given(st.binary(max_size=200), st.integers(-10, 210))
def test_record_of_any_bytes_is_damage_or_readable(data: bytes, start: int) -> None:
    with suppress(RecordDamaged):
        read_everything(MessageView(data, start))


@given(
    tags=st.none() | st.text(),
    keys=st.text() | st.lists(st.text(), max_size=3),
    extra=st.dictionaries(st.text(), st.text(), max_size=3),
)
def test_message_round_trip(tags: str | None, keys: str | list[str], extra: dict[str, str]) -> None:
    try:
        message = Message("orders", b"body", tags=tags, keys=keys, properties=extra)
    except UsageError:
        return
    decoded = properties.decode(message.encode_properties())
    assert decoded.pop("TAGS", None) == tags
    assert tuple(decoded.pop("KEYS", "").split(" ")) == (message.keys or ("",))
    assert decoded == extra
