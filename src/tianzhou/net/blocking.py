"""A simple blocking connection for commands: one request at a time."""

from types import TracebackType
from typing import Final, Self

from tianzhou.base.errors import Retry, TianzhouError
from tianzhou.net.connect import connect_blocking
from tianzhou.wire.codec import Header, decode_header, encode_command
from tianzhou.wire.frame import FrameBuffer

TIMEOUT_S: Final = 5.0


class Unreachable(TianzhouError):
    """No server responds at an address."""

    retry = Retry.OTHER_BROKER


class BlockingPeer:
    """A connection for one request at a time. Owner: the thread that created it."""

    def __init__(self, address: str, timeout_s: float = TIMEOUT_S) -> None:
        self._address = address
        host, _, port = address.rpartition(":")
        try:
            self._socket = connect_blocking(host.strip("[]"), int(port), timeout_s=timeout_s)
        except (OSError, ValueError) as error:
            raise Unreachable(f"nothing answers at {address}: {error}") from error
        self._buffer = FrameBuffer()
        self._opaque = 0

    def call(
        self, code: int, ext: dict[str, str] | None = None, body: bytes = b""
    ) -> tuple[Header, bytes]:
        """Send a request and return its response, whatever its code. Requests of the peer are
        ignored. Raises Unreachable."""
        self._opaque += 1
        header = Header(code=code, opaque=self._opaque, ext=ext or {})
        try:
            self._socket.sendall(encode_command(header, body))
            while True:
                for answer, data in self._receive():
                    if answer.is_response and answer.opaque == self._opaque:
                        return answer, data
        except OSError as error:
            raise Unreachable(f"{self._address} did not answer request {code}: {error}") from error

    def _receive(self) -> list[tuple[Header, bytes]]:
        size = self._socket.recv_into(self._buffer.writable())
        if not size:
            raise ConnectionResetError("the connection was closed")
        self._buffer.wrote(size)
        batch = self._buffer.take()
        return [
            (decode_header(batch.header(i), batch.serialise_types[i]), bytes(batch.body(i)))
            for i in range(batch.count)
        ]

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
