"""Variable-length slices of a buffer as Arrow arrays, without a Python object per slice.

An Arrow array of bytes is a buffer of consecutive values and the positions between them. Scattered
slices become such an array in two steps: an array over the whole buffer has the entries gap, slice,
gap, slice, ...; taking every second entry then copies the bytes once.
"""

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tianzhou.spark.arrow import Array, pa

Int64s = npt.NDArray[np.int64]
Raw = npt.NDArray[np.uint8]

BUFFER_BYTES_MAX: Final = (1 << 31) - 1
"""Positions in an Arrow array of bytes have 32 bits."""


def binary_slices(raw: Raw, starts: Int64s, ends: Int64s) -> Array:
    """Return the slices `raw[start:end]`. They must be ascending and must not overlap."""
    count = len(starts)
    assert raw.nbytes <= BUFFER_BYTES_MAX
    edges = np.empty(2 * count + 1, np.int32)
    edges[0] = 0
    edges[1::2] = starts
    edges[2::2] = ends
    pieces = pa.Array.from_buffers(
        pa.binary(), 2 * count, [None, pa.py_buffer(edges), pa.py_buffer(raw)]
    )
    return pieces.take(pa.array(np.arange(1, 2 * count, 2, dtype=np.int32)))


def parts_of(array: Array) -> tuple[Raw, Int64s]:
    """Return the bytes of a newly built array, and the positions between its values."""
    assert array.offset == 0
    _, offsets, data = array.buffers()
    edges = np.frombuffer(offsets, np.int32, len(array) + 1).astype(np.int64)
    raw = np.frombuffer(data, np.uint8) if data is not None else np.empty(0, np.uint8)
    return raw[: edges[-1]], edges


def as_text(array: Array) -> Array:
    """Decode bytes as text. Invalid UTF-8 becomes U+FFFD, as everywhere in Tianzhou."""
    raw, _ = parts_of(array)
    if len(raw) == 0 or raw.max() < 128:
        return array.view(pa.string())
    text = array.view(pa.string())
    try:
        text.validate(full=True)
    except pa.ArrowInvalid:
        values = [
            None if value is None else value.decode("utf-8", "replace")
            for value in array.to_pylist()
        ]
        return pa.array(values, pa.string())
    return text


def integers(raw: Raw, at: Int64s, dtype: str) -> npt.NDArray[Any]:
    """Return the big-endian number at each of these positions."""
    size = np.dtype(dtype).itemsize
    # Overlapping windows, one per byte; indexing copies only the selected ones.
    windows = np.ndarray((len(raw) - size + 1,), dtype, raw, strides=(1,))
    return windows[at]
