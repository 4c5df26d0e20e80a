import struct

import pytest

from tianzhou.base.limits import BATCH_MESSAGES_MAX, FRAME_BYTES_MAX, PROPERTIES_BYTES_MAX
from tianzhou.record.batch import (
    ENTRY_BYTES_MIN,
    BatchError,
    decode_batch,
    encode_batch,
    join_properties,
)

ONE = struct.pack(">iiiii3sh4s", 29, 0, 0, 7, 3, b"abc", 4, b"A\x01x\x02")


def test_encode_batch_of_one_message_has_the_documented_bytes() -> None:
    assert encode_batch([(7, b"abc", b"A\x01x\x02")]) == ONE


def test_decode_batch_returns_every_message() -> None:
    both = decode_batch(ONE + encode_batch([(-1, b"", b"")]))
    assert both == [(7, b"abc", b"A\x01x\x02"), (-1, b"", b"")]


def test_decode_batch_ignores_magic_and_checksum() -> None:
    assert decode_batch(ONE[:4] + b"\xff" * 8 + ONE[12:]) == decode_batch(ONE)


def changed(at: int, code: str, value: int) -> bytes:
    data = bytearray(ONE)
    struct.pack_into(code, data, at, value)
    return bytes(data)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "0 bytes has no messages"),
        (ONE[: ENTRY_BYTES_MIN - 1], "21 bytes at byte 0 are no message"),
        (ONE + b"x", "1 bytes at byte 29 are no message"),
        (ONE + bytes(40), "at byte 29 claims 0 bytes; possible are 22 to 40"),
        (changed(0, ">i", ENTRY_BYTES_MIN - 1), "claims 21 bytes"),
        (changed(0, ">i", -29), "claims -29 bytes"),
        (changed(0, ">i", 30), "claims 30 bytes; possible are 22 to 29"),
        (changed(16, ">i", -1), "claims a body of -1"),
        (changed(16, ">i", 8), "with 29 bytes claims a body of 8"),
        (changed(16, ">i", 0x7FFFFFFF), "claims a body of 2147483647"),
        (changed(23, ">h", 3), "claims 3 bytes of properties; 4 are left"),
        (changed(23, ">h", 5), "claims 5 bytes of properties; 4 are left"),
        (changed(23, ">h", -1), "claims -1 bytes of properties"),
    ],
)
def test_decode_batch_of_damaged_bytes_reports_the_position(data: bytes, message: str) -> None:
    with pytest.raises(BatchError, match=message):
        decode_batch(data)


@pytest.mark.slow
def test_decode_batch_of_too_many_messages_is_rejected() -> None:
    empty = (0, b"", b"")
    most = encode_batch([empty] * BATCH_MESSAGES_MAX)
    assert len(decode_batch(most)) == BATCH_MESSAGES_MAX
    with pytest.raises(BatchError, match="more than 65536 messages"):
        decode_batch(most + encode_batch([empty]))
    with pytest.raises(BatchError, match="at most 65536 messages"):
        encode_batch([empty] * (BATCH_MESSAGES_MAX + 1))


def test_encode_batch_rejects_values_out_of_range() -> None:
    with pytest.raises(BatchError, match="at least one"):
        encode_batch([])
    with pytest.raises(BatchError, match="message 1: flag 2147483648"):
        encode_batch([(0, b"", b""), (1 << 31, b"", b"")])
    with pytest.raises(BatchError, match="32768 bytes of properties"):
        encode_batch([(0, b"", bytes(PROPERTIES_BYTES_MAX + 1))])
    with pytest.raises(BatchError, match="message 0: 16777238 bytes"):
        encode_batch([(0, bytes(FRAME_BYTES_MAX), b"")])


def test_join_properties_adds_a_missing_separator() -> None:
    inner, outer = b"A\x01x", b"B\x01y\x02"
    assert join_properties(inner, outer) == b"A\x01x\x02B\x01y\x02"
    assert (
        join_properties(memoryview(inner + b"\x02"), memoryview(outer)) == inner + b"\x02" + outer
    )
    assert join_properties(inner, b"") == inner
    assert join_properties(b"", outer) == outer
    assert join_properties(b"", b"") == b""
