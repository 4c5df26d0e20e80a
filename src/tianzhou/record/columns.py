"""The same for many records at once, as columns: stamping and checking them with numpy.

A module of its own, loaded when the first long row comes: numpy takes longer to load than a whole
command of the command line, and consumers of short rows never need it.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from tianzhou.base.kinds import Bytes
from tianzhou.record.crc import crc32
from tianzhou.record.layout import (
    AT_QUEUE_OFFSET,
    AT_STORE_TIMESTAMP,
    CRC_PROPERTY,
    CRC_PROPERTY_BYTES,
    FIELDS,
    HEAD,
    MAGIC_V1,
)

if TYPE_CHECKING:
    from tianzhou.record.chunk import RecordChunk

_INT64: Final = np.dtype(">i8")


def stamp_many(
    chunk: "RecordChunk",
    rows: tuple[int, int],
    queue_offsets: Sequence[int],
    *,
    base: int,
    now_ms: int,
) -> None:
    """Stamp the records `first` to `end` (`rows`) as columns of a matrix."""
    first, end = rows
    data, starts, ends = chunk.data, chunk.starts[first:end], chunk.ends[first:end]
    at = np.array(starts)
    # One unaligned 8-byte field at every byte position; indexing by the starts scatters.
    fields = np.ndarray((len(data) - 7,), _INT64, data, strides=(1,))
    fields[at + AT_QUEUE_OFFSET] = queue_offsets
    fields[at + (AT_QUEUE_OFFSET + 8)] = at + base
    fields[at + AT_STORE_TIMESTAMP] = now_ms
    if chunk.has_crc:
        tails = np.ndarray((len(data) - 19,), f"V{CRC_PROPERTY_BYTES}", data, strides=(1,))
        tails[np.array(ends) - CRC_PROPERTY_BYTES] = crc_properties(data, starts, ends)


_CRC_DTYPE: Final = np.dtype(
    [("name", "V9"), ("low", "V4"), ("mid", "V4"), ("high", "V2"), ("end", "V1")]
)
# Four digits at a time, least significant first.
_FOUR_DIGITS: Final = np.array([b"%04d" % n for n in range(10_000)]).view("V4")
_FOUR_DIGITS_REVERSED: Final = (
    _FOUR_DIGITS.view(np.uint8).reshape(-1, 4)[:, ::-1].copy().view("V4").reshape(-1)
)


def crc_properties(buffer: Bytes, starts: Sequence[int], ends: Sequence[int]) -> npt.NDArray[Any]:
    """The checksum property, 20 bytes, that each of these records should end with."""
    covered = CRC_PROPERTY_BYTES
    with memoryview(buffer) as view:
        crcs = [crc32(view[start : end - covered]) for start, end in zip(starts, ends, strict=True)]
    masked = np.array(crcs, np.uint32) & 0x7FFFFFFF
    upper = masked // 10_000
    found = np.empty(len(crcs), _CRC_DTYPE)
    found["name"] = np.void(CRC_PROPERTY + b"\x01")
    found["low"] = _FOUR_DIGITS_REVERSED[masked - upper * 10_000]
    found["mid"] = _FOUR_DIGITS_REVERSED[upper % 10_000]
    found["high"] = _FOUR_DIGITS_REVERSED.view("V2").reshape(-1, 2)[upper // 10_000, 0]
    found["end"] = np.void(b"\x02")
    return found.view(f"V{covered}")


HEAD_DTYPE: Final = np.dtype(
    [(name, {"i": ">i4", "q": ">i8", "8s": "V8"}[code]) for name, code in FIELDS]
)


def gather(raw: npt.NDArray[np.uint8], at: npt.NDArray[np.int64], size: int) -> npt.NDArray[Any]:
    """The `size` bytes at each of these positions, as one array of opaque items."""
    # Overlapping windows, one at every byte; indexing copies only the chosen ones.
    windows = np.ndarray((len(raw) - size + 1,), f"V{size}", raw, strides=(1,))
    return windows[at]


def suspects(buffer: Bytes, starts: Sequence[int], end: int, base: int) -> list[int]:
    """Ranks that the vectorised checks did not find sound. It errs on the side of suspicion."""
    at = np.array(starts)
    ends = np.append(at[1:], end)
    raw = np.frombuffer(buffer, np.uint8)
    heads = gather(raw, at, HEAD.size).view(HEAD_DTYPE)
    body_sizes = heads["body_size"].astype(np.int64)
    topic_at = at + HEAD.size + body_sizes
    sound = (
        (heads["magic"] == MAGIC_V1)
        & (heads["sys_flag"] & 0x30 == 0)
        & (heads["total_size"] == ends - at)
        & (heads["physical_offset"] == at + base)
        & (heads["queue_offset"] >= 0)
        & (heads["queue_id"] >= 0)
        & (body_sizes >= 0)
        & (topic_at + 3 <= ends)
    )
    topic_at = np.where(sound, topic_at, at)
    topic_sizes = raw[topic_at].astype(np.int64)
    size_at = topic_at + 1 + topic_sizes
    sound &= (topic_sizes < 128) & (size_at + 2 <= ends)
    size_at = np.where(sound, size_at, at)
    properties_sizes = raw[size_at].astype(np.int64) << 8 | raw[size_at + 1]
    sound &= (properties_sizes < 32768) & (size_at + 2 + properties_sizes == ends)
    stored = gather(raw, ends - CRC_PROPERTY_BYTES, CRC_PROPERTY_BYTES)
    sound &= stored == crc_properties(buffer, starts, ends.tolist())
    return np.flatnonzero(~sound).tolist()
