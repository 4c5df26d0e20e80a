from contextlib import suppress
from datetime import timedelta, timezone

from hypothesis import given
from hypothesis import strategies as st

from tianzhou.base.errors import UsageError
from tianzhou.base.kinds import PhysicalOffset
from tianzhou.record.ids import (
    UniqueIds,
    decode_host,
    decode_offset_id,
    encode_host,
    offset_id,
    parts_of_unique_id,
)

addresses = st.ip_addresses()
ports = st.integers(0, 65535)
offsets = st.integers(0, (1 << 63) - 1).map(PhysicalOffset)
zones = st.integers(-14 * 60, 14 * 60).map(lambda minutes: timezone(timedelta(minutes=minutes)))
times = st.integers(0, 4_000_000_000_000)
digits = st.text("0123456789abcdefABCDEF \u0663g", min_size=30, max_size=58)


@given(addresses.map(str), ports)
def test_host_round_trip(address: str, port: int) -> None:
    data = encode_host((address, port))
    assert encode_host(decode_host(data)) == data
    assert len(data) in (8, 20)


@given(st.binary(max_size=24))
def test_host_of_any_bytes_decodes_or_raises_usage_error(data: bytes) -> None:
    try:
        decode_host(data)
    except UsageError:
        assert len(data) not in (8, 20)
    else:
        assert len(data) in (8, 20)


@given(addresses.map(str), ports, offsets)
def test_offset_id_round_trip(address: str, port: int, offset: PhysicalOffset) -> None:
    text = offset_id(encode_host((address, port)), offset)
    assert text == text.upper()
    found = decode_offset_id(text)
    assert offset_id(encode_host(found.host), found.physical_offset) == text


@given(st.one_of(st.text(), digits, st.binary(min_size=16, max_size=28).map(bytes.hex)))
def test_offset_id_of_any_text_decodes_or_raises_usage_error(text: str) -> None:
    parts_of_unique_id(text)
    with suppress(UsageError):
        decode_offset_id(text)


@given(
    st.one_of(st.binary(min_size=4, max_size=4), st.binary(min_size=16, max_size=16)),
    st.integers(0, 1 << 22),
    st.integers(-(1 << 31), (1 << 31) - 1),
    zones,
    st.lists(times, min_size=1, max_size=5),
)
def test_unique_ids_are_distinct_and_decodable(
    address: bytes, pid: int, loader_hash: int, zone: timezone, now_ms: list[int]
) -> None:
    made = UniqueIds(address=address, pid=pid, loader_hash=loader_hash, zone=zone)
    found = [made.next(now) for now in now_ms]
    assert len(set(found)) == len(found)
    for rank, text in enumerate(found):
        parts = parts_of_unique_id(text)
        assert parts is not None
        assert (parts.pid, parts.loader_hash, parts.counter) == (pid & 0xFFFF, loader_hash, rank)
        assert 0 <= parts.ms_of_month < 31 * 86_400_000
