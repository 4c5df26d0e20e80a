import pytest
from hypothesis import given
from hypothesis import strategies as st

from tianzhou.record.batch import BatchError, decode_batch, encode_batch

Plain = tuple[int, bytes, bytes]

int32 = st.integers(-(1 << 31), (1 << 31) - 1)
messages = st.tuples(int32, st.binary(max_size=40), st.binary(max_size=40))
batches = st.lists(messages, min_size=1, max_size=5)


def plain(data: bytes) -> list[Plain]:
    return [(flag, bytes(body), bytes(rest)) for flag, body, rest in decode_batch(data)]


@given(batches)
def test_batch_round_trip(batch: list[Plain]) -> None:
    assert plain(encode_batch(batch)) == batch


@given(batches)
def test_truncated_batch_is_an_error_or_a_shorter_batch(batch: list[Plain]) -> None:
    data = encode_batch(batch)
    # Truncated between two messages, a batch is still valid: the format has no count.
    ends = {len(encode_batch(batch[:count])): count for count in range(1, len(batch) + 1)}
    for size in range(len(data)):
        if size in ends:
            assert plain(data[:size]) == batch[: ends[size]]
        else:
            with pytest.raises(BatchError):
                decode_batch(data[:size])


@given(batches, st.binary(min_size=1, max_size=21))
def test_batch_with_trailing_bytes_is_an_error(batch: list[Plain], more: bytes) -> None:
    with pytest.raises(BatchError):
        decode_batch(encode_batch(batch) + more)


@given(batches, st.data())
def test_flipped_bit_in_a_batch_is_an_error_or_stays_in_its_field(
    batch: list[Plain], data: st.DataObject
) -> None:
    damaged = bytearray(encode_batch(batch))
    bit = data.draw(st.integers(0, len(damaged) * 8 - 1))
    damaged[bit // 8] ^= 1 << bit % 8
    try:
        decoded = plain(bytes(damaged))
    except BatchError:
        return
    assert [(len(body), len(rest)) for _, body, rest in decoded] == [
        (len(body), len(rest)) for _, body, rest in batch
    ]


@given(st.binary())
def test_batch_of_any_bytes_decodes_or_raises_batch_error(data: bytes) -> None:
    try:
        decoded = plain(data)
    except BatchError:
        return
    assert sum(22 + len(body) + len(rest) for _, body, rest in decoded) == len(data)
