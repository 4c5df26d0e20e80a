from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tianzhou.record import flags
from tianzhou.record.compression import DecompressionError, compress, decompress

kinds = st.sampled_from([0x000, 0x001, 0x101, 0x201, 0x301])
compressed = st.sampled_from([0x001, 0x101, 0x201, 0x301])


def repeated(piece: bytes, count: int) -> bytes:
    return piece * count


bodies = st.one_of(
    st.binary(max_size=500),
    st.builds(repeated, st.binary(max_size=20), st.integers(0, 5000)),
)


@given(bodies, kinds)
def test_compression_round_trip(body: bytes, sys_flag: int) -> None:
    stored = compress(body, sys_flag)
    assert decompress(stored, sys_flag) == body
    assert decompress(stored, sys_flag, limit=max(len(body), 1)) == body


@given(bodies.filter(lambda body: len(body) > 1), compressed, st.data())
def test_decompression_stops_at_the_limit(body: bytes, sys_flag: int, data: st.DataObject) -> None:
    limit = data.draw(st.integers(1, len(body) - 1))
    with pytest.raises(DecompressionError):
        decompress(compress(body, sys_flag), sys_flag, limit=limit)


@given(bodies.filter(len), compressed, st.data())
def test_decompression_of_a_partial_body_is_an_error(
    body: bytes, sys_flag: int, data: st.DataObject
) -> None:
    stored = compress(body, sys_flag)
    size = data.draw(st.integers(0, len(stored) - 1))
    with pytest.raises(DecompressionError):
        decompress(stored[:size], sys_flag)


MAGICS = [b"", b"\x78\x9c", b"\x04\x22\x4d\x18", b"\x28\xb5\x2f\xfd"]


@given(st.sampled_from(MAGICS), st.binary(), st.integers(0, 0x7FF))
def test_decompression_of_any_bytes_succeeds_or_raises_one_error(
    magic: bytes, rest: bytes, sys_flag: int
) -> None:
    try:
        body = decompress(magic + rest, sys_flag, limit=10_000)
    except DecompressionError:
        assert sys_flag & flags.COMPRESSED
    else:
        assert len(body) <= 10_000


@given(bodies, compressed, st.data())
def test_decompression_of_flipped_bits_raises_one_error_type(
    body: bytes, sys_flag: int, data: st.DataObject
) -> None:
    damaged = bytearray(compress(body, sys_flag))
    for bit in data.draw(st.lists(st.integers(0, len(damaged) * 8 - 1), min_size=1, max_size=3)):
        damaged[bit // 8] ^= 1 << bit % 8
    with suppress(DecompressionError):
        decompress(damaged, sys_flag, limit=200_000)
