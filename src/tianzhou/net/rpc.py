"""Requests and responses of everything that is not on the hot path.

A handler is a plain function: it takes a `Request` and returns a `Reply`, or None if the response
is sent later or never. It raises `RequestRejected` to send a response with that code and text;
other Tianzhou errors become SYSTEM_ERROR with their message.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from tianzhou.base.errors import TianzhouError
from tianzhou.base.kinds import Bytes
from tianzhou.base.steps import Steps
from tianzhou.wire.codec import Header
from tianzhou.wire.frame import SerialiseType

OnAnswer = Callable[[Header | None, bytes], None]
"""Called with the response and its body, or with None after a timeout or a lost connection."""


class Peer(Protocol):
    """The other end of a connection, as handlers see it."""

    identity: str
    """The user that the peer has proved to be; empty while it has not authenticated."""

    @property
    def remote(self) -> str:
        """`address:port` of the peer."""
        ...

    @property
    def remote_host(self) -> bytes:
        """The same as 8 or 20 bytes, as stored in records."""
        ...

    @property
    def local(self) -> str:
        """`address:port` to which the peer connected."""
        ...

    @property
    def is_open(self) -> bool: ...

    def send(self, data: Bytes) -> None:
        """Queue bytes; they are sent at the end of this iteration of the loop."""
        ...

    def tell(self, code: int, ext: dict[str, str], body: bytes = b"") -> None:
        """Send a one-way request to the peer."""
        ...

    def ask(
        self, code: int, ext: dict[str, str], body: bytes, on_answer: OnAnswer, *, timeout_s: float
    ) -> None:
        """Send a request to the peer. `on_answer` is called exactly once."""
        ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Request:
    header: Header
    body: bytes
    peer: Peer

    @property
    def serialise_type(self) -> SerialiseType:
        return self.header.serialise_type


@dataclass(frozen=True, slots=True)
class Reply:
    code: int = 0
    ext: dict[str, str] = field(default_factory=dict[str, str])
    body: bytes = b""
    remark: str | None = None


class RequestRejected(TianzhouError):
    """The request cannot be served; the response contains the code and the reason."""

    def __init__(self, code: int, remark: str, ext: dict[str, str] | None = None) -> None:
        """`ext` are header fields of the response, for clients that can act on them."""
        super().__init__(f"{remark} (code {code})")
        self.code = code
        self.remark = remark
        self.ext = ext or {}


Handler = Callable[[Request], Reply | Steps[Reply] | None]
"""Returns the response, the steps that compute it, or None if it is sent later or never."""
