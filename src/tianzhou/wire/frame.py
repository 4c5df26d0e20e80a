"""Frames: cut out of a byte stream, and put together.

    OFFSET  SIZE  NAME            MEANING
    0       4     frame_size      bytes that follow this field
    4       1     serialise_type  0: the header is JSON, 1: binary
    5       3     header_size     bytes of the header
    8       ...   header, then body up to the end of the frame

A `FrameBuffer` owns the received bytes and finds all complete frames in one pass; it returns
positions, not copies. It does not trust announced sizes: they are checked once the first eight
bytes have arrived, before memory is allocated for the rest, and the buffer doubles towards an
announced size only as bytes arrive. So a peer must send as much as it makes us allocate.
"""

import enum
import struct
from dataclasses import dataclass
from typing import Final

from tianzhou.base.kinds import Bytes
from tianzhou.base.limits import FRAME_BYTES_MAX, HEADER_BYTES_MAX
from tianzhou.wire.errors import FrameError, TooLargeToSend


class SerialiseType(enum.IntEnum):
    """Which form the header has; the top byte of the header size."""

    JSON = 0
    BINARY = 1


# Name, offset, size: docs/formats/frame.md is tested against this.
FIELDS: Final = (("frame_size", 0, 4), ("serialise_type", 4, 1), ("header_size", 5, 3))
# The type is the top byte of the second word. Sizes are signed, so that a negative one is
# reported as negative.
PREFIX: Final = struct.Struct(">iI")
SIZE_BYTES: Final = 4
_SIZE: Final = struct.Struct(">i")
_TYPE_SHIFT: Final = 24
_HEADER_SIZE_MASK: Final = (1 << _TYPE_SHIFT) - 1
_TYPE_MAX: Final = max(SerialiseType)

CAPACITY_DEFAULT: Final = 64 * 1024
"""What one read takes. Enough for a burst of small messages, little enough for idle peers."""

assert PREFIX.size == sum(size for _, _, size in FIELDS)
assert HEADER_BYTES_MAX <= _HEADER_SIZE_MASK


@dataclass(frozen=True, slots=True)
class FrameBatch:
    """All whole frames of one read, as lists of positions in `view`.

    Valid until: the next `writable()` of the buffer that it came from.
    """

    data: bytearray
    view: memoryview
    """The same bytes: for slices that do not copy."""
    headers: list[int]
    bodies: list[int]
    ends: list[int]
    serialise_types: list[int]

    @property
    def count(self) -> int:
        return len(self.ends)

    def header(self, index: int) -> memoryview:
        return self.view[self.headers[index] : self.bodies[index]]

    def body(self, index: int) -> memoryview:
        return self.view[self.bodies[index] : self.ends[index]]


class FrameBuffer:
    """Cuts a byte stream into frames. Does no I/O.

    Owner: the loop or thread that reads the connection.
    Invariant: 0 <= taken <= filled <= capacity <= max(initial capacity, FRAME_BYTES_MAX + 4)
    Valid until: positions of a batch hold until the next writable().
    """

    __slots__ = ("_buffer", "_capacity_initial", "_filled", "_taken", "_view", "broken")

    def __init__(self, capacity: int = CAPACITY_DEFAULT) -> None:
        assert capacity >= PREFIX.size
        self._capacity_initial = capacity
        self._buffer = bytearray(capacity)
        self._view = memoryview(self._buffer)
        self._taken = 0
        self._filled = 0
        # The error in the stream, if any. Valid frames before it are still returned, so that they
        # get responses; the next take() raises.
        self.broken: FrameError | None = None

    @property
    def capacity(self) -> int:
        return len(self._buffer)

    @property
    def waiting_bytes(self) -> int:
        """Bytes of a frame that has begun and is not whole yet."""
        return self._filled - self._taken

    def writable(self) -> memoryview:
        """Room for what comes next, never empty. Tell `wrote` how much of it was used."""
        waiting = self._filled - self._taken
        if waiting == 0 or self.broken is not None:
            self._start_over()
        elif self._taken:
            # Each byte moves at most once: afterwards its frame begins at 0.
            self._view[:waiting] = self._view[self._taken : self._filled]
            self._taken, self._filled = 0, waiting
        if self._filled == len(self._buffer):
            self._grow()
        return self._view[self._filled :]

    def wrote(self, count: int) -> None:
        assert 0 <= count <= len(self._buffer) - self._filled
        self._filled += count

    def take(self) -> FrameBatch:
        """The whole frames that have arrived, possibly none."""
        if self.broken is not None:
            raise self.broken
        headers: list[int] = []
        bodies: list[int] = []
        ends: list[int] = []
        types: list[int] = []
        at, filled, buffer, unpack = self._taken, self._filled, self._buffer, PREFIX.unpack_from
        while filled - at >= 8:
            size, word = unpack(buffer, at)
            header_size = word & _HEADER_SIZE_MASK
            if not 0 < header_size <= size - 4 or size > FRAME_BYTES_MAX:
                break
            if header_size > HEADER_BYTES_MAX or word >> _TYPE_SHIFT > _TYPE_MAX:
                break
            end = at + 4 + size
            if end > filled:
                break
            headers.append(at + 8)
            bodies.append(at + 8 + header_size)
            ends.append(end)
            types.append(word >> _TYPE_SHIFT)
            at = end
        self._taken = at
        # The loop ends for want of bytes or because of bad ones; that is found out here, once.
        self.broken = _complaint(buffer, at, filled)
        if self.broken is not None and not ends:
            raise self.broken
        return FrameBatch(buffer, self._view, headers, bodies, ends, types)

    def reset(self) -> None:
        """Forget everything: the stream it came from is being closed."""
        self._taken = self._filled = 0
        self.broken = None

    def put_back(self, at: int) -> None:
        """The frames from this position on, given out by the last take(), are given out again."""
        assert 0 <= at <= self._taken
        self._taken = at
        self.broken = None

    def hand_over(self) -> "FrameBuffer | None":
        """Move the beginning of a frame into a buffer of its own and be empty; None if there is
        none. So one large buffer serves all connections that have nothing half-read."""
        waiting = self._filled - self._taken
        rest = self._view[self._taken : self._filled]
        self._taken = self._filled = 0
        if not waiting:
            return None
        other = FrameBuffer(max(CAPACITY_DEFAULT, waiting))
        other._view[:waiting] = rest
        other._filled = waiting
        return other

    def _start_over(self) -> None:
        """Nothing of value is in the buffer. Gives back room that the last frames did not need."""
        if self.capacity > self._capacity_initial and self._filled <= self.capacity // 4:
            self._replace(self._capacity_initial)
        self._taken = self._filled = 0

    def _grow(self) -> None:
        # A full buffer holds the beginning of one frame, which take() has found to be sound.
        assert self._taken == 0
        (size,) = _SIZE.unpack_from(self._buffer)
        assert self.capacity < size + SIZE_BYTES, "take() was not called before writable()"
        self._replace(min(size + SIZE_BYTES, 2 * self.capacity))

    def _replace(self, capacity: int) -> None:
        # A new buffer, not a longer one: views of the old one may still be in use.
        old, kept = self._view, min(self._filled, capacity)
        self._buffer = bytearray(capacity)
        self._view = memoryview(self._buffer)
        self._view[:kept] = old[:kept]


def _complaint(buffer: bytearray, at: int, filled: int) -> FrameError | None:
    """The error in the frame that begins at `at`, as far as its bytes have arrived."""
    if filled - at < SIZE_BYTES:
        return None
    (size,) = _SIZE.unpack_from(buffer, at)
    if not SIZE_BYTES < size <= FRAME_BYTES_MAX:
        return FrameError(f"frame of {size} bytes; 5 to {FRAME_BYTES_MAX} are allowed")
    if filled - at < PREFIX.size:
        return None
    _, word = PREFIX.unpack_from(buffer, at)
    header_size, serialise_type = word & _HEADER_SIZE_MASK, word >> _TYPE_SHIFT
    if serialise_type > _TYPE_MAX:
        return FrameError(f"serialise type {serialise_type}; 0 to {_TYPE_MAX} are known")
    header_size_max = min(size - SIZE_BYTES, HEADER_BYTES_MAX)
    if not 0 < header_size <= header_size_max:
        return FrameError(f"header of {header_size} bytes; 1 to {header_size_max} are allowed here")
    return None


def frame_prefix(*, serialise_type: int, header_size: int, body_size: int) -> bytes:
    """The eight bytes before a header, for callers that send the body without copying it."""
    size = SIZE_BYTES + header_size + body_size
    if header_size > HEADER_BYTES_MAX:
        raise TooLargeToSend(f"header of {header_size} bytes; {HEADER_BYTES_MAX} are allowed")
    # Java counts the length field too, so the last four bytes that we accept are not sent.
    if size + SIZE_BYTES > FRAME_BYTES_MAX:
        raise TooLargeToSend(f"frame of {size + SIZE_BYTES} bytes; {FRAME_BYTES_MAX} are allowed")
    return PREFIX.pack(size, serialise_type << _TYPE_SHIFT | header_size)


def encode_frame(header: Bytes, body: Bytes = b"", *, serialise_type: int) -> bytes:
    """One whole frame, as one copy."""
    prefix = frame_prefix(
        serialise_type=serialise_type, header_size=len(header), body_size=len(body)
    )
    return b"".join((prefix, header, body))
