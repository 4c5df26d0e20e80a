"""A blocking, pipelined connection: many requests in flight, no thread, no event loop.

`net/blocking.py` sends one request at a time and copies the response. Readers of whole queues send
the next request before they decode a response, and receive bodies of megabytes directly into a
buffer of their own.
"""

from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Final, NamedTuple, Self

from tianzhou.base.kinds import Bytes
from tianzhou.base.limits import FRAME_BYTES_MAX
from tianzhou.client.errors import CallTimeout, ConnectionLost
from tianzhou.client.options import ClientOptions
from tianzhou.client.transport.connect import open_blocking_socket
from tianzhou.wire.codec import Header, decode_header, encode_head
from tianzhou.wire.errors import FrameError
from tianzhou.wire.frame import PREFIX
from tianzhou.wire.signing import Credentials

_READ_BYTES: Final = 4096
"""Most headers fit; the part of the body that is read along is copied once more."""


class Request(NamedTuple):
    code: int
    ext: dict[str, str]
    body: Bytes = b""


class BlockingConnection:
    """A connection with several requests in flight; take responses in the order of the requests.

    Brokers respond in any order. Few responses are kept for later, because a caller waits for its
    oldest request first.

    Owner: one thread.
    """

    def __init__(
        self, address: str, options: ClientOptions, credentials: Credentials | None = None
    ) -> None:
        self.address = address
        self._credentials = credentials
        self._timeout_s = options.call_timeout_s
        self._socket = open_blocking_socket(
            address,
            connect_timeout_s=options.connect_timeout_s,
            call_timeout_s=options.call_timeout_s,
        )
        self._opaque = 0
        self._waiting: dict[int, int] = {}
        """Opaque number to request code."""
        self._early: dict[int, tuple[Header, bytearray]] = {}
        self._read = bytearray()

    def send(self, request: Request) -> int:
        """Send a request; return the number to pass to `receive`."""
        self._opaque += 1
        ext = request.ext
        if self._credentials is not None:
            ext = self._credentials.sign(ext, request.body)
        header = Header(code=request.code, opaque=self._opaque, ext=ext)
        self._waiting[self._opaque] = request.code
        head = encode_head(header, len(request.body))
        try:
            self._socket.sendall(b"".join((head, request.body)) if request.body else head)
        except OSError as error:
            raise self._lost(request.code, error) from error
        return self._opaque

    def receive(self, opaque: int) -> tuple[Header, bytearray]:
        """Return the response to this request, whatever its code."""
        while opaque not in self._early:
            header, body_size = self._head(self._waiting[opaque])
            body = bytearray(body_size)
            self._fill(memoryview(body), header.code)
            self._keep(header, body)
        del self._waiting[opaque]
        return self._early.pop(opaque)

    def receive_into(self, opaque: int, room: Callable[[int], memoryview]) -> Header:
        """Like `receive`, but write the body into the buffer that `room(size)` returns."""
        code = self._waiting[opaque]
        while opaque not in self._early:
            header, body_size = self._head(code)
            if header.is_response and header.opaque == opaque:
                del self._waiting[opaque]
                self._fill(room(body_size), code)
                return header
            body = bytearray(body_size)
            self._fill(memoryview(body), code)
            self._keep(header, body)
        del self._waiting[opaque]
        header, body = self._early.pop(opaque)
        room(len(body))[:] = body
        return header

    def call(self, request: Request) -> tuple[Header, bytearray]:
        return self.receive(self.send(request))

    def call_all(self, requests: Sequence[Request]) -> list[tuple[Header, bytearray]]:
        """Send all requests, then return the responses in their order: one round trip."""
        return [self.receive(number) for number in [self.send(request) for request in requests]]

    def close(self) -> None:
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _keep(self, header: Header, body: bytearray) -> None:
        # Requests of the broker, and responses that no caller waits for, are ignored.
        if header.is_response and header.opaque in self._waiting:
            self._early[header.opaque] = (header, body)

    def _head(self, code: int) -> tuple[Header, int]:
        """Read the next header; return it and the size of its body."""
        self._have(PREFIX.size, code)
        frame_size, word = PREFIX.unpack_from(self._read)
        header_size = word & 0xFFFFFF
        if not 0 < header_size <= frame_size - 4 or frame_size > FRAME_BYTES_MAX:
            raise FrameError(
                f"{self.address} announces a frame of {frame_size} bytes with a header of "
                f"{header_size}: it does not speak this protocol"
            )
        self._have(PREFIX.size + header_size, code)
        end = PREFIX.size + header_size
        header = decode_header(bytes(self._read[PREFIX.size : end]), word >> 24)
        del self._read[:end]
        return header, frame_size - 4 - header_size

    def _have(self, size: int, code: int) -> None:
        while len(self._read) < size:
            try:
                data = self._socket.recv(_READ_BYTES)
            except OSError as error:
                raise self._lost(code, error) from error
            if not data:
                raise ConnectionLost(self.address, code)
            self._read += data

    def _fill(self, view: memoryview, code: int) -> None:
        """Fill the buffer, first with the bytes that were read along with the header."""
        early = min(len(self._read), len(view))
        view[:early] = self._read[:early]
        del self._read[:early]
        at = early
        while at < len(view):
            try:
                size = self._socket.recv_into(view[at:])
            except OSError as error:
                raise self._lost(code, error) from error
            if not size:
                raise ConnectionLost(self.address, code)
            at += size

    def _lost(self, code: int, error: OSError) -> ConnectionLost | CallTimeout:
        if isinstance(error, TimeoutError):
            return CallTimeout(self.address, code, self._timeout_s)
        return ConnectionLost(self.address, code)
