"""Any chunking gives the same frames; truncated frames wait; every flipped bit is handled."""

import contextlib
import itertools

from hypothesis import example, given
from hypothesis import strategies as st

from tianzhou.base.limits import FRAME_BYTES_MAX
from tianzhou.wire.codec import Header, decode_headers, encode_command
from tianzhou.wire.errors import FrameError, HeaderError
from tianzhou.wire.frame import FrameBuffer, SerialiseType, encode_frame

Frame = tuple[int, bytes, bytes]

frames = st.lists(
    st.tuples(st.sampled_from([0, 1]), st.binary(min_size=1, max_size=60), st.binary(max_size=200)),
    max_size=8,
)


def reference(data: bytes) -> list[Frame]:
    """The reference: one frame after the other, by the table in docs/formats/frame.md."""
    found: list[Frame] = []
    at = 0
    while len(data) - at >= 4:
        size = int.from_bytes(data[at : at + 4], "big", signed=True)
        if at + 4 + size > len(data):
            break
        header_end = at + 8 + int.from_bytes(data[at + 5 : at + 8], "big")
        found.append((data[at + 4], data[at + 8 : header_end], data[header_end : at + 4 + size]))
        at += 4 + size
    return found


def run(buffer: FrameBuffer, data: bytes, pieces: list[int]) -> list[Frame]:
    """Feed `data` in pieces of the given sizes, cyclically."""
    found: list[Frame] = []
    sizes = itertools.cycle(pieces)
    at = 0
    while at < len(data):
        view = buffer.writable()
        assert len(view) > 0
        piece = data[at : at + min(next(sizes), len(view))]
        view[: len(piece)] = piece
        buffer.wrote(len(piece))
        at += len(piece)
        batch = buffer.take()
        found += [
            (batch.serialise_types[i], bytes(batch.header(i)), bytes(batch.body(i)))
            for i in range(batch.count)
        ]
    return found


def encode(sent: list[Frame]) -> bytes:
    return b"".join(encode_frame(header, body, serialise_type=form) for form, header, body in sent)


@given(frames, st.lists(st.integers(1, 300), min_size=1, max_size=5), st.integers(8, 128))
@example([(0, b"{}", b"x" * 200)] * 3, [1], 8)
def test_frame_buffer_with_any_chunking_gives_the_same_frames(
    sent: list[Frame], pieces: list[int], capacity: int
) -> None:
    data = encode(sent)
    buffer = FrameBuffer(capacity)
    assert run(buffer, data, pieces) == sent == reference(data)
    assert buffer.waiting_bytes == 0
    assert buffer.capacity <= max(capacity, len(data))


@given(frames.filter(bool), st.data())
def test_frame_buffer_of_a_truncated_stream_gives_whole_frames_and_waits(
    sent: list[Frame], data: st.DataObject
) -> None:
    stream = encode(sent)
    cut = data.draw(st.integers(0, len(stream) - 1))
    buffer = FrameBuffer(16)
    found = run(buffer, stream[:cut], [7])
    assert found == reference(stream[:cut])
    assert len(found) < len(sent)
    assert buffer.broken is None


HEADERS = [
    Header(code=310, opaque=7, ext={"b": "T", "e": "3"}, remark="é", serialise_type=form)
    for form in SerialiseType
]


def test_frame_buffer_waits_for_every_truncated_frame() -> None:
    for header in HEADERS:
        stream = encode_command(header, b"body")
        for cut in range(len(stream)):
            assert run(FrameBuffer(), stream[:cut], [1000]) == []


def test_frame_buffer_rejects_a_flipped_bit_or_it_is_harmless() -> None:
    """Harmless: still a frame or an incomplete one, and still a header. Never another exception,
    and never more memory than the bytes received."""
    for header in HEADERS:
        stream = encode_command(header, b"body")
        for bit in range(len(stream) * 8):
            damaged = bytearray(stream)
            damaged[bit // 8] ^= 1 << bit % 8
            buffer = FrameBuffer(64)
            view = buffer.writable()
            with contextlib.suppress(FrameError, HeaderError):
                while damaged:
                    piece = damaged[: len(view)]
                    view[: len(piece)] = piece
                    buffer.wrote(len(piece))
                    del damaged[: len(piece)]
                    for decoded in decode_headers(buffer.take()):
                        assert isinstance(decoded, Header)
                    view = buffer.writable()
            assert buffer.capacity <= 2 * max(64, len(stream))


@given(st.binary(max_size=400), st.lists(st.integers(1, 100), min_size=1, max_size=4))
def test_frame_buffer_of_any_bytes_gives_frames_or_one_error(
    noise: bytes, pieces: list[int]
) -> None:
    buffer = FrameBuffer(32)
    with contextlib.suppress(FrameError):
        for _, header, _ in run(buffer, noise, pieces):
            assert header
    assert buffer.capacity <= max(64, 2 * len(noise)) < FRAME_BYTES_MAX
