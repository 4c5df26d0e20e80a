r"""The batch body: what a producer sends instead of one body to store several messages at once.

Repeated, without anything between:

    total_size 4 | magic 4 | body_crc 4 | flag 4 | body_size 4 | body |
    properties_size 2 | properties

`total_size` counts itself. Magic and CRC are 0 and ignored: the broker computes its own.
A batch is stored as a whole or not at all, so every bound is checked before anything is stored.
"""

import struct
from collections.abc import Iterable
from typing import Final

from tianzhou.base.errors import UsageError
from tianzhou.base.kinds import Bytes
from tianzhou.base.limits import BATCH_MESSAGES_MAX, FRAME_BYTES_MAX, PROPERTIES_BYTES_MAX
from tianzhou.record.layout import INT16
from tianzhou.record.properties import VALUE_END

FIELDS: Final = (
    ("total_size", "i"),
    ("magic", "i"),
    ("body_crc", "i"),
    ("flag", "i"),
    ("body_size", "i"),
)
HEAD: Final = struct.Struct(">" + "".join(code for _, code in FIELDS))

ENTRY_BYTES_MIN: Final = HEAD.size + INT16.size
"""Empty body and properties."""

_INT32_MIN: Final = -(1 << 31)
_INT32_MAX: Final = (1 << 31) - 1


class BatchError(UsageError):
    """A batch body breaks its format; nothing of it may be stored."""


def decode_batch(data: bytes) -> list[tuple[int, bytes, bytes]]:
    """Flag, body and properties of every message of a batch body, in order.

    Raises BatchError; never returns a part.
    """
    filled = len(data)
    if filled == 0:
        raise BatchError("a batch of 0 bytes has no messages")
    unpack_head, unpack_size, head_bytes = HEAD.unpack_from, INT16.unpack_from, HEAD.size
    entries: list[tuple[int, bytes, bytes]] = []
    at = 0
    while at < filled:
        if filled - at < ENTRY_BYTES_MIN:
            raise BatchError(
                f"{filled - at} bytes at byte {at} are no message: one has {ENTRY_BYTES_MIN}"
            )
        total_size, _, _, flag, body_size = unpack_head(data, at)
        body_at, end = at + head_bytes, at + total_size
        body_end = body_at + body_size
        properties_at = body_end + 2
        # Check the bounds of the body first: the size of the properties follows the body.
        if (
            body_size < 0
            or not properties_at <= end <= filled
            or properties_at + unpack_size(data, body_end)[0] != end
        ):
            raise _what_is_wrong(data, at, total_size, body_size)
        entries.append((flag, data[body_at:body_end], data[properties_at:end]))
        at = end
    if len(entries) > BATCH_MESSAGES_MAX:
        raise BatchError(
            f"batch has {len(entries)} messages, more than {BATCH_MESSAGES_MAX} messages"
        )
    return entries


def _what_is_wrong(data: bytes, at: int, total_size: int, body_size: int) -> BatchError:
    left = len(data) - at
    if not ENTRY_BYTES_MIN <= total_size <= left:
        return BatchError(
            f"message at byte {at} claims {total_size} bytes;"
            f" possible are {ENTRY_BYTES_MIN} to {left}"
        )
    if not 0 <= body_size <= total_size - ENTRY_BYTES_MIN:
        return BatchError(
            f"message at byte {at} with {total_size} bytes claims a body of {body_size}"
        )
    body_end = at + HEAD.size + body_size
    (properties_size,) = INT16.unpack_from(data, body_end)
    return BatchError(
        f"message at byte {at} with {total_size} bytes and a body of {body_size}"
        f" claims {properties_size} bytes of properties; {at + total_size - body_end - 2} are left"
    )


def encode_batch(entries: Iterable[tuple[int, Bytes, Bytes]]) -> bytes:
    """The batch body of (flag, body, properties) for each message. Raises BatchError."""
    parts: list[Bytes] = []
    count = 0
    for flag, body, properties in entries:
        if count == BATCH_MESSAGES_MAX:
            raise BatchError(f"a batch has at most {BATCH_MESSAGES_MAX} messages")
        total_size = ENTRY_BYTES_MIN + len(body) + len(properties)
        if not _INT32_MIN <= flag <= _INT32_MAX:
            raise BatchError(f"message {count}: flag {flag} does not fit 32 bits")
        if len(properties) > PROPERTIES_BYTES_MAX:
            raise BatchError(
                f"message {count}: {len(properties)} bytes of properties;"
                f" at most {PROPERTIES_BYTES_MAX}"
            )
        if total_size > FRAME_BYTES_MAX:
            raise BatchError(f"message {count}: {total_size} bytes do not fit one frame")
        parts += (HEAD.pack(total_size, 0, 0, flag, len(body)), body)
        parts += (INT16.pack(len(properties)), properties)
        count += 1
    if not count:
        raise BatchError("a batch needs at least one message")
    return b"".join(parts)


def join_properties(inner: Bytes, outer: Bytes) -> bytes:
    """Properties of one message of a batch as they are stored: its own, then those of the batch."""
    if inner and outer and inner[-1] != VALUE_END[0]:
        return b"".join((inner, VALUE_END, outer))
    return b"".join((inner, outer))
