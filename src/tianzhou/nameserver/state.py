"""The state that the NameServer's handlers share, and the encoding of their responses."""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from tianzhou.base.clock import Clock
from tianzhou.base.limits import FRAME_BYTES_MAX, HEADER_BYTES_MAX
from tianzhou.nameserver.admission import REFUSAL, Admission
from tianzhou.nameserver.config import NameServerConfig
from tianzhou.nameserver.kv import KvTable
from tianzhou.nameserver.missing import MissingBrokers
from tianzhou.nameserver.refusals import CHARS_MAX, Refusals
from tianzhou.nameserver.routes import RouteTable
from tianzhou.net.rpc import Reply, Request, RequestRejected
from tianzhou.wire._generated_codes import RequestCode, ResponseCode
from tianzhou.wire.codec import Header
from tianzhou.wire.fastjson import encode
from tianzhou.wire.nameserver_bodies import RefusedBroker
from tianzhou.wire.routes import (
    BrokerMemberGroupAnswer,
    ClusterTable,
    TopicRouteData,
    encode_routes,
)

Note: TypeAlias = Callable[[str, dict[str, str]], None]
"""Called with an event name such as `broker.lost`, and its fields."""

STANDARD_JSON_VERSION: Final = 401
"""V4_9_4. Older clients expect numeric keys without quotes, as fastjson writes them."""

_BODY_BYTES_MAX: Final = FRAME_BYTES_MAX - 2 * HEADER_BYTES_MAX
_ADDRESSES: Final = re.compile(rb'"brokerAddrs":\{("[0-9][^{}]*)\}')
_KEY: Final = re.compile(rb'"([0-9]+)":"')


def note_nothing(_: str, __: dict[str, str]) -> None:
    pass


@dataclass(slots=True)
class State:
    """The tables of a NameServer. Owner: its event loop."""

    clock: Clock
    config: NameServerConfig = NameServerConfig()
    note: Note = note_nothing
    routes: RouteTable = field(default_factory=RouteTable)
    kv: KvTable = field(default_factory=KvTable)
    missing: MissingBrokers = field(default_factory=MissingBrokers)
    refusals: Refusals = field(default_factory=Refusals)
    admission: Admission = field(init=False)
    started_s: float = field(init=False)

    def __post_init__(self) -> None:
        self.admission = Admission(self.config)
        self.started_s = self.clock.monotonic_s()

    def admit(self, request: Request) -> None:
        """Check whether a peer may change state, before anything is changed. Raises
        RequestRejected."""
        reason = self.admission.why_not(request)
        if not reason:
            return
        if request.header.code != RequestCode.REGISTER_BROKER or self.refuse(
            request, kind="signature", reason=reason
        ):
            facts = {"code": str(request.header.code), "peer": request.peer.remote}
            self.note("request.refused", facts | {"reason": reason})
        raise RequestRejected(ResponseCode.NO_PERMISSION, REFUSAL)

    def refuse(self, request: Request, *, kind: str, reason: str) -> bool:
        """Record a refused registration. Returns False if the reason is the same as at the last
        attempt."""
        ext = request.header.ext
        refused = RefusedBroker(
            address=ext.get("brokerAddr", "")[:CHARS_MAX],
            kind=kind,
            name=ext.get("brokerName", "")[:CHARS_MAX],
            peer=request.peer.remote,
            reason=reason,
        )
        return self.refusals.refuse(refused, self.clock.monotonic_s())


def reply_with(body: object) -> Reply:
    return _checked(encode(body))


def reply_with_addresses(
    body: TopicRouteData | ClusterTable | BrokerMemberGroupAnswer, *, standard: bool
) -> Reply:
    """Encode a response as ASCII-only standard JSON, or as old Java clients expect it."""
    return _checked(encode_routes(body) if standard else bare_keys(encode(body)))


def reads_standard_json(header: Header) -> bool:
    return header.version >= STANDARD_JSON_VERSION


def bare_keys(data: bytes) -> bytes:
    """Encode with unquoted broker ids: `{0:"h:1"}`.

    Addresses and names were validated on registration: they contain no quote, and no bracket that
    could be mistaken for JSON except the pair around an IPv6 address.
    """
    return _ADDRESSES.sub(lambda found: _KEY.sub(rb'\1:"', found[0]), data)


def _checked(data: bytes) -> Reply:
    if len(data) > _BODY_BYTES_MAX:
        raise RequestRejected(
            ResponseCode.SYSTEM_ERROR,
            f"the response has {len(data)} bytes; a frame holds at most {_BODY_BYTES_MAX}",
        )
    return Reply(body=data)
