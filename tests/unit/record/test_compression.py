import subprocess
import sys
import tracemalloc
import zlib

import pytest
import zstandard

from tianzhou.base.errors import UsageError
from tianzhou.record import flags
from tianzhou.record.compression import DecompressionError, compress, decompress

ZLIB_OLD = flags.COMPRESSED
ZLIB = flags.COMPRESSED | flags.COMPRESSION_ZLIB
LZ4 = flags.COMPRESSED | flags.COMPRESSION_LZ4
ZSTD = flags.COMPRESSED | flags.COMPRESSION_ZSTD
KINDS = pytest.mark.parametrize("kind", [ZLIB_OLD, ZLIB, LZ4, ZSTD])
BODY = b"a body that is long enough to be worth it, and again and again " * 20


@KINDS
def test_compression_round_trips(kind: int) -> None:
    stored = compress(BODY, kind)
    assert len(stored) < len(BODY)
    assert decompress(memoryview(stored), kind) == BODY
    assert decompress(stored, kind, limit=len(BODY)) == BODY
    assert decompress(stored + b"more", kind) == BODY


def test_decompress_without_the_flag_returns_the_body() -> None:
    assert compress(memoryview(BODY), flags.COMPRESSION_LZ4) == BODY
    assert decompress(bytearray(BODY), flags.COMPRESSION_LZ4) == BODY


def test_decompress_without_a_type_uses_zlib() -> None:
    assert compress(BODY, ZLIB_OLD) == compress(BODY, ZLIB) == zlib.compress(BODY, 5)


@KINDS
def test_decompress_beyond_the_limit_is_rejected(kind: int) -> None:
    with pytest.raises(DecompressionError, match="more than 1259"):
        decompress(compress(BODY, kind), kind, limit=len(BODY) - 1)


@KINDS
def test_decompress_of_a_truncated_body_is_rejected(kind: int) -> None:
    stored = compress(BODY, kind)
    for size in range(len(stored)):
        with pytest.raises(DecompressionError):
            decompress(stored[:size], kind)


@KINDS
def test_decompress_with_a_wrong_type_is_rejected(kind: int) -> None:
    for other in {ZLIB, LZ4, ZSTD} - {ZLIB if kind == ZLIB_OLD else kind}:
        with pytest.raises(DecompressionError, match="is not"):
            decompress(compress(BODY, kind), other)


def test_compression_with_an_unknown_type_is_rejected() -> None:
    with pytest.raises(DecompressionError, match="type 0x500 of flag 0x501"):
        decompress(BODY, 0x501)
    with pytest.raises(UsageError, match="type 0x400 of flag 0x401"):
        compress(BODY, 0x401)


def streamed_zstd(body: bytes, window_log: int) -> bytes:
    """As Java writes it: no size in the head of the frame."""
    settings = zstandard.ZstdCompressionParameters(window_log=window_log, write_content_size=False)
    stream = zstandard.ZstdCompressor(compression_params=settings).compressobj()
    return stream.compress(body) + stream.flush()


def test_decompress_of_zstd_without_a_size_is_limited() -> None:
    stored = streamed_zstd(BODY, 21)
    assert decompress(stored, ZSTD, limit=len(BODY)) == BODY
    for bad, limit in ((stored, len(BODY) - 1), (stored[:-1], len(BODY))):
        with pytest.raises(DecompressionError, match=f"at most {limit} bytes"):
            decompress(bad, ZSTD, limit=limit)


def test_decompress_of_zstd_with_a_large_window_is_rejected() -> None:
    with pytest.raises(DecompressionError, match="too much memory"):
        decompress(streamed_zstd(BODY, 27), ZSTD)


@pytest.mark.parametrize("kind", [ZLIB, LZ4, ZSTD])
def test_decompress_of_a_bomb_allocates_little(kind: int) -> None:
    limit = 100_000
    bombs = [compress(bytes(20_000_000), kind)]
    if kind == ZSTD:
        bombs.append(streamed_zstd(bytes(20_000_000), 17))
    tracemalloc.start()
    try:
        for bomb in bombs:
            with pytest.raises(DecompressionError):
                decompress(bomb, kind, limit=limit)
        assert tracemalloc.get_traced_memory()[1] < 3 * limit
    finally:
        tracemalloc.stop()


@pytest.mark.slow
def test_message_import_loads_no_compression_library() -> None:
    code = (
        "import sys, tianzhou.record.message;"
        "print(sorted({'lz4', 'zstandard', 'zlib'} & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("['zlib']\n", "")


def test_compress_with_lz4_uses_independent_blocks() -> None:
    """Java's reader rejects frames without this bit: BLOCK_INDEPENDENCE of the descriptor."""
    stored = compress(b"x" * 300_000, LZ4)
    assert stored[4] & 0x20
