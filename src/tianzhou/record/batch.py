r"""The batch body: what a producer sends instead of one body to store several messages at once.

Repeated, without anything between:

    total_size 4 | magic 4 | body_crc 4 | flag 4 | body_size 4 | body |
    properties_size 2 | properties

`total_size` counts itself. Magic and CRC are 0 and not looked at: the broker computes its own.
A batch is taken as a whole or not at all, so every bound is checked before anything is stored.
"""

import struct
from collections.abc import Iterable
from typing import Final, NamedTuple

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


class BatchEntry(NamedTuple):
    """One message of a batch. The views are valid as long as the batch body is."""

    flag: int
    body: memoryview
    properties: memoryview


def decode_batch(data: Bytes) -> list[BatchEntry]:
    """Every message of a batch body, in order. Raises BatchError; never returns a part."""
    view = memoryview(data)
    filled = len(view)
    if filled == 0:
        raise BatchError("a batch of 0 bytes has no messages")
    entries: list[BatchEntry] = []
    at = 0
    while at < filled:
        if len(entries) == BATCH_MESSAGES_MAX:
            raise BatchError(f"batch has more than {BATCH_MESSAGES_MAX} messages; byte {at}")
        entry, at = _entry_at(view, at)
        entries.append(entry)
    return entries


def _entry_at(view: memoryview, at: int) -> tuple[BatchEntry, int]:
    """The entry that begins here, and where it ends."""
    left = len(view) - at
    if left < ENTRY_BYTES_MIN:
        raise BatchError(f"{left} bytes at byte {at} are no message: one has {ENTRY_BYTES_MIN}")
    total_size, _, _, flag, body_size = HEAD.unpack_from(view, at)
    if not ENTRY_BYTES_MIN <= total_size <= left:
        raise BatchError(
            f"message at byte {at} claims {total_size} bytes;"
            f" possible are {ENTRY_BYTES_MIN} to {left}"
        )
    # Bounds of the body first: the size of the properties stands behind it.
    if not 0 <= body_size <= total_size - ENTRY_BYTES_MIN:
        raise BatchError(
            f"message at byte {at} with {total_size} bytes claims a body of {body_size}"
        )
    body_at = at + HEAD.size
    body_end = body_at + body_size
    properties_at = body_end + INT16.size
    end = at + total_size
    properties_size = INT16.unpack_from(view, body_end)[0]
    if properties_at + properties_size != end:
        raise BatchError(
            f"message at byte {at} with {total_size} bytes and a body of {body_size}"
            f" claims {properties_size} bytes of properties; {end - properties_at} are left"
        )
    return BatchEntry(flag, view[body_at:body_end], view[properties_at:end]), end


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
