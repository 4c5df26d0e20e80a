"""Bodies compressed by producers and expanded by consumers, according to the system flag.

The COMPRESSED bit marks a compressed body, and the type bits name the algorithm; no type means
zlib, the only algorithm of old producers. The broker stores bodies unchanged and never decompresses
them, so lz4 and zstandard are loaded only when a body needs them.
"""

import zlib
from typing import Final, Protocol, cast

from tianzhou.base.errors import TianzhouError, UsageError
from tianzhou.base.kinds import Bytes
from tianzhou.base.limits import BODY_BYTES_MAX
from tianzhou.record import flags

ZLIB_LEVEL: Final = 5
"""As other clients; higher levels cost twice the time for a few per cent."""

EXPANDED_BYTES_MAX: Final = 16 * BODY_BYTES_MAX
"""Producers refuse bodies above 4 MiB before they compress, but that is a setting of theirs;
sixteen times that leaves room for generous ones. Zlib can expand a stored body of 4 MiB to 4 GiB,
zstd to far more: such a body is an attack on the consumer."""


_ZSTD_WINDOW_BYTES_MIN: Final = 8 * 1024 * 1024
"""What every reader of zstd should accept (RFC 8878, 3.1.1.1.2), however small the limit."""

_ZSTD_WINDOW_BYTES_MAX: Final = 128 * 1024 * 1024
"""Where the library itself stops."""


class DecompressionError(TianzhouError):
    """A body does not expand: wrong type, damaged, cut short, or larger than allowed."""


def compress(body: Bytes, sys_flag: int) -> bytes:
    """The body as it is stored under this system flag."""
    if not sys_flag & flags.COMPRESSED:
        return bytes(body)
    match sys_flag & flags.COMPRESSION_MASK:
        case 0 | flags.COMPRESSION_ZLIB:
            return zlib.compress(body, ZLIB_LEVEL)
        case flags.COMPRESSION_LZ4:
            return _compress_lz4(body)
        case flags.COMPRESSION_ZSTD:
            return _compress_zstd(body)
        case unknown:
            raise UsageError(f"compression type {unknown:#x} of flag {sys_flag:#x} is unknown")


def decompress(stored: Bytes, sys_flag: int, *, limit: int = EXPANDED_BYTES_MAX) -> bytes:
    """The body as its producer gave it. Raises DecompressionError.

    No more than `limit` bytes are expanded; the libraries hold them twice while they hand them
    over. Bytes after the end of the compressed stream are ignored, as in other clients.
    """
    assert limit > 0
    if not sys_flag & flags.COMPRESSED:
        return bytes(stored)
    match sys_flag & flags.COMPRESSION_MASK:
        case 0 | flags.COMPRESSION_ZLIB:
            return _expand_zlib(stored, limit)
        case flags.COMPRESSION_LZ4:
            return _expand_lz4(stored, limit)
        case flags.COMPRESSION_ZSTD:
            return _expand_zstd(stored, limit)
        case unknown:
            raise DecompressionError(
                f"compression type {unknown:#x} of flag {sys_flag:#x} is unknown"
            )


def _damaged(kind: str, stored: Bytes, error: Exception) -> DecompressionError:
    return DecompressionError(f"body of {len(stored)} bytes is not {kind}: {error}")


def _cut_short(kind: str, stored: Bytes) -> DecompressionError:
    return DecompressionError(f"{kind} body of {len(stored)} bytes is cut short")


def _too_large(kind: str, stored: Bytes, limit: int) -> DecompressionError:
    return DecompressionError(
        f"{kind} body of {len(stored)} bytes expands to more than {limit} bytes"
    )


def _expand_zlib(stored: Bytes, limit: int) -> bytes:
    stream = zlib.decompressobj()
    try:
        body = stream.decompress(stored, limit)
        # A body of exactly the limit may have its checksum still to read: ask for one byte more.
        if not stream.eof and stream.decompress(stream.unconsumed_tail, 1):
            raise _too_large("zlib", stored, limit)
    except zlib.error as error:
        raise _damaged("zlib", stored, error) from error
    if not stream.eof:
        raise _cut_short("zlib", stored)
    return body


class _Lz4Stream(Protocol):
    eof: bool

    def decompress(self, data: Bytes, max_length: int) -> bytes: ...


class _Lz4Frame(Protocol):
    """What we use of the module `lz4.frame`, which has no annotations."""

    def compress(self, data: Bytes, *, block_linked: bool) -> bytes: ...
    def LZ4FrameDecompressor(self) -> _Lz4Stream: ...


def _compress_lz4(body: Bytes) -> bytes:
    from lz4 import frame  # pyright: ignore[reportUnknownVariableType] # no annotations

    # Java's reader knows only blocks that do not refer to each other.
    return cast("_Lz4Frame", frame).compress(body, block_linked=False)


def _expand_lz4(stored: Bytes, limit: int) -> bytes:
    from lz4 import frame  # pyright: ignore[reportUnknownVariableType] # no annotations

    stream = cast("_Lz4Frame", frame).LZ4FrameDecompressor()
    try:
        body = stream.decompress(stored, limit)
        if not stream.eof and stream.decompress(b"", 1):
            raise _too_large("lz4", stored, limit)
    except RuntimeError as error:  # lz4 has no exception of its own
        raise _damaged("lz4", stored, error) from error
    if not stream.eof:
        raise _cut_short("lz4", stored)
    return body


def _compress_zstd(body: Bytes) -> bytes:
    import zstandard

    return zstandard.ZstdCompressor().compress(body)


def _expand_zstd(stored: Bytes, limit: int) -> bytes:
    import zstandard

    # A frame with a short body may ask for a long window, and the library allocates it.
    window = min(max(limit, _ZSTD_WINDOW_BYTES_MIN), _ZSTD_WINDOW_BYTES_MAX)
    try:
        # A size in the head of the frame is believed by the library and allocated.
        if zstandard.frame_content_size(stored) > limit:
            raise _too_large("zstd", stored, limit)
        # Java's producers write no size there; then at most the limit is expanded, and the
        # library does not tell a frame that is longer from one that is cut short.
        stream = zstandard.ZstdDecompressor(max_window_size=window)
        return stream.decompress(stored, max_output_size=limit)
    except zstandard.ZstdError as error:
        raise _damaged(f"zstd of at most {limit} bytes", stored, error) from error
