"""A record whose flag claims longer hosts than it has, as an earlier version wrote it.

Everything is packed by hand: the current code rejects such a record.
"""

import struct
import zlib
from typing import Final

from tianzhou.base.kinds import QueueKey

_HEAD: Final = struct.Struct(">iiiiiqqiq8sq8siqi")
_MAGIC: Final = -626843481
_TIME_BEHIND_LONG_HOST: Final = 56 + 12


def poisoned_record(
    queue: QueueKey,
    body: bytes,
    *,
    sys_flag: int,
    queue_offset: int,
    physical_offset: int,
    store_ms: int,
    properties: bytes = b"",
) -> bytes:
    """A record with IPv4 hosts, any flag, and a matching checksum."""
    topic = queue.topic.encode()
    covered = bytes((len(topic),)) + topic
    total = _HEAD.size + len(body) + len(covered) + 2 + len(properties) + 20
    record = bytearray(
        _HEAD.pack(
            total,
            _MAGIC,
            zlib.crc32(body) & 0x7FFFFFFF,
            queue.queue_id,
            0,
            queue_offset,
            physical_offset,
            sys_flag,
            store_ms,
            b"\x0a\x01\x01\x01\x00\x00\x12\x67",
            store_ms,
            b"\x0a\x00\x00\x01\x00\x00\x2a\x9f",
            0,
            0,
            len(body),
        )
    )
    if sys_flag & 0x10:
        # The store time was written at its position after a long host.
        struct.pack_into(">q", record, _TIME_BEHIND_LONG_HOST, store_ms)
    record += body + covered + struct.pack(">h", len(properties) + 20) + properties
    digits = b"%010d" % (zlib.crc32(record) & 0x7FFFFFFF)
    return bytes(record) + b"__CRC32#\x01" + digits[::-1] + b"\x02"
