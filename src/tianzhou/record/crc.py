"""CRC-32 as records carry it: 31 bits.

ISA-L computes the same polynomial four to five times as fast as zlib (0.1 against 0.45 µs for
1 KiB), and three CRCs are taken of every message on its way through a broker.
"""

from collections.abc import Callable
from typing import Final, cast

from tianzhou.base.kinds import Bytes

try:
    from isal.isal_zlib import crc32 as _crc32  # pyright: ignore[reportUnknownVariableType]
except ImportError:  # a platform without a wheel of it
    from zlib import crc32 as _crc32

crc32 = cast("Callable[[Bytes], int]", _crc32)  # isal's stub names another buffer type
"""CRC-32 of the bytes, unsigned 32 bits."""
crc32_on = cast("Callable[[Bytes, int], int]", _crc32)
"""CRC-32 of bytes that continue others, given the CRC-32 of those."""


CRC_BITS: Final = 0x7FFFFFFF
"""The bits of a CRC-32 that a record stores: all but the top one."""


def crc31(data: Bytes) -> int:
    """The CRC that a record stores. Empty input has 0."""
    return crc32(data) & CRC_BITS
