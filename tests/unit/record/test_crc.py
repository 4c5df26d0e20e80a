import zlib

import pytest

from tianzhou.record.crc import crc31, crc32

# The usual check value of this polynomial.
CHECK = b"123456789"


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_crc_has_the_standard_check_value(kind: type[bytes]) -> None:
    assert crc32(kind(CHECK)) == 0xCBF43926
    assert crc31(kind(CHECK)) == 0x4BF43926


def test_crc_of_no_bytes_is_zero() -> None:
    assert crc31(b"") == 0


def test_crc_equals_zlib() -> None:
    for size in (1, 15, 16, 17, 1000, 65_537):
        data = bytes(at * 31 & 0xFF for at in range(size))
        assert crc32(data) == zlib.crc32(data)
