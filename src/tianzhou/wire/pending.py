"""The pending requests of one connection: matches responses to requests.

Responses arrive in any order and are matched by the opaque number alone. `PendingRequests` assigns
the numbers, keeps a token of the caller for each request (a future, a callback, an index), and
drops it when the deadline has passed. It uses no socket and no clock: bytes to send are returned,
and time is an argument.

Requests of the peer travel on the same connection with numbers of their own, which may be equal
to ours. The response flag distinguishes them, so they are never passed to this object.
"""

import math
from typing import Final, Generic, NamedTuple, TypeVar

from tianzhou.wire.codec import ONEWAY_FLAG, RESPONSE_FLAG, Header, Language, encode_head
from tianzhou.wire.errors import TooManyPending
from tianzhou.wire.frame import SerialiseType

Token = TypeVar("Token")

PENDING_MAX: Final = 65_536
"""Requests waiting on one connection. A peer that is further behind will not catch up."""

# Numbers stay positive, as C++ has them; Java takes any 32 bits.
_OPAQUE_MASK: Final = 0x7FFF_FFFF


class _Pending(NamedTuple, Generic[Token]):
    deadline: float
    token: Token


class PendingRequests(Generic[Token]):
    """The requests that wait for a response.

    Owner: the loop or thread that writes to the connection.
    Invariant: every pending deadline >= _earliest
    """

    def __init__(
        self,
        *,
        serialise_type: SerialiseType = SerialiseType.JSON,
        first_opaque: int = 0,
        pending_max: int = PENDING_MAX,
    ) -> None:
        self._serialise_type = serialise_type
        self._opaque = first_opaque & _OPAQUE_MASK
        self._pending_max = pending_max
        self.by_opaque: Final[dict[int, _Pending[Token]]] = {}
        """The pending requests. Only this class changes it."""
        # Not the exact minimum: a response does not raise it. It only decides whether a scan of
        # the whole table can be skipped.
        self._earliest = math.inf
        self.unmatched_count = 0
        """Responses without a pending request: late, or invented by the peer."""

    @property
    def pending_count(self) -> int:
        return len(self.by_opaque)

    def request(
        self,
        code: int,
        ext: dict[str, str] | None = None,
        *,
        token: Token,
        deadline: float,
        body_size: int = 0,
    ) -> bytes:
        """The bytes to send before the body. The token comes back from `answered` or `expire`."""
        if len(self.by_opaque) >= self._pending_max:
            raise TooManyPending(f"{len(self.by_opaque)} requests wait for an answer")
        opaque = self._next_opaque()
        head = self._head(code, ext, opaque=opaque, flag=0, body_size=body_size)
        # Registered last, so that a request that cannot be encoded never waits.
        self.by_opaque[opaque] = _Pending(deadline, token)
        self._earliest = min(self._earliest, deadline)
        return head

    def oneway(self, code: int, ext: dict[str, str] | None = None, *, body_size: int = 0) -> bytes:
        """The bytes to send before the body of a request that gets no response."""
        return self._head(
            code, ext, opaque=self._next_opaque(), flag=ONEWAY_FLAG, body_size=body_size
        )

    def answered(self, header: Header) -> Token | None:
        """The token of the request of this response, or None if the request is not pending."""
        assert header.flag & RESPONSE_FLAG
        pending = self.by_opaque.pop(header.opaque, None)
        if pending is None:
            self.unmatched_count += 1
            return None
        return pending.token

    def expire(self, now: float) -> list[Token]:
        """The requests whose deadline has passed, oldest first. Late responses are ignored."""
        if now < self._earliest:
            return []
        late = [opaque for opaque, pending in self.by_opaque.items() if pending.deadline <= now]
        tokens = [self.by_opaque.pop(opaque).token for opaque in late]
        self._earliest = min(
            (pending.deadline for pending in self.by_opaque.values()), default=math.inf
        )
        return tokens

    @property
    def next_deadline(self) -> float:
        """When `expire` may have something to do; never later than that. Infinite: never."""
        return self._earliest

    def close(self) -> list[Token]:
        """The connection is gone: everything that still waited, oldest first."""
        tokens = [pending.token for pending in self.by_opaque.values()]
        self.by_opaque.clear()
        self._earliest = math.inf
        return tokens

    def _next_opaque(self) -> int:
        # After 2**31 requests the numbers come round; one may still be waiting.
        while self._opaque in self.by_opaque:
            self._opaque = (self._opaque + 1) & _OPAQUE_MASK
        opaque = self._opaque
        self._opaque = (opaque + 1) & _OPAQUE_MASK
        return opaque

    def _head(
        self, code: int, ext: dict[str, str] | None, *, opaque: int, flag: int, body_size: int
    ) -> bytes:
        header = Header(
            code=code,
            opaque=opaque,
            flag=flag,
            language=Language.PYTHON,
            ext=ext or {},
            serialise_type=self._serialise_type,
        )
        return encode_head(header, body_size)
