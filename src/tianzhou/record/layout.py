"""The stored record, as a table. Positions are derived from it, never written by hand.

A record with IPv4 hosts begins with 88 fixed bytes:

    total_size 4 | magic 4 | body_crc 4 | queue_id 4 | flag 4 | queue_offset 8 |
    physical_offset 8 | sys_flag 4 | born_timestamp 8 | born_host 8 | store_timestamp 8 |
    store_host 8 | reconsume_times 4 | prepared_offset 8 | body_size 4

followed by

    body | topic_size 1 (magic V1) or 2 (magic V2) | topic | properties_size 2 | properties

A host is 4 address bytes and a 4-byte port; with the matching bit of `sys_flag` it is 16 and 4,
which moves everything behind it by 12. All integers are big-endian and signed. The same bytes are
on disk, in pull responses and in replication. `docs/formats/record.md` is tested against this file.
"""

import struct
from itertools import takewhile
from typing import Final

FIELDS: Final = (
    ("total_size", "i"),
    ("magic", "i"),
    ("body_crc", "i"),
    ("queue_id", "i"),
    ("flag", "i"),
    ("queue_offset", "q"),
    ("physical_offset", "q"),
    ("sys_flag", "i"),
    ("born_timestamp", "q"),
    ("born_host", "8s"),
    ("store_timestamp", "q"),
    ("store_host", "8s"),
    ("reconsume_times", "i"),
    ("prepared_offset", "q"),
    ("body_size", "i"),
)
HEAD: Final = struct.Struct(">" + "".join(code for _, code in FIELDS))

MAGIC_V1: Final = -626843481  # 0xDAA320A7: topic size is one byte
MAGIC_V2: Final = -626843477  # 0xDAA320AB: topic size is two bytes
MAGIC_BLANK: Final = -875286124  # 0xCBD43194: nothing more in this file

HOST_BYTES_V4: Final = 8
HOST_BYTES_V6: Final = 20
HOST_BYTES_EXTRA: Final = HOST_BYTES_V6 - HOST_BYTES_V4


def position_of(name: str) -> int:
    """Where a field of the fixed part begins, hosts being IPv4."""
    before = takewhile(lambda field: field[0] != name, FIELDS)
    return struct.calcsize(">" + "".join(code for _, code in before))


AT_MAGIC: Final = position_of("magic")
AT_BODY_CRC: Final = position_of("body_crc")
AT_QUEUE_ID: Final = position_of("queue_id")
AT_QUEUE_OFFSET: Final = position_of("queue_offset")
AT_PHYSICAL_OFFSET: Final = position_of("physical_offset")
AT_SYS_FLAG: Final = position_of("sys_flag")
AT_BORN_HOST: Final = position_of("born_host")
AT_STORE_TIMESTAMP: Final = position_of("store_timestamp")
AT_BODY_SIZE: Final = position_of("body_size")

SIZE_AND_MAGIC: Final = struct.Struct(">ii")
OFFSETS: Final = struct.Struct(">qq")
INT32: Final = struct.Struct(">i")
INT16: Final = struct.Struct(">h")
INT64: Final = struct.Struct(">q")

RECORD_BYTES_MIN: Final = HEAD.size + 1 + 2
"""Empty body, topic and properties."""

BLANK: Final = SIZE_AND_MAGIC

CRC_PROPERTY: Final = b"__CRC32#"
CRC_PROPERTY_BYTES: Final = len(CRC_PROPERTY) + 1 + 10 + 1
"""The optional last property: name, separator, ten digits, separator. It covers every byte of
the record before itself."""

# The Java store writes the same positions; tests/golden proves it.
assert (HEAD.size, AT_QUEUE_OFFSET, AT_STORE_TIMESTAMP, AT_BODY_SIZE) == (88, 20, 56, 84)
assert AT_PHYSICAL_OFFSET == AT_QUEUE_OFFSET + 8
assert CRC_PROPERTY_BYTES == 20
