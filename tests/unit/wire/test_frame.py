"""FrameBuffer and frame assembly: `wire/frame.py`."""

import tracemalloc

import pytest

from tianzhou.base.errors import RemoteProtocolError
from tianzhou.base.limits import FRAME_BYTES_MAX, HEADER_BYTES_MAX
from tianzhou.wire.errors import FrameError, TooLargeToSend
from tianzhou.wire.frame import PREFIX, FrameBatch, FrameBuffer, encode_frame, frame_prefix


def feed(buffer: FrameBuffer, data: bytes) -> None:
    """All of `data` must fit into what the buffer offers."""
    view = buffer.writable()
    view[: len(data)] = data
    buffer.wrote(len(data))


def pour(buffer: FrameBuffer, data: bytes) -> list[tuple[bytes, bytes]]:
    """Feeds as a socket would: as much as there is room for, then take."""
    frames: list[tuple[bytes, bytes]] = []
    at = 0
    while at < len(data):
        view = buffer.writable()
        piece = data[at : at + len(view)]
        view[: len(piece)] = piece
        buffer.wrote(len(piece))
        at += len(piece)
        frames += contents(buffer.take())
    return frames


def contents(batch: FrameBatch) -> list[tuple[bytes, bytes]]:
    return [(bytes(batch.header(i)), bytes(batch.body(i))) for i in range(batch.count)]


def test_frame_buffer_returns_frames_of_one_read_as_a_batch() -> None:
    buffer = FrameBuffer()
    frames = [(b"{}", b""), (b'{"a":1}', b"body"), (b"x", b"yz")]
    data = b"".join(encode_frame(h, b, serialise_type=i % 2) for i, (h, b) in enumerate(frames))
    feed(buffer, data)
    batch = buffer.take()
    assert contents(batch) == frames
    assert batch.serialise_types == [0, 1, 0]
    assert buffer.take().count == 0
    assert buffer.waiting_bytes == 0


def test_frame_buffer_assembles_a_frame_from_single_bytes() -> None:
    buffer = FrameBuffer()
    data = encode_frame(b"{}", b"body", serialise_type=0)
    for byte in data[:-1]:
        feed(buffer, bytes((byte,)))
        assert buffer.take().count == 0
    assert buffer.waiting_bytes == len(data) - 1
    feed(buffer, data[-1:])
    assert contents(buffer.take()) == [(b"{}", b"body")]


def test_frame_buffer_grows_for_a_large_frame_and_shrinks_again() -> None:
    buffer = FrameBuffer(capacity=64)
    large = encode_frame(b"{}", b"x" * 5000, serialise_type=0)
    small = encode_frame(b"{}", b"y", serialise_type=0)
    assert pour(buffer, large) == [(b"{}", b"x" * 5000)]
    assert buffer.capacity == len(large)
    assert pour(buffer, small + small) == [(b"{}", b"y")] * 2
    assert pour(buffer, small) == [(b"{}", b"y")]
    assert buffer.capacity == 64


def test_frame_buffer_accepts_the_largest_frame() -> None:
    buffer = FrameBuffer()
    body = bytes(FRAME_BYTES_MAX - 4 - 2)
    # One that we accept and would not send: Java's limit includes the length field.
    data = PREFIX.pack(FRAME_BYTES_MAX, 2) + b"{}" + body
    (frame,) = pour(buffer, data)
    assert len(frame[1]) == len(body)
    assert buffer.capacity == FRAME_BYTES_MAX + 4


def test_frame_buffer_allocates_nothing_for_a_prefix_alone() -> None:
    buffer = FrameBuffer()
    feed(buffer, PREFIX.pack(FRAME_BYTES_MAX, 2))
    assert buffer.take().count == 0
    before = buffer.capacity
    buffer.writable()
    assert buffer.capacity == before


@pytest.mark.parametrize(
    ("size", "word", "message"),
    [
        (FRAME_BYTES_MAX + 1, 2, "frame of 16777217 bytes"),
        (2**31 - 1, 2, "frame of 2147483647 bytes"),
        (-1, 2, "frame of -1 bytes"),
        (-(2**31), 2, "frame of -2147483648 bytes"),
        (0, 0, "frame of 0 bytes"),
        (4, 0, "frame of 4 bytes"),
        (100, 0, "header of 0 bytes"),
        (100, 97, "header of 97 bytes; 1 to 96"),
        (FRAME_BYTES_MAX, HEADER_BYTES_MAX + 1, "header of 262145 bytes"),
        (100, 2 << 24 | 10, "serialise type 2"),
        (100, 255 << 24 | 10, "serialise type 255"),
    ],
)
def test_frame_buffer_rejects_an_invalid_prefix(size: int, word: int, message: str) -> None:
    buffer = FrameBuffer()
    feed(buffer, PREFIX.pack(size, word))
    tracemalloc.start()
    try:
        with pytest.raises(FrameError) as raised:
            buffer.take()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 16 * 1024
    assert message in str(raised.value)
    assert isinstance(buffer.broken, RemoteProtocolError)


def test_frame_buffer_rejects_an_invalid_size_before_the_whole_prefix() -> None:
    buffer = FrameBuffer()
    feed(buffer, b"\x7f\xff\xff\xff")
    with pytest.raises(FrameError):
        buffer.take()


def test_frame_buffer_returns_valid_frames_before_an_invalid_one() -> None:
    buffer = FrameBuffer()
    good = encode_frame(b"{}", b"1", serialise_type=0)
    feed(buffer, good + good + PREFIX.pack(-5, 0) + good)
    assert contents(buffer.take()) == [(b"{}", b"1")] * 2
    assert buffer.broken is not None
    with pytest.raises(FrameError, match="-5"):
        buffer.take()
    # A shell may still be in the middle of a read; whatever comes is thrown away.
    feed(buffer, good)
    with pytest.raises(FrameError, match="-5"):
        buffer.take()


def test_frame_batch_is_valid_until_the_next_writable() -> None:
    buffer = FrameBuffer(capacity=64)
    feed(buffer, encode_frame(b"{}", b"first", serialise_type=0) + b"\x00")
    batch = buffer.take()
    buffer.take()
    assert bytes(batch.body(0)) == b"first"


def test_frame_prefix_over_the_limit_is_rejected() -> None:
    room = FRAME_BYTES_MAX - 8
    assert len(frame_prefix(serialise_type=0, header_size=2, body_size=room - 2)) == 8
    with pytest.raises(TooLargeToSend, match="16777217 bytes"):
        frame_prefix(serialise_type=0, header_size=2, body_size=room - 1)
    with pytest.raises(TooLargeToSend, match="header of 262145"):
        frame_prefix(serialise_type=0, header_size=HEADER_BYTES_MAX + 1, body_size=0)


def test_frame_buffer_wrote_more_than_offered_is_an_assertion() -> None:
    buffer = FrameBuffer(capacity=64)
    with pytest.raises(AssertionError):
        buffer.wrote(65)
