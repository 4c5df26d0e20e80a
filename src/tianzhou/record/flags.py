"""Bits of a record's system flag."""

from typing import Final

COMPRESSED: Final = 0x001
MULTI_TAGS: Final = 0x002

TRANSACTION_MASK: Final = 0x00C
TRANSACTION_NONE: Final = 0x000
TRANSACTION_PREPARED: Final = 0x004
TRANSACTION_COMMIT: Final = 0x008
TRANSACTION_ROLLBACK: Final = 0x00C

BORN_HOST_V6: Final = 0x010
STORE_HOST_V6: Final = 0x020
NEED_UNWRAP: Final = 0x040
INNER_BATCH: Final = 0x080

COMPRESSION_MASK: Final = 0x700
COMPRESSION_LZ4: Final = 0x100
COMPRESSION_ZSTD: Final = 0x200
COMPRESSION_ZLIB: Final = 0x300

LAYOUT_MASK: Final = BORN_HOST_V6 | STORE_HOST_V6
"""Bits that describe how a record is laid out. Only the code that writes the record sets them."""
CLIENT_MASK: Final = COMPRESSED | MULTI_TAGS | COMPRESSION_MASK
"""Bits that are stored as the producer sent them. Admission decides about the others."""
