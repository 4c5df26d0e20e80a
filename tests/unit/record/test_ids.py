from datetime import UTC, datetime, timedelta, timezone

import pytest

from tianzhou.base.errors import UsageError
from tianzhou.base.kinds import PhysicalOffset
from tianzhou.record.ids import (
    Host,
    OffsetId,
    UniqueIdParts,
    UniqueIds,
    decode_host,
    decode_offset_id,
    encode_host,
    offset_id,
    parts_of_unique_id,
)

# Given by a Java broker and a Java producer, both 4.9.8.
JAVA_OFFSET_ID = "7F00000100009FCF0000000000000181"
JAVA_UNIQUE_ID = "FD00000000000000000000000000000238BE30946E094C1DAB4E0001"


def test_encode_host_has_the_documented_bytes() -> None:
    assert encode_host(("127.0.0.1", 40911)) == bytes.fromhex("7F00000100009FCF")
    assert encode_host(("fd00::2", 1)) == bytes.fromhex("FD00000000000000000000000000000200000001")
    assert decode_host(encode_host(("fd00::2", 65535))) == Host("fd00::2", 65535)


def test_encode_host_unwraps_a_mapped_ipv4_address() -> None:
    assert encode_host(("::ffff:10.0.0.7", 80)) == encode_host(("10.0.0.7", 80))
    wrapped = bytes(10) + b"\xff\xff\x0a\x00\x00\x07" + bytes(4)
    assert decode_host(memoryview(wrapped)) == ("10.0.0.7", 0)


def test_decode_host_with_an_invalid_port_is_readable() -> None:
    assert decode_host(b"\x7f\x00\x00\x01\xff\xff\xff\xff") == ("127.0.0.1", -1)


@pytest.mark.parametrize("host", [("localhost", 1), ("", 1), ("1.2.3.4", -1), ("1.2.3.4", 65536)])
def test_encode_host_rejects_an_invalid_address_or_port(host: tuple[str, int]) -> None:
    with pytest.raises(UsageError, match=r"not an IP address|outside"):
        encode_host(host)


@pytest.mark.parametrize("size", [0, 7, 9, 19, 21])
def test_decode_host_rejects_another_size(size: int) -> None:
    with pytest.raises(UsageError, match=f"not {size}"):
        decode_host(bytes(size))


def test_offset_id_equals_java() -> None:
    place = OffsetId(Host("127.0.0.1", 40911), PhysicalOffset(0x181))
    assert decode_offset_id(JAVA_OFFSET_ID) == place
    assert decode_offset_id(JAVA_OFFSET_ID.lower()) == place
    assert offset_id(memoryview(encode_host(place.host)), 0x181) == JAVA_OFFSET_ID
    assert offset_id(bytes(8), -1) == "0" * 16 + "F" * 16

    far = OffsetId(Host("fd00::2", 10911), PhysicalOffset((1 << 63) - 1))
    text = offset_id(encode_host(far.host), far.physical_offset)
    assert len(text) == 56
    assert decode_offset_id(text) == far


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "32 or 56"),
        ("7F", "32 or 56"),
        (JAVA_OFFSET_ID[:-1] + "G", "32 or 56"),
        (JAVA_OFFSET_ID[:-2] + "  ", "32 or 56"),
        (JAVA_OFFSET_ID[:-1] + "\u0663", "32 or 56"),
        (JAVA_UNIQUE_ID, "names no broker"),
        (JAVA_OFFSET_ID[:16] + "F" * 16, "names no place: its offset is -1"),
    ],
)
def test_decode_offset_id_rejects_invalid_text(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        decode_offset_id(text)


def ms(year: int, month: int, day: int, zone: timezone = UTC) -> int:
    return int(datetime(year, month, day, tzinfo=zone).timestamp()) * 1000


def test_unique_id_equals_java() -> None:
    made = UniqueIds(
        address=bytes.fromhex("FD000000000000000000000000000002"),
        pid=0x38BE,
        loader_hash=0x30946E09,
        zone=UTC,
    )
    start = ms(2026, 11, 1)
    assert made.next(start + 0x4C1DA8E8)[-4:] == "0000"
    assert made.next(start + 0x4C1DAB4E) == JAVA_UNIQUE_ID


def test_parts_of_unique_id_are_decoded() -> None:
    assert parts_of_unique_id(JAVA_UNIQUE_ID) == UniqueIdParts(
        "fd00::2", 0x38BE, 0x30946E09, 0x4C1DAB4E, 1
    )
    assert parts_of_unique_id("0A000007" + "F" * 24) == ("10.0.0.7", 65535, -1, 0xFFFFFFFF, 65535)
    assert parts_of_unique_id("an id of another client") is None


def new_ids(zone: timezone = UTC) -> UniqueIds:
    return UniqueIds(address=b"\x0a\x00\x00\x07", pid=0x12345, loader_hash=-1, zone=zone)


def times(made: UniqueIds, *now_ms: int) -> list[int]:
    found = [parts_of_unique_id(made.next(now)) for now in now_ms]
    return [parts.ms_of_month for parts in found if parts is not None]


def test_unique_id_time_counts_from_the_start_of_the_local_month() -> None:
    beijing = timezone(timedelta(hours=8))
    starts = ms(2026, 2, 1, beijing), ms(2026, 2, 1)
    assert times(new_ids(beijing), *starts) == [0, 8 * 3600_000]
    first = ms(2027, 1, 1)
    # Back again at the end: a clock that is set back must not give a negative time.
    last = 31 * 86400_000 - 1
    assert times(new_ids(), first - 1, first, first - 1) == [last, 0, last]


def test_unique_id_counter_wraps() -> None:
    made = new_ids()
    made_ids = [made.next(0) for _ in range(65_537)]
    assert len(set(made_ids)) == 65_536
    assert made_ids[0] == made_ids[-1] == "0A0000072345FFFFFFFF000000000000"


def test_unique_ids_reject_an_address_of_another_size() -> None:
    with pytest.raises(UsageError, match="4 or 16 bytes, not 5"):
        UniqueIds(address=bytes(5), pid=1, loader_hash=1, zone=UTC)
